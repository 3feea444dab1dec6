"""Runs of a comparison: every value over boxes, environments, excluded runs and all by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.canvas import (
    JOIN,
    Colours,
    Drawing,
    frame,
    paneled,
    plain_ticks,
)
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs.environment import Value
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import RawRun, evenly, of_inference
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.metrics import Outcome
from tracking.records import JIT_COMPILE, JIT_PLANNED, RAN_EAGERLY, TOKENS_DIGEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Most runs that a page lists; all are in MLflow.
MAX_RUNS = 2_000
# Quartiles of fewer values would be a box around two of them.
MINIMUM_FOR_A_BOX = 5
MAXIMUM_BLOCKS = 30
# Ratio of the greatest to the least value from which a linear axis would hide the small ones.
WIDE = 30.0
# Dots of a level are spread over this width, successive ones a golden section apart.
SPREAD, GOLDEN = 0.4, 0.618
CAPTION = (
    "A dot is a run. The box holds the middle half of a level’s runs and its line is their median, "
    f"from {MINIMUM_FOR_A_BOX} runs on. Lines join the runs of one block, for at most "
    f"{MAXIMUM_BLOCKS} blocks. If all lines slope the same way, no single block made the "
    "difference."
)

SHARES = (0.01, 0.1, 0.5, 0.9, 0.99)
LATENCIES = (
    "The share of requests answered within a time; a line is a run ({runs} are shown, warm-up left "
    "out). The vertical scale is stretched towards both ends, where the slow requests are."
)


def by_level(evidence: Evidence) -> list[Drawing]:
    """Return a panel for every headline and stratum, with every run of every level."""
    comparison, panels = evidence.comparison, []
    for metric, finding in _headlines(comparison).items():
        values = comparison.values.get(metric, ())
        for stratum in sorted({value.group for value in values}, key=natural):
            inside = [value for value in values if value.group == stratum]
            panels.append(
                partial(
                    _panel,
                    outcome=finding.outcome,
                    stratum=stratum,
                    values=inside,
                    colours=evidence.colours,
                )
            )
    return paneled(
        "blocks", "Every run, those of one block joined", CAPTION, evidence.colours, panels
    )


def _headlines(comparison: Comparison) -> dict[str, Finding]:
    return {
        finding.row.metric: finding
        for finding in wording.headlines(comparison)
        if finding.row.metric not in comparison.unmeasurable
    }


def _panel(
    axes: Axes, outcome: Outcome, stratum: str, values: Sequence[Value], colours: Colours
) -> None:
    numbers = [value.value for value in values]
    factor, unit = wording.scale(outcome.unit, numbers)
    wide = outcome.kind == "ratio" and max(numbers) > WIDE * min(numbers) > 0
    axes.set_yscale("log" if wide else "linear")
    paint_levels(axes, values, factor, colours)
    # the label is turned upwards
    better = {"lower": "← better", "higher": "better →", "neither": ""}[outcome.better]
    frame(axes, outcome.label, stratum, "   ".join(filter(None, (unit, better))))
    plain_ticks(axes.yaxis)


def paint_levels(axes: Axes, values: Sequence[Value], factor: float, colours: Colours) -> None:
    """Draw a dot for each run, a line for each block and a box for each level of enough runs."""
    places = {level: place for place, level in enumerate(colours)}
    blocks: dict[str, list[Value]] = {}
    for value in sorted(values, key=lambda value: places[value.level]):
        blocks.setdefault(value.block, []).append(value)
    # dots of equal values side by side; both runs of a block at the same distance
    shifts = dict(zip(blocks, SPREAD * (np.arange(len(blocks)) * GOLDEN % 1 - 0.5), strict=True))
    for block in evenly(list(blocks.values()), MAXIMUM_BLOCKS):
        line = [
            (places[value.level] + shifts[value.block], value.value / factor) for value in block
        ]
        axes.plot(*zip(*line, strict=True), color=JOIN, linewidth=0.7, alpha=0.7, zorder=1)
    for level, place in places.items():
        runs = [value for value in values if value.level == level]
        inside, colour = [run.value / factor for run in runs], colours[level]
        across = [place + shifts[run.block] for run in runs]
        axes.scatter(across, inside, s=9, color=colour, linewidths=0, zorder=3, clip_on=False)
        if len(inside) >= MINIMUM_FOR_A_BOX:
            low, middle, high = np.quantile(inside, (0.25, 0.5, 0.75), method="median_unbiased")
            axes.bar(place, high - low, 0.64, bottom=low, color=colour, alpha=0.16, zorder=2)
            axes.hlines(middle, place - 0.32, place + 0.32, color=colour, zorder=2)
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.set_xticks([])


def latencies(evidence: Evidence) -> list[Drawing]:
    """Return the distribution of latencies, a panel for each stratum and batch size."""
    groups: dict[tuple[str, int], list[RawRun]] = {}
    for run in evidence.raw:
        for size, phase in of_inference(run).items():
            if len(phase.measured) > 1:
                groups.setdefault((run.stratum, size), []).append(run)
    panels = [
        partial(
            _latency_panel, runs=groups[key], size=key[1], colours=evidence.colours, stratum=key[0]
        )
        for key in sorted(groups, key=lambda key: (natural(key[0]), key[1]))
    ]
    caption = LATENCIES.format(runs=evidence.shown_runs)
    return paneled("latencies", "Latency of single requests", caption, evidence.colours, panels)


def _latency_panel(
    axes: Axes, runs: Sequence[RawRun], size: int, colours: Colours, stratum: str
) -> None:
    axes.set_yscale("logit")
    for run in runs:
        seconds = 1_000 * of_inference(run)[size].measured
        axes.ecdf(seconds, color=colours[run.level], linewidth=0.8, alpha=0.6, rasterized=True)
    axes.set_ylim(0.007, 0.997)
    axes.set_yticks(SHARES, [f"{100 * share:.0f} %" for share in SHARES])
    axes.set_xlabel("latency, ms")
    frame(axes, f"inference, batch {size}", stratum, "share of requests")


def table(evidence: Evidence) -> list[Section]:
    """Return the usable runs with their value of each headline, in order of their start."""
    values = evidence.comparison.values
    headlines = _headlines(evidence.comparison)
    outcomes = {metric: finding.outcome for metric, finding in headlines.items()}
    runs = {value.run: value for of_metric in values.values() for value in of_metric}
    if not runs or len(runs) > MAX_RUNS:
        return []
    by_run = {
        metric: {value.run: value.value for value in values.get(metric, ())} for metric in outcomes
    }
    labels = (number(outcome.label) for outcome in outcomes.values())
    header: Header = ("run", evidence.comparison.factor, "stratum", "block", *labels)
    rows: list[Line] = []
    for run, value in sorted(runs.items(), key=lambda item: item[1].sequence):
        cells = [
            wording.quantity(by_run[metric].get(run), outcome)
            for metric, outcome in outcomes.items()
        ]
        link = Cell(run, link=evidence.link(run))
        rows.append((link, value.level, value.group, value.block, *cells))
    return [
        Section(
            "Every run that counts",
            "In the order in which they began.",
            header,
            rows,
            folded=True,
            hint=f"{len(rows):,} runs",
            on_page_only=True,
        )
    ]


def eager_warnings(environment: Mapping[str, Mapping[str, str]]) -> list[ComparisonWarning]:
    """Return a warning for each level that was not compiled as its variant is to be.

    Args:
        environment: level -> fact -> value, as in a comparison.
    """
    eager = [
        ComparisonWarning(
            WarningCode.NOT_COMPILED,
            f"NOT COMPILED THROUGHOUT, {level}: {facts[RAN_EAGERLY]}. The rest ran eagerly.",
        )
        for level, facts in environment.items()
        if RAN_EAGERLY in facts
    ]
    by_xla = [
        ComparisonWarning(
            WarningCode.COMPILED_OTHERWISE,
            f"COMPILED OTHERWISE, {level}: jit_compile is {facts[JIT_COMPILE]}, expected "
            f"{facts[JIT_PLANNED]}. The framework decides by the network and the device.",
        )
        for level, facts in environment.items()
        if facts.get(JIT_COMPILE) != facts.get(JIT_PLANNED)
    ]
    return eager + by_xla


def answer_warnings(environment: Mapping[str, Mapping[str, str]]) -> list[ComparisonWarning]:
    """Return a warning for each level whose language models answered other tokens.

    Args:
        environment: level -> fact -> value, as in a comparison.
    """
    digests = {
        level: set(facts[TOKENS_DIGEST].split(", "))
        for level, facts in environment.items()
        if TOKENS_DIGEST in facts
    }
    first, *others = digests or [""]
    return [
        ComparisonWarning(
            WarningCode.ANSWERS_DIFFER,
            f"ANSWERS DIFFER, {level} against {first}: the most likely tokens are not the same. "
            "Their number is, so the time of a token compares; a lower precision explains it.",
        )
        for level in others
        if digests[level] - digests[first] and digests[first] - digests[level]
    ]
