"""The report's figures, drawn from findings; the only importer of matplotlib."""

from __future__ import annotations

import hashlib
import html
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from experiments.comparison import words
from experiments.comparison.findings import Comparison, Finding, Value
from experiments.comparison.outcomes import Outcome

INK, SOFT, GRID, BAND, JOIN = "#1c2430", "#5a6675", "#e4e9ef", "#eaf1f8", "#c3ccd6"
LEVELS = ("#2f6db3", "#d9792b", "#3a9a6b", "#8d5fb0", "#b8434e", "#6b7785", "#b59a1f", "#2aa1b3")
GOOD, BAD, NEUTRAL = "#1d7f4e", "#b3362b", "#5a6675"
WIDTH_INCHES = 9.2
PANELS_A_ROW = 3
MOST_VECTOR_DOTS = 400
LABEL_WIDTH = 34
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "text.parse_math": False,
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
    "savefig.facecolor": "white",
}
Colours = dict[str, str]
Bounds = tuple[float | None, float | None, float | None]
Painter = Callable[[Axes, Sequence[Value], float, Colours], None]


@dataclass(frozen=True)
class Figure:
    """A figure: `svg` is an element that can stand inside a page, `png` a picture for slides."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def draw(comparison: Comparison) -> list[Figure]:
    """Every figure that this comparison has something to show in."""
    colours = {level: LEVELS[at % len(LEVELS)] for at, level in enumerate(comparison.levels)}
    makers = (_forest, _differences, _by_block, _by_order)
    return [figure for maker in makers if (figure := maker(comparison, colours)) is not None]


def _made(name: str, title: str, caption: str, height_inches: float, paint: Callable[[Canvas], None]) -> Figure:
    with mpl.rc_context({**STYLE, "svg.hashsalt": hashlib.sha256(name.encode()).hexdigest()}):
        canvas = Canvas(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        paint(canvas)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once for both files: the layout takes longer than the drawing
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(svg, format="svg", dpi=160, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        canvas.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Figure(name, title, caption, _element(svg.getvalue(), name, title), png.getvalue())


def _element(svg: str, name: str, title: str) -> str:
    """Only the element, with ids of its own: several stand in one page, and one must not look up another's glyphs."""
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", body)
    for reference in ('id="', 'href="#', "url(#"):
        body = body.replace(reference, f"{reference}{name}-")
    head = body[: body.index(">") + 1]
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    inside = body[len(head) :].replace("xlink:href", "href").strip()
    return f'<svg {box[0]} role="img" aria-label="{html.escape(title)}">\n{inside}'


# ---- intervals


def _forest(comparison: Comparison, colours: Colours) -> Figure | None:
    shown = [f for f in comparison.findings if f.row.kind == "ratio" and f.row.estimate is not None]
    if not shown:
        return None
    margin = max(finding.row.margin for finding in shown)

    def paint(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        axes.set_xscale("log")
        axes.axvspan(1 / (1 + margin), 1 + margin, color=BAND, zorder=0)
        axes.axvline(1, color=SOFT, linewidth=0.8, zorder=1)
        _intervals(axes, shown, [(f.row.estimate, f.row.ci_low, f.row.ci_high) for f in shown], colours)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.9), max(high, 1.1))
        _ratio_ticks(axes)
        axes.set_xlabel(_against(shown, "ratio of {b} to {a}"))

    caption = (
        "A dot is the geometric mean ratio over paired blocks, a line its 95 % interval, the band the margin "
        f"(±{words.percent(margin)}). Green: better than the baseline; red: worse; grey: no difference shown that matters, "
        "or neither way is better. A hollow dot has no verdict."
    )
    return _made("forest", "Ratios to the baseline", caption, _height(shown), paint)


