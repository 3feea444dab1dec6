"""Figures by matplotlib, as SVG and PNG files: style, colours, panels, legend.

matplotlib is imported when the first figure is drawn: every comparison imports the analyses, which
say what is drawn.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.comparison.statistics.estimates import Estimate, Floats
from experiments.metrics import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, SOFT, GRID, BAND, JOIN = "#1c2430", "#5a6675", "#e4e9ef", "#eaf1f8", "#c3ccd6"
LEVELS = ("#2f6db3", "#d9792b", "#3a9a6b", "#8d5fb0", "#b8434e", "#6b7785", "#b59a1f", "#2aa1b3")
GOOD, BAD, NEUTRAL = "#1d7f4e", "#b3362b", "#5a6675"
WIDTH_INCHES = 9.2
DOTS_AN_INCH = 160
PANELS_A_ROW = 3
MAXIMUM_PANELS = 9
# Of more than that, which no page shows, so many are an example; all stand in the tables.
EXAMPLES = 6
LABEL_WIDTH = 34
# What a letter and a line of a tick's label take.
LETTER_INCHES, LINE_INCHES = 0.066, 0.14
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.facecolor": "none",
    "axes.edgecolor": GRID,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "svg.fonttype": "path",
}
Colours = dict[str, str]


@contextmanager
def styled(more: Mapping[Any, Any] | None = None) -> Iterator[None]:
    """Our style on matplotlib's defaults, whatever a user's own file or a library's style (Optuna's plots have one) has set."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, **(more or {})})
        yield


