"""The ablations: every level over the baseline beside the published figures, nodes of graphs, and when compiling has paid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Column, Header, Line, Section
from experiments.comparison.runs.environment import medians
from experiments.comparison.runs.pairing import Cause
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.contract import Treatment

THROUGHPUT = "train/examples_per_second"
NOT_EQUAL = "not equal"
# Kind of node, as its metrics are named -> what it is called.
KINDS = {
    "": "all",
    "nothing_": "nothing",
    "control_": "control",
    "shapes_": "shapes and copies",
    "variables_": "variables",
    "elements_": "element by element",
    "products_": "products",
}
OTHERS = "Source of the published figures: {source}; TensorFlow 1.15 and PyTorch 1.4 on a P100: another machine, other versions."
FIRST, LATER = "train/first_step_seconds", "train/step_seconds"


def lstm(
    comparison: Comparison,
    treatments: Iterable[Treatment],
    levels: Sequence[str],
    table: Mapping[tuple[str, str, str], float],
    source: str,
    *,
    size: str,
) -> Section:
    """table: (library, network, implementation) -> the published throughput over that of a loop of cells."""
    planned = {
        (one.settings["library"], one.settings["model"], one.settings["implementation"]): one
        for one in treatments
    }
    found = of_levels(comparison, THROUGHPUT)
    unequal = refused(comparison)
    lines = []
    for library, model in dict.fromkeys((library, model) for library, model, _ in planned):
        for level in levels:
            if not (one := planned.get((library, model, level))):
                continue
            published = table.get((library, model, level))
            finding = found.get((f"library={library}, model={model}", level))
            ours = normalised(
                finding, unequal.get(one.name, ""), baseline=level == comparison.baseline
            )
            lines.append(
                (
                    model,
                    library,
                    level,
                    one.framework,
                    *ours,
                    f"{published:.2f}×" if published else "",
                )
            )
    caption = (
        f"Throughput over that of the loop of cells, of {size} size: above 1 is faster. “{NOT_EQUAL}”: the parity gate does not "
        f"call it the same function, so it is not measured. {OTHERS.format(source=source)}"
    )
    header = (
        "network",
        "framework",
        "LSTM",
        "run as",
        Column("over cells", numeric=True),
        "95 % interval",
        "blocks",
        "published",
    )
    return Section("LSTM implementations over a loop of cells", caption, header, lines)


def of_levels(comparison: Comparison, metric: str) -> dict[tuple[str, str], Finding]:
    """(stratum, level) -> what was found of a metric against the baseline. Campaigns of their own keep the last."""
    return {
        (one.row.stratum, one.row.b): one for one in comparison.findings if one.row.metric == metric
    }


def refused(comparison: Comparison) -> dict[str, str]:
    """Return what differs of each treatment that the parity gate did not call equal, by the treatment's name."""
    unequal = (one for one in comparison.excluded if one.cause is Cause.NOT_EQUAL)
    return {one.name.rpartition(" · block ")[0]: one.detail for one in unequal}


def normalised(
    finding: Finding | None, different: str = "", *, baseline: bool = False
) -> tuple[str | Cell, str | Cell, str]:
    """The ratio over the baseline, its interval, and the blocks that both stand on; or why there is none."""
    if baseline:
        return "1", "", ""
    if different:
        return Cell(NOT_EQUAL, "worse"), different, ""
    if finding is None or finding.row.estimate is None:
        return wording.NONE, finding.row.reason if finding else "", ""
    return f"{wording.number(finding.row.estimate)}×", _interval(finding), str(finding.row.n_blocks)


def _interval(finding: Finding) -> str:
    low, high = finding.row.ci_low, finding.row.ci_high
    if finding.never_varied or low is None or high is None:
        return wording.interval(finding)
    return wording.DASH.join(map(wording.number, wording.outwards(low, high)))


def graphs(
    comparison: Comparison,
    models: Sequence[str],
    programs: Sequence[str],
    table: Mapping[str, str],
    source: str,
    *,
    size: str,
) -> Section:
    """table: network -> what switching off all optimizers was said to cost."""
    found = of_levels(comparison, THROUGHPUT)
    lines = []
    for model in models:
        for program in programs:
            finding = found.get((f"model={model}", program))
            ours = normalised(finding, baseline=program == comparison.baseline)
            lines.append(
                (model, program, *ours, table.get(model, "") if program == "without all" else "")
            )
    caption = (
        f"Throughput over that of {comparison.baseline} with all of its graph optimizers, of {size} size: above 1 is faster. "
        f"Published: what it cost to switch four of them off; they removed 55–90 % of the nodes, of which more than 78 % "
        f"computed nothing. {OTHERS.format(source=source)}"
    )
    header = (
        "network",
        "program",
        Column("over all optimizers", numeric=True),
        "95 % interval",
        "blocks",
        "published",
    )
    return Section("Graph optimizers and compilers", caption, header, lines)


