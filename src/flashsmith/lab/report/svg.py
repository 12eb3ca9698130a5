"""A small builder of accessible SVG that follows the page's colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

FONT = 12  # px


class Svg:
    """Shapes with classes of the page's style sheet; a title and a description for who hears it."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._head = (title, description)
        self._parts: list[str] = []

    def line(self, points: Sequence[tuple[float, float]], css: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="{css}"/>')

    def dot(self, x: float, y: float, radius: float, css: str, tip: str) -> None:
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{css}">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def text(
        self, x: float, y: float, text: str, css: str = "", anchor: str = "start", size: int = FONT
    ) -> None:
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}" '
            f'font-size="{size}">{escape(text)}</text>'
        )

    def vertical_text(self, x: float, y: float, text: str, css: str = "") -> None:
        """Centred on the point, read from below."""
        self._parts.append(
            f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)" class="{css}" '
            f'text-anchor="middle" font-size="{FONT}">{escape(text)}</text>'
        )

    def markup(self) -> Markup:
        title, description = map(escape, self._head)
        return Markup(
            f'<svg viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" '
            f'aria-label="{title}. {description}" style="max-width:{self.width:.0f}px">'
            f"<title>{title}</title><desc>{description}</desc>{''.join(self._parts)}</svg>"
        )
