"""Published results, computed again: `pyv-npu reproduce`. A module each; what all of them give is here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reproduced:
    """A published result and ours."""

    json: Mapping[str, Any]
    text: str
    exact: bool
    """Whether everything that is claimed exactly is met."""
    files: Callable[[], Mapping[str, str]] = field(default=dict)
    """Makes the files of a report by name: report.html, pictures, tables."""
