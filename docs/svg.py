"""Small pictures as SVG text: boxes, arrows, words, bars. Each has its own ground: pages may be white or black."""

from __future__ import annotations

from html import escape

INK, FAINT, GROUND = "#1f2933", "#7b8794", "#ffffff"
BLUE, GREEN, AMBER, RED, GREY = "#3b6fb6", "#2f855a", "#b7791f", "#c53030", "#cbd2d9"
_FONT = "font-family='system-ui, sans-serif'"


class Picture:
    """What is drawn, in the order in which it is."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            "<svg xmlns='http://www.w3.org/2000/svg' "
            f"viewBox='0 0 {width} {height}' width='{width}' role='img' {_FONT}>",
            f"<title>{escape(title)}</title>",
            "<defs><marker id='tip' viewBox='0 0 10 10' refX='9' refY='5' "
            "markerWidth='7' markerHeight='7' orient='auto'>"
            f"<path d='M0 0L10 5L0 10z' fill='{INK}'/></marker></defs>",
            f"<rect width='{width}' height='{height}' rx='8' fill='{GROUND}'/>",
        ]

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 14,
        colour: str = INK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """One line of text; `y` is its middle."""
        weight = " font-weight='600'" if bold else ""
        place = f"x='{x:g}' y='{y + size * 0.35:g}' font-size='{size}' text-anchor='{anchor}'"
        self._parts.append(f"<text {place} fill='{colour}'{weight}>{escape(text)}</text>")

    def box(
        self, x: float, y: float, width: float, height: float, text: str = "", *, colour: str = BLUE, full: bool = False
    ) -> None:
        """A rectangle with a text in its middle; full of its colour, or an outline."""
        fill = colour if full else GROUND
        place = f"x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5'"
        self._parts.append(f"<rect {place} fill='{fill}' stroke='{colour}' stroke-width='1.5'/>")
        if text:
            self.words(x + width / 2, y + height / 2, text, colour=GROUND if full else INK)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, bend: float = 0, dashed: bool = False) -> None:
        """From here to there, straight, or bent to its left by so much."""
        length = max(1.0, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
        middle_x = (x1 + x2) / 2 + bend * (y2 - y1) / length
        middle_y = (y1 + y2) / 2 - bend * (x2 - x1) / length
        path = f"M{x1:g} {y1:g}Q{middle_x:g} {middle_y:g} {x2:g} {y2:g}"
        dashes = " stroke-dasharray='5 4'" if dashed else ""
        self._parts.append(
            f"<path d='{path}' fill='none' stroke='{INK}' stroke-width='1.5'{dashes} marker-end='url(#tip)'/>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, colour: str = FAINT) -> None:
        """Without a tip."""
        self._parts.append(f"<path d='M{x1:g} {y1:g}L{x2:g} {y2:g}' stroke='{colour}' stroke-width='1.5'/>")

    def bar(self, x: float, y: float, width: float, height: float, *, colour: str = BLUE) -> None:
        """A rectangle without an outline."""
        place = f"x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='2'"
        self._parts.append(f"<rect {place} fill='{colour}'/>")

    def svg(self) -> str:
        """The text of the file."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"
