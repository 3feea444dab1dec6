"""Ablations: levels over the baseline beside published figures, graph nodes, and break-even."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy import stats

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.analyses.published import PUBLISHED
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs.environment import medians
from experiments.comparison.runs.pairing import ExclusionCode
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts.findings import Comparison
from experiments.contract import Treatment
from experiments.metrics import outcome

THROUGHPUT = "train/examples_per_second"
FIRST, LATER = "train/first_step_seconds", "train/step_seconds"
EPOCHS = ("train/first_epoch_seconds", "train/epoch_seconds")
# Kind of node, as its metrics are named -> its column.
KINDS = {
    "": "all",
    "nothing_": "nothing",
    "control_": "control",
    "shapes_": "shapes and copies",
    "variables_": "variables",
    "elements_": "element by element",
    "products_": "products",
}
NOT_EQUAL = "not equal"
RATIO = ("95 % interval", "blocks", PUBLISHED)
OTHERS = (
    "Source of the published figures: {source}; TensorFlow 1.15 and PyTorch 1.4 on a P100: another "
    "machine, other versions."
)
LSTM = (
    "Throughput over that of the loop of cells, of {size} size: above 1 is faster. “not equal”: "
    f"the parity gate does not call it the same function, so it is not measured. {OTHERS}"
)
GRAPHS = (
    "Throughput over that of {baseline} with all of its graph optimizers, of {size} size: above 1 "
    "is faster. Published: what it cost to switch four of them off; they removed 55–90 % of the "
    f"nodes, of which more than 78 % computed nothing. {OTHERS}"
)
CONVOLUTIONS = (
    "Throughput over that of {baseline}, of {size} size: above 1 is faster. Published: of networks "
    f"of pictures, from the smallest to the largest. {OTHERS}"
)
VARYING = (
    "Seconds of the first epoch, in which every length is met for the first time, and of a later "
    f"one, over those of {{baseline}}: below 1 is faster. {OTHERS}"
)
NODES = (
    "Nodes of the graph of a training step, with the functions that it calls, before → after "
    "TensorFlow’s graph optimizers; loops are written out after. Nothing: constants, identities, "
    "placeholders, control edges. Counted after all measurements."
)
BREAK_EVEN = (
    "The number of steps after which a compiled program has taken no longer than the eager one, "
    "its compilation (the first step) included. Seconds are medians over the blocks. Steps: the "
    "median over the blocks, with an interval of order statistics, from six blocks on; “never”: a "
    "compiled step is no faster."
)


def ratio_cells(
    comparison: Comparison, stratum: str, level: str, metric: str = THROUGHPUT
) -> tuple[str, str, str]:
    """Return a level's ratio over the baseline, its interval or reason, and its blocks."""
    if level == comparison.baseline:
        return "1", "", ""
    for finding in reversed(comparison.findings):
        row = finding.row
        if (row.metric, row.stratum, row.b) == (metric, stratum, level):
            if row.estimate is None:
                return wording.NONE, row.reason, ""
            interval = wording.interval(finding)
            if not finding.never_varied and row.ci_low is not None and row.ci_high is not None:
                ends = wording.outwards(row.ci_low, row.ci_high)
                interval = wording.DASH.join(map(wording.number, ends))
            return f"{wording.number(row.estimate)}×", interval, str(row.n_blocks)
    return wording.NONE, "", ""


def lstm(
    comparison: Comparison,
    treatments: Iterable[Treatment],
    table: Mapping[tuple[str, str, str], float],
    source: str,
    *,
    size: str,
) -> Section:
    """Return LSTM implementations over the loop of cells.

    Args:
        table: (library, network, implementation) -> published throughput over that of the loop.
    """
    unequal = {
        exclusion.name.rpartition(" · block ")[0]: exclusion.detail
        for exclusion in comparison.excluded
        if exclusion.cause is ExclusionCode.NOT_EQUAL
    }
    rows: list[Line] = []
    for treatment in treatments:
        settings = treatment.settings
        library, model, level = settings["library"], settings["model"], settings["implementation"]
        key = (library, model, level)
        cells = ratio_cells(comparison, f"library={library}, model={model}", level)
        published = f"{table[key]:.2f}×" if key in table else ""
        ratio: tuple[str | Cell, ...] = cells
        if treatment.name in unequal:
            ratio = (Cell(NOT_EQUAL, "worse"), unequal[treatment.name], "")
        rows.append((model, library, level, treatment.framework, *ratio, published))
    header = ("network", "framework", "LSTM", "run as", number("over cells"), *RATIO)
    title = "LSTM implementations over a loop of cells"
    return Section(title, LSTM.format(size=size, source=source), header, rows)


def graphs(
    comparison: Comparison,
    models: Sequence[str],
    programs: Sequence[str],
    table: Mapping[str, str],
    source: str,
    *,
    size: str,
) -> Section:
    """Return programs over TensorFlow's.

    Args:
        table: network -> published cost of switching off all optimizers.
    """
    rows = []
    for model in models:
        for program in programs:
            published = table.get(model, "") if program == "without all" else ""
            ratio = ratio_cells(comparison, f"model={model}", program)
            rows.append((model, program, *ratio, published))
    caption = GRAPHS.format(baseline=comparison.baseline, size=size, source=source)
    header = ("network", "program", number("over all optimizers"), *RATIO)
    return Section("Graph optimizers and compilers", caption, header, rows)


