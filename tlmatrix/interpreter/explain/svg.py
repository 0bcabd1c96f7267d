"""The few shapes that pictures are made of, as SVG."""

from __future__ import annotations

from html import escape

_GOLDEN = 0.618033988749895


def colour(number: int) -> str:
    """A colour of its own for each number; neighbours are far apart in hue."""
    return f"hsl({360 * (number * _GOLDEN % 1.0):.0f},55%,72%)"


class Drawing:
    """Shapes in the order in which they are drawn; the size grows with them."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self._parts: list[str] = []

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        edge: str = "#555",
        thickness: float = 0.5,
        title: str = "",
    ) -> None:
        """A rectangle; `title` shows when a mouse rests on it."""
        tooltip = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'fill="{fill}" stroke="{edge}" stroke-width="{thickness}">{tooltip}</rect>'
        )
        self.height = max(self.height, y + height)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 12,
        anchor: str = "start",
        fill: str = "#222",
        bold: bool = False,
    ) -> None:
        """Words on a base line."""
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="{fill}"{weight}>{escape(words)}</text>'
        )
        self.height = max(self.height, y + size / 2)

    def mark(self, x: float, y: float, title: str) -> None:
        """A ring around one place."""
        tooltip = f"<title>{escape(title)}</title>"
        for edge, thickness in (("#fff", 5), ("#111", 2)):
            self._parts.append(
                f'<circle cx="{x:.2f}" cy="{y:.2f}" r="6" fill="none" stroke="{edge}" '
                f'stroke-width="{thickness}">{tooltip}</circle>'
            )

    def done(self, title: str) -> str:
        """The picture."""
        height = self.height + 16
        hatch = (
            '<defs><pattern id="none" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fff"/>'
            '<line x1="0" y1="0" x2="0" y2="6" stroke="#bbb" stroke-width="2"/></pattern>'
            '<pattern id="many" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(-45)"><line x1="0" y1="0" x2="0" y2="6" stroke="#111" '
            'stroke-width="1.2" stroke-opacity="0.55"/></pattern></defs>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {self.width:.0f} {height:.0f}" '
            f'font-family="Helvetica, Arial, sans-serif"><title>{escape(title)}</title>{hatch}'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(self._parts)}</svg>\n'
        )