@dataclass(frozen=True)
class BreakEven:
    """first, later: seconds of the first step and of a later one, eager and compiled; medians over the blocks.

    steps: the median over the blocks, infinite where compiling never pays; with the interval of order statistics that holds the
    median in at least 95 %. None below six blocks, which bound no median.
    """

    stratum: str
    eager: str
    compiled: str
    first: tuple[float, float]
    later: tuple[float, float]
    steps: Estimate | None
    blocks: int


def judged(comparison: Comparison, pairs: Mapping[str, Sequence[str]]) -> list[BreakEven]:
    """pairs: what is run as it comes -> what compiles the same. One for every pair and stratum that have a block in common."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for metric in (FIRST, LATER):
        for one in comparison.values.get(metric, ()):
            values.setdefault((one.stratum, one.level, metric), {})[one.block] = one.value
    strata = dict.fromkeys(stratum for stratum, _, _ in values)
    every = [
        (stratum, eager, one)
        for stratum in strata
        for eager, compiled in pairs.items()
        for one in compiled
    ]
    return [
        found for stratum, eager, one in every if (found := _judged(values, stratum, eager, one))
    ]


def _judged(
    values: Mapping[tuple[str, str, str], Mapping[str, float]],
    stratum: str,
    eager: str,
    compiled: str,
) -> BreakEven | None:
    keys = [(stratum, level, metric) for metric in (FIRST, LATER) for level in (eager, compiled)]
    sides = [values.get(key, {}) for key in keys]
    blocks = sorted(set(sides[0]).intersection(*sides[1:]))
    if not blocks:
        return None
    table = np.array([[side[block] for block in blocks] for side in sides])
    first, first_compiled, later, later_compiled = np.median(table, axis=1).tolist()
    steps = median([paid_after(*column) for column in table.T.tolist()])
    return BreakEven(
        stratum,
        eager,
        compiled,
        (first, first_compiled),
        (later, later_compiled),
        steps,
        len(blocks),
    )


def paid_after(first: float, first_compiled: float, later: float, later_compiled: float) -> float:
    """The number of steps that take as long compiled as not, a fraction of a step included; 1 where the first is no slower."""
    more, saved = first_compiled - first, later - later_compiled
    if more <= 0:
        return 1.0
    return 1 + more / saved if saved > 0 else math.inf


def median(values: Sequence[float]) -> Estimate | None:
    """Return the median with its interval of order statistics, whatever the distribution; None of too few values for 95 %."""
    ordered = sorted(values)
    left_out = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    if not left_out:
        return None
    return Estimate(middle, ordered[left_out - 1], ordered[-left_out])


def break_even(comparison: Comparison, pairs: Mapping[str, Sequence[str]]) -> list[Section]:
    """pairs: what is run as it comes -> what compiles the same. Nothing where none of them was measured."""
    lines: list[Line] = [
        (
            *(one.stratum, one.compiled, one.eager),
            *(_seconds(value) for pair in (one.first, one.later) for value in reversed(pair)),
            *_paid_after(one),
            str(one.blocks),
        )
        for one in judged(comparison, pairs)
    ]
    caption = (
        "The number of steps after which a compiled program has taken no longer than the eager one, its compilation (the first "
        "step) included. Seconds are medians over the blocks. Steps: the median over the blocks, with an interval of order "
        "statistics, from six blocks on; “never”: a compiled step is no faster."
    )
    numbers = (
        "first step",
        "eager first step",
        "later step",
        "eager later step",
        "steps until it has paid",
    )
    header: Header = (
        "where",
        "compiled",
        "against",
        *(Column(name, numeric=True) for name in numbers),
        "95 % interval",
        "blocks",
    )
    return [Section("When compiling has paid", caption, header, lines)] if lines else []


def _seconds(value: float) -> str:
    scale = wording.scale("s", [value])
    return f"{wording.number(value / scale.factor)} {scale.unit}"


def _steps(value: float) -> str:
    return "never" if math.isinf(value) else f"{math.ceil(value):,}"


def _paid_after(one: BreakEven) -> tuple[str, str]:
    """Return the number of steps and its interval."""
    if one.steps is None:
        return wording.NONE, f"none from {wording.blocks(one.blocks)}"
    return _steps(one.steps.value), f"{_steps(one.steps.low)}{wording.DASH}{_steps(one.steps.high)}"


def nodes(evidence: Evidence) -> list[Section]:
    """How many nodes the graph of a step had before and after its optimizers, by kind; nothing where none was counted."""
    lines: list[tuple[str, ...]] = []
    comparison, runs = evidence.comparison, evidence.runs
    if runs is None or "graph/nodes_before" not in runs.columns:
        return []
    for model, of_model in runs.groupby("model"):
        before, after = (
            {
                kind: medians(
                    of_model, factor=comparison.factor, metric=f"graph/{kind}nodes_{when}"
                )
                for kind in KINDS
            }
            for when in ("before", "after")
        )
        for level in [one for one in comparison.levels if one in before[""]]:
            counts = (
                f"{before[kind].get(level, 0):,.0f} → {after[kind].get(level, 0):,.0f}"
                for kind in KINDS
            )
            lines.append((str(model), level, *counts))
    caption = (
        "Nodes of the graph of a training step, with the functions that it calls, before → after TensorFlow’s graph optimizers; "
        "loops are written out after. Nothing: constants, identities, placeholders, control edges. Counted when all was measured."
    )
    return (
        [
            Section(
                "Nodes of a step’s graph",
                caption,
                ("network", comparison.factor, *KINDS.values()),
                lines,
            )
        ]
        if lines
        else []
    )


def convolutions(
    comparison: Comparison,
    treatments: Iterable[Treatment],
    pictures: Mapping[str, tuple[float, float]],
    epochs: Mapping[str, Mapping[str, tuple[float, float]]],
    source: str,
    *,
    size: str,
) -> list[Section]:
    """pictures: network -> throughput of profiled over fixed, from, to. epochs: network -> algorithm -> first, later seconds."""
    rate, first, later = (
        of_levels(comparison, name)
        for name in (THROUGHPUT, "train/first_epoch_seconds", "train/epoch_seconds")
    )
    speeds, times = [], []
    for one in treatments:
        own, level = one.settings, str(one.settings["conv_algorithm"])
        stratum = f"framework={one.framework}, model={own['model']}, batch_size={own['batch_size']}, lengths={own['lengths']}"
        where = (own["model"], one.framework, str(own["batch_size"]), own["lengths"], level)
        is_baseline = level == comparison.baseline
        told = (
            pictures.get(own["model"])
            if (level, comparison.baseline) == ("profiled", "fixed")
            else None
        )
        published = "–".join(f"{bound:.2f}×" for bound in told or ())
        speeds.append(
            (*where, *normalised(rate.get((stratum, level)), baseline=is_baseline), published)
        )
        if own["lengths"] == "varying":
            theirs = epochs.get(own["model"], {})
            pairs = zip(
                *(theirs.get(name, ()) for name in (level, comparison.baseline)), strict=False
            )
            before, after = [f"{mine / base:.3f}×" for mine, base in pairs] or ("", "")
            parts = (
                normalised(found.get((stratum, level)), baseline=is_baseline)[:2]
                for found in (first, later)
            )
            (one_ratio, one_interval), (other_ratio, other_interval) = parts
            times.append(
                (*where, one_ratio, one_interval, before, other_ratio, other_interval, after)
            )
    return [_speeds(comparison, speeds, source, size), *_times(comparison, times, source)]


def _speeds(
    comparison: Comparison, lines: Sequence[tuple[str | Cell, ...]], source: str, size: str
) -> Section:
    caption = (
        f"Throughput over that of {comparison.baseline}, of {size} size: above 1 is faster. Published: of networks of pictures, "
        f"from the smallest to the largest. {OTHERS.format(source=source)}"
    )
    over = Column(f"over {comparison.baseline}", numeric=True)
    header = (
        "network",
        "framework",
        "batch",
        "lengths",
        "convolutions",
        over,
        "95 % interval",
        "blocks",
        "published",
    )
    return Section("How convolutions are chosen", caption, header, lines)


def _times(
    comparison: Comparison, lines: Sequence[tuple[str | Cell, ...]], source: str
) -> list[Section]:
    caption = (
        f"Seconds of the first epoch, in which every length is met for the first time, and of a later one, over those of "
        f"{comparison.baseline}: below 1 is faster. {OTHERS.format(source=source)}"
    )
    first, later = (Column(name, numeric=True) for name in ("first epoch", "later epoch"))
    parts = (first, "95 % interval", "published, first", later, "95 % interval", "published, later")
    header = ("network", "framework", "batch", "lengths", "convolutions", *parts)
    return [Section("Convolutions where lengths vary", caption, header, lines)] if lines else []


ANALYSIS = Analysis(tables={35: nodes})  # its studies add the others