def _differences(comparison: Comparison, colours: Colours) -> Figure | None:
    shown = [f for f in comparison.findings if f.row.kind == "difference" and f.row.estimate is not None]
    if not shown:
        return None

    def paint(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        axes.axvspan(-1, 1, color=BAND, zorder=0)
        axes.axvline(0, color=SOFT, linewidth=0.8, zorder=1)
        _intervals(axes, shown, [_in_margins(finding) for finding in shown], colours)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -1.5), max(high, 1.5))
        axes.set_xlabel(_against(shown, "{b} minus {a}, in margins"))

    caption = "Outcomes with units of their own, each divided by its margin: inside the band a difference is too small to matter."
    return _made("differences", "Differences from the baseline", caption, _height(shown), paint)


def _in_margins(finding: Finding) -> Bounds:
    row = finding.row
    value, low, high = (None if one is None else one / row.margin for one in (row.estimate, row.ci_low, row.ci_high))
    return value, low, high


def _intervals(axes: Axes, shown: Sequence[Finding], bounds: Sequence[Bounds], colours: Colours) -> None:
    """One line a finding, from the top; findings of one outcome stand together."""
    several = len({(f.row.a, f.row.b) for f in shown}) > 1
    labels: dict[float, str] = {}
    place, before = 0.0, ("", "")
    for finding, (value, low, high) in zip(shown, bounds, strict=True):
        row, tint = finding.row, {True: GOOD, False: BAD, None: NEUTRAL}[finding.good]
        if (row.metric, row.stratum) != before:
            place += 0.5 if labels and several else 0.0
            labels[place] = _label(finding)
        before = (row.metric, row.stratum)
        if low is not None and high is not None:
            axes.plot([low, high], [place, place], color=tint, linewidth=2.2, solid_capstyle="round", zorder=2)
        mark = colours[row.b] if several else tint
        face = mark if finding.judged else "white"
        axes.scatter([value or 0.0], [place], s=34, facecolors=face, edgecolors=mark, linewidths=1.4, zorder=3)
        note = f"{words.effect(finding)}   {textwrap.shorten(row.b, LABEL_WIDTH)}" if several else words.effect(finding)
        axes.annotate(note, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=7.5, color=tint)
        place += 1
    axes.set_yticks(list(labels), list(labels.values()), color=INK, fontsize=8)
    axes.set_ylim(place - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.6, zorder=0)
    axes.spines["left"].set_visible(False)


def _label(finding: Finding) -> str:
    where = [f"[{textwrap.shorten(finding.row.stratum, LABEL_WIDTH)}]"] if finding.row.stratum else []
    return "\n".join(_wrapped(finding.outcome.label) + where)


def _wrapped(text: str) -> list[str]:
    """Long metric names break at their slashes and underscores too."""
    if len(text) <= LABEL_WIDTH:
        return [text]
    return [line.replace("\u200b ", "") for line in textwrap.wrap(re.sub(r"([/_])", "\\1\u200b ", text), LABEL_WIDTH)]


def _height(shown: Sequence[Finding]) -> float:
    outcomes = {(f.row.metric, f.row.stratum): _label(f).count("\n") for f in shown}
    return 0.9 + 0.28 * (len(shown) + 0.5 * len(outcomes)) + 0.1 * sum(outcomes.values())


def _against(shown: Sequence[Finding], pattern: str) -> str:
    def named(levels: set[str], otherwise: str) -> str:
        return textwrap.shorten(levels.pop(), 40) if len(levels) == 1 else otherwise

    return pattern.format(a=named({f.row.a for f in shown}, "its baseline"), b=named({f.row.b for f in shown}, "each level"))


def _ratio_ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    wide = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100, 1_000)
    near = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.4, 1.6, 2)
    axes.set_xticks([tick for tick in (wide if high / low > 4 else near) if low <= tick <= high])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)


# ---- every run


def _by_block(comparison: Comparison, colours: Colours) -> Figure | None:
    caption = "A dot is a run; those of one block are joined. If all lines lean alike, no single block made the difference."
    return _panels("blocks", "Every run, block by block", caption, comparison, colours, list(comparison.values), _paint_blocks)


