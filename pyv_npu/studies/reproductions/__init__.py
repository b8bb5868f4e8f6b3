"""Published results, computed again: `pyv-npu reproduce`. Two modules each: figures, and their sections."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyv_npu.report.page import render
from pyv_npu.sections import Note, Section, Tile, as_text


class Reproduction(NamedTuple):
    """A published result and ours."""

    title: str
    json: Mapping[str, Any]
    """`source` is the publication, `exact` whether everything that is claimed exactly is met."""
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    tables: Mapping[str, str] = {}
    """CSV files of a report, by name."""

    @property
    def text(self) -> str:
        """Sections for a terminal."""
        return f"{self.json['source']}\n\n{as_text(self.sections)}"

    def files(self) -> dict[str, str]:
        """Write the page; returns the files of a report, by name."""
        head = [Note(self.json["source"], "muted")]
        return {**self.tables, "report.html": render(self.title, head, self.tiles, self.sections)}
