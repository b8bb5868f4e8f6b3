"""Reproductions of published results: `pyv-npu reproduce`. Each has two modules: figures, and their sections."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyv_npu.report.page import render
from pyv_npu.sections import Note, Section, Tile, as_text


class Reproduction(NamedTuple):
    """Published result beside the reproduced result."""

    title: str
    json: Mapping[str, Any]
    """Figures; `source` is the publication, `exact` whether all exact claims are met."""
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    tables: Mapping[str, str] = {}
    """CSV files of a report, by name."""

    @property
    def text(self) -> str:
        """Sections for a terminal."""
        return f"{self.json['source']}\n\n{as_text(self.sections)}"

    def files(self) -> dict[str, str]:
        """Return the files of a report, with its page, by name."""
        head = [Note(self.json["source"], "muted")]
        return {**self.tables, "report.html": render(self.title, head, self.tiles, self.sections)}