def convolutions(
    comparison: Comparison,
    treatments: Iterable[Treatment],
    pictures: Mapping[str, tuple[float, float]],
    epochs: Mapping[str, Mapping[str, tuple[float, float]]],
    source: str,
    *,
    size: str,
) -> list[Section]:
    """Return throughputs of convolution algorithms, and epochs where lengths vary.

    Args:
        pictures: network -> least and greatest throughput of profiled over fixed.
        epochs: network -> algorithm -> seconds of the first and of a later epoch.
    """
    baseline = comparison.baseline
    speeds, times = [], []
    for treatment in treatments:
        model, batch, lengths, level = (
            str(treatment.settings[name])
            for name in ("model", "batch_size", "lengths", "conv_algorithm")
        )
        stratum = (
            f"framework={treatment.framework}, model={model}, batch_size={batch}, lengths={lengths}"
        )
        labels = (model, treatment.framework, batch, lengths, level)
        bounds = pictures.get(model, ()) if (level, baseline) == ("profiled", "fixed") else ()
        published = wording.DASH.join(f"{bound:.2f}×" for bound in bounds)
        speeds.append((*labels, *ratio_cells(comparison, stratum, level), published))
        if lengths == "varying":
            row, theirs = list(labels), epochs.get(model, {})
            for at, metric in enumerate(EPOCHS):
                row += ratio_cells(comparison, stratum, level, metric)[:2]
                both = level in theirs and baseline in theirs
                row.append(f"{theirs[level][at] / theirs[baseline][at]:.3f}×" if both else "")
            times.append(row)
    names = ("network", "framework", "batch", "lengths", "convolutions")
    facts = {"baseline": baseline, "size": size, "source": source}
    header = (*names, number(f"over {baseline}"), *RATIO)
    sections = [
        Section("How convolutions are chosen", CONVOLUTIONS.format(**facts), header, speeds)
    ]
    if times:
        columns = (
            *(number("first epoch"), "95 % interval", "published, first"),
            *(number("later epoch"), "95 % interval", "published, later"),
        )
        title = "Convolutions where lengths vary"
        sections.append(Section(title, VARYING.format(**facts), (*names, *columns), times))
    return sections


def break_even(comparison: Comparison, pairs: Mapping[str, Sequence[str]]) -> list[Section]:
    """Return after how many steps compiling has paid, for every pair and stratum with a block.

    Args:
        pairs: eager level -> its compiled levels.
    """
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for metric in (FIRST, LATER):
        for value in comparison.values.get(metric, ()):
            key = (value.stratum, value.level, metric)
            values.setdefault(key, {})[value.block] = value.value
    rows: list[Line] = []
    for stratum in dict.fromkeys(stratum for stratum, _, _ in values):
        for eager, compiled in [(name, level) for name in pairs for level in pairs[name]]:
            sides = [
                values.get((stratum, level, metric), {})
                for metric in (FIRST, LATER)
                for level in (compiled, eager)
            ]
            blocks = sorted(set(sides[0]).intersection(*sides[1:]))
            if blocks:
                seconds = np.array([[side[block] for block in blocks] for side in sides])
                rows.append((stratum, compiled, eager, *_break_even_cells(seconds)))
    numbers = ("first step", "eager first step", "later step", "eager later step")
    columns = (*numbers, "steps until it has paid")
    header: Header = (
        "where",
        "compiled",
        "against",
        *map(number, columns),
        "95 % interval",
        "blocks",
    )
    return [Section("When compiling has paid", BREAK_EVEN, header, rows)] if rows else []


def _break_even_cells(columns: np.ndarray) -> tuple[str, ...]:

    def steps(value: float) -> str:
        return "never" if math.isinf(value) else f"{math.ceil(value):,}"

    blocks = columns.shape[1]
    paid = [paid_after(eager, first, slow, fast) for first, eager, fast, slow in columns.T.tolist()]
    estimate = median(paid)
    cells = (wording.NONE, f"none from {wording.blocks(blocks)}")
    if estimate:
        interval = f"{steps(estimate.low)}{wording.DASH}{steps(estimate.high)}"
        cells = (steps(estimate.value), interval)
    seconds = np.median(columns, axis=1).tolist()
    times = (wording.quantity(value, outcome(LATER)) for value in seconds)
    return (*times, *cells, str(blocks))


def paid_after(first: float, first_compiled: float, later: float, later_compiled: float) -> float:
    """Return how many steps take as long compiled as not; 1 if the first is no slower."""
    more, saved = first_compiled - first, later - later_compiled
    if more <= 0:
        return 1.0
    return 1 + more / saved if saved > 0 else math.inf


def median(values: Sequence[float]) -> Estimate | None:
    """Return the median with its interval of order statistics; None of too few values for 95 %."""
    ordered = sorted(values)
    left_out = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return Estimate(middle, ordered[left_out - 1], ordered[-left_out]) if left_out else None


def nodes(evidence: Evidence) -> list[Section]:
    """Return the nodes of a step's graph before and after its optimizers, by kind."""
    comparison, runs, rows = evidence.comparison, evidence.runs, list[Line]()
    if runs is None or "graph/nodes_before" not in runs.columns:
        return []
    for model, of_model in runs.groupby("model"):
        counts = {
            (kind, when): medians(
                of_model, factor=comparison.factor, metric=f"graph/{kind}nodes_{when}"
            )
            for kind in KINDS
            for when in ("before", "after")
        }
        for level in comparison.levels:
            if level in counts["", "before"]:
                cells = (
                    f"{counts[kind, 'before'].get(level, 0):,.0f} → "
                    f"{counts[kind, 'after'].get(level, 0):,.0f}"
                    for kind in KINDS
                )
                rows.append((str(model), level, *cells))
    header = ("network", comparison.factor, *KINDS.values())
    return [Section("Nodes of a step’s graph", NODES, header, rows)] if rows else []
