"""One figure as an SVG element and a PNG: style, colours, panels, legend."""

from __future__ import annotations

import hashlib
import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from experiments.comparison.report.figures import tips
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.verdicts.batch_sizes import Curve
from experiments.comparison.verdicts.findings import Comparison
from experiments.config.outcomes import Outcome

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
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, **(more or {})})
        yield


@dataclass(frozen=True)
class Figure:
    """A figure: `svg` is an element that can stand inside a page, `png` a picture for slides."""

    name: str
    title: str
    caption: str
    svg: str = field(repr=False)
    png: bytes = field(repr=False)

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


@dataclass(frozen=True)
class Scene:
    """All that figures are drawn from. anchors: run → the id of its row in the page, as far as it has one."""

    comparison: Comparison
    colours: Colours
    raw: Sequence[RawRun] = ()
    curves: Sequence[Curve] = field(default=())
    anchors: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_runs(self) -> str:
        """How many runs the steps come from: `all 12 runs`, `48 of 1,000 runs`."""
        shown, of = len(self.raw), max(self.comparison.n_runs, len(self.raw))
        return f"all {of:,} runs" if shown == of else f"{shown:,} of {of:,} runs, taken evenly over time,"


def colours_of(levels: Sequence[str]) -> Colours:
    if len(levels) <= len(LEVELS):
        return dict(zip(levels, LEVELS, strict=False))
    return {
        level: to_hex(mpl.colormaps["turbo"](at)) for level, at in zip(levels, np.linspace(0.05, 0.95, len(levels)), strict=True)
    }


def made(drawing: Drawing) -> Figure:
    name, title = drawing.name, drawing.title
    with styled({"svg.hashsalt": hashlib.sha256(name.encode()).hexdigest()}):
        canvas = Canvas(figsize=(WIDTH_INCHES, drawing.height_inches), dpi=DOTS_AN_INCH, layout="constrained")
        drawing.paint(canvas)
        _fix_titles(canvas)
        # laid out once, then printed by the backends themselves: `savefig` would lay out and draw again for each file
        layout = canvas.get_layout_engine()
        assert layout is not None
        layout.execute(canvas)
        canvas.set_layout_engine("none")
        tipped = tips.named(canvas.axes)
        svg, png = io.StringIO(), io.BytesIO()
        FigureCanvasAgg(canvas).print_png(  # type: ignore[no-untyped-call]
            png, metadata={"Software": None}, pil_kwargs={"compress_level": 2}
        )
        canvas.patch.set_visible(False)  # a page has a ground of its own, which may be dark
        FigureCanvasSVG(canvas).print_svg(  # type: ignore[no-untyped-call]
            svg, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return Figure(
        name, title, drawing.caption, _element(tips.added(_compact(svg.getvalue()), tipped), name, title), png.getvalue()
    )


def _fix_titles(canvas: Canvas) -> None:
    """Titles stay above their axes: to see what they might overlap, every layout and print would measure all ticks once more.

    Only a power of ten that holds for all ticks of an axis stands where they do.
    """
    for axes in canvas.axes:
        formatter = axes.yaxis.get_major_formatter()
        formatter.format_ticks(axes.get_yticks().tolist())
        if not formatter.get_offset():
            axes.set_title(axes.get_title("left"), y=1.0)


# A thousandth of a point is nothing, but for glyphs, which are drawn at a sixty-fourth.
_DIGITS = re.compile(r"(?<!scale\(0)(\.\d{3})\d+")
_ALIKE = re.compile(r'<g (clip-path="[^"]+")>((?:\s*<use [^>]*style="(fill: #\w+)"/>)(?:\s*<use [^>]*style="\3"/>)*)\s*</g>')


def _compact(svg: str) -> str:
    """The same drawing in fewer bytes: no digits that nobody sees, no indentation, the colour of equal marks once."""
    svg = _DIGITS.sub(r"\1", svg)
    return re.sub(r"\n\s*", "\n", _ALIKE.sub(_once, svg))


def _once(marks: re.Match[str]) -> str:
    style = f' style="{marks[3]}"'
    return f"<g {marks[1]}{style}>{marks[2].replace(style, '')}</g>"


def _element(svg: str, name: str, title: str) -> str:
    """Only the element, with ids of its own: several stand in one page, and one must not look up another's glyphs."""
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", body)
    for reference in ('id="', 'href="#', "url(#"):
        body = body.replace(reference, f"{reference}{name}-")
    body = body.replace(f'href="{tips.ROW}', 'href="#')
    head = body[: body.index(">") + 1]
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    inside = body[len(head) :].replace("xlink:href", "href").strip()
    return f'<svg {box[0]} role="img" aria-label="{html.escape(title)}">\n{inside}'


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
    left_out = f" The first {len(shown)} of {len(panels)} panels." if len(panels) > len(shown) else ""
    return Drawing(name, title, caption + left_out, 0.6 + panel_inches * rows, partial(_paint, shown, rows, a_row, colours))


def _paint(panels: Sequence[Callable[[Axes], None]], rows: int, a_row: int, colours: Colours, canvas: Canvas) -> None:
    for place, paint in enumerate(panels, 1):
        paint(canvas.add_subplot(rows, a_row, place))
    legend(canvas, colours)


def unit_of(outcome: Outcome, unit: str | None = None) -> str:
    """What an axis is titled: the unit, or that there is none. unit: the one that its values are shown in."""
    return (outcome.unit if unit is None else unit) or ("share of 1" if outcome.kind == "difference" else "value without a unit")


def frame(axes: Axes, title: str, stratum: str, unit: str, *, margin: float = 0.12) -> None:
    axes.set_title("\n".join(wrapped(title) + where(stratum)))
    axes.set_ylabel(unit)
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
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
    return [line.replace("\u200b ", "") for line in textwrap.wrap(re.sub(r"([/_])", "\\1\u200b ", text), LABEL_WIDTH)]


def shortened(text: str, width: int) -> str:
    """Cut inside a word where there is no space to cut at."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def plain_ticks(axis: Any, ticks: Iterable[float], after: str = "") -> None:
    """These ticks and no others, as far as there is room for them, in plain numbers, whatever the scale. after: what follows."""
    axis.set_major_locator(FixedLocator(_with_room(axis, list(ticks), len(after))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value) + after))
    axis.set_minor_locator(NullLocator())


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
    for value, at in sorted(zip(ticks, (places[2:] - places[0]) / (places[1] - places[0]) * length, strict=True)):
        half = (LETTER_INCHES * (len(tick(value)) + letters + 1) if across else LINE_INCHES) / 2
        if at - half >= end:
            kept.append(value)
            end = at + half
    return kept


def count_ticks(axis: Any) -> None:
    """Whole numbers, so few that five figures have room in a third of a page."""
    axis.set_major_locator(MaxNLocator(integer=True, nbins=5))


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between low and high, so many that they can be read."""
    for steps in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        ticks = [float(step * 10.0**decade) for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= count:
            return ticks
    return ticks[:: -(-len(ticks) // count)]


def legend(canvas: Canvas, colours: Colours) -> None:
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=5, color=colour, label=shortened(level, 48))
        for level, colour in colours.items()
    ]
    columns = max(1, min(len(handles), 140 // (6 + max(len(str(handle.get_label())) for handle in handles))))
    canvas.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, fontsize=8)