@dataclass(frozen=True)
class Figure:
    """A figure as two files' content: `svg` for pages and papers, `png` for slides and Markdown."""

    name: str
    title: str
    caption: str
    svg: str = field(repr=False)
    png: bytes = field(repr=False)

    @property
    def address(self) -> str:
        """Return the SVG as the address of a picture inside a page, where its ids and styles meet no other's."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        return self.png


@dataclass(frozen=True)
class Drawing:
    """A figure that is yet to be drawn."""

    name: str
    title: str
    caption: str
    height_inches: float
    paint: Callable[[Canvas], None]


def colours_of(levels: Sequence[str]) -> Colours:
    """Return a colour for every level."""
    if len(levels) <= len(LEVELS):
        return dict(zip(levels, LEVELS, strict=False))
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    places = np.linspace(0.05, 0.95, len(levels))
    return {
        level: to_hex(mpl.colormaps["turbo"](at)) for level, at in zip(levels, places, strict=True)
    }


def made(drawing: Drawing) -> Figure:
    """Draw a figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with styled({"svg.hashsalt": drawing.name}):
        canvas = Canvas(
            figsize=(WIDTH_INCHES, drawing.height_inches), dpi=DOTS_AN_INCH, layout="constrained"
        )
        drawing.paint(canvas)
        _fix_titles(canvas)
        # laid out once, then printed by the backends themselves: `savefig` would lay out and draw again for each file
        layout = canvas.get_layout_engine()
        assert layout is not None
        layout.execute(canvas)
        canvas.set_layout_engine("none")
        svg, png = io.StringIO(), io.BytesIO()
        FigureCanvasAgg(canvas).print_png(  # type: ignore[no-untyped-call]
            png, metadata={"Software": None}, pil_kwargs={"compress_level": 2}
        )
        FigureCanvasSVG(canvas).print_svg(  # type: ignore[no-untyped-call]
            svg, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return Figure(drawing.name, drawing.title, drawing.caption, svg.getvalue(), png.getvalue())


def _fix_titles(canvas: Canvas) -> None:
    """Titles stay above their axes: to see what they might overlap, every layout and print would measure all ticks once more.

    Only a power of ten that holds for all ticks of an axis stands where they do.
    """
    for axes in canvas.axes:
        formatter = axes.yaxis.get_major_formatter()
        formatter.format_ticks(axes.get_yticks().tolist())
        if not formatter.get_offset():
            axes.set_title(axes.get_title("left"), y=1.0)


def paneled(
    name: str,
    title: str,
    caption: str,
    colours: Colours,
    panels: Sequence[Callable[[Axes], None]],
    *,
    panel_inches: float = 1.9,
    a_row: int = PANELS_A_ROW,
    maximum: int = MAXIMUM_PANELS,
) -> Drawing | None:
    """Small multiples with one legend; None without a panel. What is left out is told."""
    if not panels:
        return None
    shown = panels if len(panels) <= maximum else panels[: min(EXAMPLES, maximum)]
    rows = -(-len(shown) // a_row)
    left_out = (
        f" The first {len(shown)} of {len(panels)} panels." if len(panels) > len(shown) else ""
    )
    return Drawing(
        name,
        title,
        caption + left_out,
        0.6 + panel_inches * rows,
        partial(_paint, shown, rows, a_row, colours),
    )


def _paint(
    panels: Sequence[Callable[[Axes], None]],
    rows: int,
    a_row: int,
    colours: Colours,
    canvas: Canvas,
) -> None:
    for place, paint in enumerate(panels, 1):
        paint(canvas.add_subplot(rows, a_row, place))
    legend(canvas, colours)


def unit_of(outcome: Outcome, unit: str | None = None) -> str:
    """What an axis is titled: the unit, or that there is none. unit: the one that its values are shown in."""
    return (outcome.unit if unit is None else unit) or (
        "share of 1" if outcome.kind == "difference" else "value without a unit"
    )


def frame(axes: Axes, title: str, stratum: str, unit: str, *, margin: float = 0.12) -> None:
    axes.set_title("\n".join(wrapped(title) + where(stratum)))
    axes.set_ylabel(unit)
    if axes.get_yscale() == "linear":
        at_most(axes.yaxis, 4)
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(y=margin)


def label(outcome: Outcome, stratum: str) -> str:
    return "\n".join(wrapped(outcome.label) + where(stratum))


def where(stratum: str) -> list[str]:
    """Which stratum a label is of: in full, or by its values alone where that is too long."""
    if len(stratum) > LABEL_WIDTH:
        stratum = ", ".join(part.rpartition("=")[2] for part in stratum.split(", "))
    return [f"[{shortened(stratum, LABEL_WIDTH)}]"] if stratum else []


def wrapped(text: str) -> list[str]:
    """Long metric names break at their slashes and underscores too."""
    if len(text) <= LABEL_WIDTH:
        return [text]
    return [
        line.replace("\u200b ", "")
        for line in textwrap.wrap(re.sub(r"([/_])", "\\1\u200b ", text), LABEL_WIDTH)
    ]


def shortened(text: str, width: int) -> str:
    """Cut inside a word where there is no space to cut at."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def plain_ticks(axis: Any, ticks: Iterable[float], after: str = "") -> None:
    """These ticks and no others, as far as there is room for them, in plain numbers, whatever the scale. after: what follows."""
    shown = _with_room(axis, list(ticks), len(after))
    axis.set_major_locator(_ticker().FixedLocator(shown))
    axis.set_major_formatter(_ticker().FuncFormatter(lambda value, _: tick(value) + after))
    axis.set_minor_locator(_ticker().NullLocator())


def tick(value: float) -> str:
    """0.002, 1,500, 3·10⁷."""
    size = math.floor(math.log10(abs(value))) if value else 0
    if -5 < size < 6:
        return f"{value:,.{max(0, -size) + 2}f}".rstrip("0").rstrip(".")
    mantissa = f"{value / 10.0**size:.3g}"
    return f"{'' if mantissa == '1' else f'{mantissa}·'}10{str(size).translate(_RAISED)}"


def _with_room(axis: Any, ticks: Sequence[float], letters: int) -> list[float]:
    """From the first on, those whose labels do not touch the one before."""
    places = axis.get_transform().transform(np.array([*axis.get_view_interval(), *ticks], float))
    across = axis.axis_name == "x"
    inches = axis.figure.get_size_inches()[0 if across else 1]
    box = axis.axes.get_position()
    length = inches * (box.width if across else box.height)
    kept: list[float] = []
    end = -math.inf
    for value, at in sorted(
        zip(ticks, (places[2:] - places[0]) / (places[1] - places[0]) * length, strict=True)
    ):
        half = (LETTER_INCHES * (len(tick(value)) + letters + 1) if across else LINE_INCHES) / 2
        if at - half >= end:
            kept.append(value)
            end = at + half
    return kept


def at_most(axis: Any, count: int, *, whole: bool = False) -> None:
    """Ticks at round values, no more than so many intervals; whole: at whole numbers."""
    axis.set_major_locator(_ticker().MaxNLocator(nbins=count, integer=whole))


def ratio_ticks(axis: Any) -> None:
    """A few round ratios, at equal distances or, of a wide range, on a logarithmic scale."""
    low, high = axis.get_view_interval()
    even = [tick for tick in _ticker().MaxNLocator(4).tick_values(low, high) if low <= tick <= high]
    plain_ticks(axis, even if high < 4 * low else log_ticks(low, high, 6), "×")


def with_errors(estimates: Sequence[Estimate], factor: float = 1.0) -> tuple[Floats, Floats]:
    """Return values, and how far their intervals reach to both sides; NaN where an interval bounds nothing."""
    values, lows, highs = np.array([(one.value, one.low, one.high) for one in estimates]).T / factor
    bounded = (lows > 0) & np.isfinite(highs)
    return values, np.where(bounded, [values - lows, highs - values], np.nan)


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between low and high, so many that they can be read."""
    for steps in (
        (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8),
        (1, 1.5, 2, 3, 5, 7),
        (1, 2, 5),
        (1, 3),
        (1,),
    ):
        decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        ticks = [float(step * 10.0**decade) for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= count:
            return ticks
    return ticks[:: -(-len(ticks) // count)]


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def legend(canvas: Canvas, colours: Colours) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], marker="o", linestyle="", markersize=5, color=colour, label=shortened(level, 48)
        )
        for level, colour in colours.items()
    ]
    columns = max(
        1, min(len(handles), 140 // (6 + max(len(str(handle.get_label())) for handle in handles)))
    )
    canvas.legend(
        handles=handles, loc="outside upper left", ncols=columns, frameon=False, fontsize=8
    )
