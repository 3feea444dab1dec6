"""Figures by matplotlib, as SVG and PNG files: style, colours, panels, legend.

matplotlib is imported when the first figure is drawn: every comparison imports the analyses.
"""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, SOFT, GRID, BAND, JOIN = "#1c2430", "#5a6675", "#e4e9ef", "#eaf1f8", "#c3ccd6"
LEVELS = ("#2f6db3", "#d9792b", "#3a9a6b", "#8d5fb0", "#b8434e", "#6b7785", "#b59a1f", "#2aa1b3")
GOOD, BAD, NEUTRAL = "#1d7f4e", "#b3362b", "#5a6675"
# Width of a page; narrower figures stand side by side.
PAGE_INCHES = 12.2
DOTS_AN_INCH = 160
PANELS_A_ROW = 4
MAXIMUM_PANELS = 8
LABEL_WIDTH = 34
# Ratio of an axis' ends from which its ticks are on a logarithmic scale.
WIDE = 4.0
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.facecolor": "none",
    "axes.edgecolor": GRID,
    "axes.formatter.limits": (-5, 9),
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "svg.fonttype": "path",
}
Colours = dict[str, str]


@dataclass(frozen=True)
class Figure:
    """A figure as two files' content: `svg` for pages and papers, `png` for slides and Markdown."""

    name: str
    title: str
    caption: str
    svg: str = field(repr=False)
    png: bytes = field(repr=False)
    width_inches: float = PAGE_INCHES

    @property
    def width_percent(self) -> float:
        """Share of the page that it takes; its letters are then as large as any other's."""
        return 100 * self.width_inches / PAGE_INCHES

    @property
    def address(self) -> str:
        """The SVG as a data URL, in which its ids and styles meet no other figure's."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"

    def _repr_png_(self) -> bytes:
        return self.png


@dataclass(frozen=True)
class Drawing:
    """A figure that is yet to be drawn."""

    name: str
    title: str
    caption: str
    height_inches: float
    paint: Callable[[Canvas], None]
    width_inches: float = PAGE_INCHES


def colours_of(levels: Sequence[str]) -> Colours:
    """Return a colour for every level."""
    if len(levels) <= len(LEVELS):
        return dict(zip(levels, LEVELS, strict=False))
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    colours = mpl.colormaps["turbo"](np.linspace(0.05, 0.95, len(levels)))
    return dict(zip(levels, map(to_hex, colours), strict=True))


def draw(drawing: Drawing) -> Figure:
    """Draw a figure, in this style only: a user's file or a library may have set another."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    size = (drawing.width_inches, drawing.height_inches)
    svg, png = io.StringIO(), io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, "svg.hashsalt": drawing.name})
        canvas = Canvas(figsize=size, dpi=DOTS_AN_INCH, layout="constrained")
        drawing.paint(canvas)
        # Laid out once for both files: `savefig` would lay out and draw again for each.
        canvas.get_layout_engine().execute(canvas)  # type: ignore[union-attr]
        canvas.set_layout_engine("none")
        FigureCanvasAgg(canvas).print_png(  # type: ignore[no-untyped-call]
            png, metadata={"Software": None}, pil_kwargs={"compress_level": 2}
        )
        FigureCanvasSVG(canvas).print_svg(  # type: ignore[no-untyped-call]
            svg, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    texts = (drawing.name, drawing.title, drawing.caption)
    return Figure(*texts, svg.getvalue(), png.getvalue(), drawing.width_inches)


def draw_with_pyplot(title: str, caption: str, plot: Callable[[], Any]) -> Figure:
    """Draw what a library's function draws with pyplot, whose axes it returns, without a window."""
    import matplotlib as mpl

    svg = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": title}):
        mpl.use("agg")
        from matplotlib import pyplot

        canvas = np.ravel(plot())[0].figure
        width = min(PAGE_INCHES, canvas.get_figwidth())
        canvas.savefig(svg, format="svg", metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(canvas)
    return Figure(title, title, caption, svg.getvalue(), b"", width)


def paneled(
    name: str,
    title: str,
    caption: str,
    colours: Colours,
    panels: Sequence[Callable[[Axes], None]],
    *,
    panel_inches: float = 2.3,
) -> list[Drawing]:
    """Return small multiples with one legend; no drawing without a panel.

    The caption states how many panels are left out.
    """
    shown = panels[:MAXIMUM_PANELS]
    if len(panels) > len(shown):
        caption += f" The first {len(shown)} of {len(panels)} panels."
    columns = min(len(shown), PANELS_A_ROW)
    rows = math.ceil(len(shown) / PANELS_A_ROW)
    width = PAGE_INCHES * columns / PANELS_A_ROW
    labels = [shortened(level, 48) for level in colours]
    # Entries of the legend beside each other: fifteen small letters take an inch.
    entries = max(1, min(len(labels), int(15 * width) // (6 + max(map(len, labels)))))
    legend_inches = 0.2 + 0.18 * math.ceil(len(labels) / entries)

    def paint(canvas: Canvas) -> None:
        from matplotlib.lines import Line2D

        for place, panel in enumerate(shown, 1):
            panel(canvas.add_subplot(rows, columns, place))
        handles = [
            Line2D([], [], marker="o", linestyle="", markersize=5, color=colour)
            for colour in colours.values()
        ]
        canvas.legend(
            handles, labels, loc="outside upper left", ncols=entries, frameon=False, fontsize=8
        )

    height = legend_inches + panel_inches * rows
    return [Drawing(name, title, caption, height, paint, width)] if panels else []


def frame(axes: Axes, title: str, stratum: str, unit: str) -> None:
    """Set title, grid and the label of the values of a panel."""
    axes.set_title(label_of(title, stratum))
    axes.set_ylabel(unit or "value")
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(y=0.12)


def label_of(title: str, stratum: str) -> str:
    """Return a wrapped title with its stratum, or the stratum's values if that is too long."""
    if len(stratum) > LABEL_WIDTH:
        stratum = ", ".join(part.rpartition("=")[2] for part in stratum.split(", "))
    lines = textwrap.wrap(title, LABEL_WIDTH)
    return "\n".join([*lines, *([f"[{shortened(stratum, LABEL_WIDTH)}]"] if stratum else [])])


def shortened(text: str, width: int) -> str:
    """Cut a text to a width, with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def plain_ticks(axis: Any, suffix: str = "") -> None:
    """Set ticks at a few round values, in plain numbers on any scale."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    locator: Any = ticker.MaxNLocator(4, steps=[1, 2, 5, 10])
    if axis.get_scale() == "log" and high >= WIDE * low:
        subs = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
        locator = ticker.LogLocator(subs=subs, numticks=6)
    axis.set_major_locator(locator)
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}{suffix}")
    axis.set_minor_locator(ticker.NullLocator())
