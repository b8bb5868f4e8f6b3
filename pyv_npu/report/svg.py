"""A few SVG elements: as much as charts of this package need, readable from disk without anything else."""

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

FONT = "font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif"


class Svg:
    """A drawing in user units, white behind; coordinates are rounded to a tenth, so that files are reproducible."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" style="{escape(FONT)}">\n<title>{escape(title)}</title>'
        )
        self._body: list[str] = []
        self.rectangle(0, 0, width, height, "#ffffff")

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str, tip: str = "") -> None:
        """A filled rectangle; browsers show `tip` when the pointer rests on it."""
        shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"'
        self._body.append(f"{shape}><title>{escape(tip)}</title></rect>" if tip else f"{shape}/>")

    def circle(self, x: float, y: float, radius: float, fill: str, tip: str = "") -> None:
        """A filled circle; browsers show `tip` when the pointer rests on it."""
        shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}" fill-opacity="0.75"'
        self._body.append(f"{shape}><title>{escape(tip)}</title></circle>" if tip else f"{shape}/>")

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1, dash: str = "") -> None:
        self._body.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
            f'stroke-width="{width}"{_dash(dash)}/>'
        )

    def path(self, points: Iterable[tuple[float, float]], stroke: str, width: float = 2, dash: str = "") -> None:
        """A line through points."""
        data = " ".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))
        self._body.append(
            f'<path d="{data}" fill="none" stroke="{stroke}" stroke-width="{width}" stroke-linejoin="round"'
            f"{_dash(dash)}/>"
        )

    def text(
        self, x: float, y: float, text: str, *, size: int = 12, fill: str = "#333333", anchor: str = "start",
        weight: str = "normal", turned: bool = False,
    ) -> None:  # fmt: skip
        """A line of text whose baseline is at y; `turned`: reads upwards."""
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        self._body.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor={quoteattr(anchor)} '
            f'font-weight="{weight}"{turn}>{escape(text)}</text>'
        )

    def __str__(self) -> str:
        return "\n".join([self._head, *self._body, "</svg>", ""])


def _dash(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""