def _paint_blocks(axes: Axes, values: Sequence[Value], factor: float, colours: Colours) -> None:
    blocks: dict[str, list[Value]] = {}
    for value in values:
        blocks.setdefault(value.block, []).append(value)
    offsets = {level: 0.5 * ((at + 0.5) / len(colours) - 0.5) for at, level in enumerate(colours)}
    for at, inside in enumerate(blocks.values()):
        ordered = sorted(inside, key=lambda value: offsets[value.level])
        xs, ys = [at + offsets[v.level] for v in ordered], [v.value / factor for v in ordered]
        axes.plot(xs, ys, color=JOIN, linewidth=0.9, zorder=1)
        axes.scatter(
            xs, ys, s=14, c=[colours[v.level] for v in ordered], zorder=2, linewidths=0, rasterized=len(values) > MOST_VECTOR_DOTS
        )
    every = max(1, -(-len(blocks) // 10))
    names = [textwrap.shorten(block, 12, placeholder="…") for block in blocks]
    turned = 60 if max(map(len, names)) > 3 else 0
    axes.set_xticks(range(0, len(names), every), names[::every], rotation=turned)
    axes.set_xlabel("block")


def _by_order(comparison: Comparison, colours: Colours) -> Figure | None:
    metrics = list(dict.fromkeys(finding.row.metric for finding in words.headlines(comparison)))[:PANELS_A_ROW]
    caption = "The same runs in the order in which they ran. A slope is the machine's drift; random order lets it meet all alike."
    return _panels("order", "Every run, in order of time", caption, comparison, colours, metrics, _paint_order)


def _paint_order(axes: Axes, values: Sequence[Value], factor: float, colours: Colours) -> None:
    xs, ys = [v.sequence for v in values], [v.value / factor for v in values]
    axes.plot(xs, ys, color=GRID, linewidth=0.9, zorder=1)
    axes.scatter(
        xs, ys, s=14, c=[colours[v.level] for v in values], zorder=2, linewidths=0, rasterized=len(values) > MOST_VECTOR_DOTS
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_xlabel("order in which the runs began")


def _panels(
    name: str,
    title: str,
    caption: str,
    comparison: Comparison,
    colours: Colours,
    metrics: Sequence[str],
    paint: Painter,
) -> Figure | None:
    """Small multiples: one panel an outcome and stratum."""
    outcomes = {finding.row.metric: finding.outcome for finding in comparison.findings}
    panels = [
        (outcomes[metric], stratum, [value for value in comparison.values[metric] if value.stratum == stratum])
        for metric in metrics
        if metric in outcomes
        for stratum in sorted({value.stratum for value in comparison.values[metric]})
    ]
    if not panels:
        return None
    rows = -(-len(panels) // PANELS_A_ROW)

    def on(canvas: Canvas) -> None:
        grid = canvas.subplots(rows, PANELS_A_ROW, squeeze=False)
        for axes, (outcome, stratum, values) in zip(grid.flat, panels, strict=False):
            scale = words.scale(outcome.unit, [value.value for value in values])
            paint(axes, values, scale.factor, colours)
            _frame(axes, outcome, stratum, scale.unit)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        _legend(canvas, colours)

    return _made(name, title, caption, 0.6 + 1.9 * rows, on)


def _frame(axes: Axes, outcome: Outcome, stratum: str, unit: str) -> None:
    where = [f"[{textwrap.shorten(stratum, LABEL_WIDTH)}]"] if stratum else []
    axes.set_title("\n".join(_wrapped(outcome.label) + where))
    axes.set_ylabel(unit)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.margins(y=0.12)


def _legend(canvas: Canvas, colours: Colours) -> None:
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=5, color=colour, label=textwrap.shorten(level, 48))
        for level, colour in colours.items()
    ]
    columns = max(1, min(len(handles), 140 // (6 + max(len(str(handle.get_label())) for handle in handles))))
    canvas.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, fontsize=8)
