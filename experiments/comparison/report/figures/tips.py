"""What a reader sees who points at a mark of a figure, and where a click leads: SVG's own titles and links, no script."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.lines import Line2D

# Of more marks than that nobody finds one, and the page would grow.
MOST = 3_000
# Stands for `#` until a figure's own references have got their prefix.
ROW = "@"
_MARKS, _POINTS = (re.compile(rf"<defs>.*?</defs>|<(?:{tag})\b[^>]*/>", re.DOTALL) for tag in ("use|path", "use"))


@dataclass(frozen=True)
class Tip:
    """text: what is shown; anchor: the id of a row of the page, empty for none."""

    text: str
    anchor: str = ""

    def around(self, mark: str) -> str:
        """The mark with its tip."""
        title = f"<title>{html.escape(self.text, quote=False)}</title>"
        return f'<a href="{ROW}{self.anchor}">{title}{mark}</a>' if self.anchor else f"<g>{title}{mark}</g>"


def put(artist: Any, tips: Sequence[Tip]) -> None:
    """A tip for each point of a line or a scatter, in their order; one alone for a line without points."""
    artist.tips = tips


def named(axes: Iterable[Any]) -> dict[str, Any]:
    """The artists that have tips, by ids that they keep in the drawing."""
    found = [one for each in axes for one in (*each.lines, *each.collections) if getattr(one, "tips", None)]
    if sum(len(one.tips) for one in found) > MOST:
        return {}
    for at, one in enumerate(found):
        one.set_gid(f"tips{at}")
    return {one.get_gid(): one for one in found}


def added(svg: str, artists: dict[str, Any]) -> str:
    """The drawing with the tips of its artists."""
    for name, artist in artists.items():
        svg = _added(svg, svg.find(f'<g id="{name}">'), artist)
    return svg


def _added(svg: str, begin: int, artist: Any) -> str:
    tips = list(artist.tips)
    # the line that joins points is no point
    joined = isinstance(artist, Line2D) and artist.get_marker() not in ("", "None", None)
    parts, end = [svg[:begin]], begin
    for mark in (_POINTS if joined else _MARKS).finditer(svg, begin) if begin >= 0 else ():
        if not tips:
            break
        if not mark[0].startswith("<defs"):
            parts += [svg[end : mark.start()], tips.pop(0).around(mark[0])]
            end = mark.end()
    return "".join(parts) + svg[end:] if begin >= 0 else svg
