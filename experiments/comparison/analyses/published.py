"""Published figures in tables with those of the runs, and the published procedure on the runs.

The procedure is applied to the steps of one run a side, and shown with the verdict, not as it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.comparison.analyses.breakdown import breakdowns
from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs.environment import medians
from experiments.comparison.runs.raw import Phase, RawRun, of_inference
from experiments.comparison.statistics.significance import paper_procedure
from experiments.comparison.verdicts.decision import ALPHA
from experiments.comparison.verdicts.findings import Comparison, grouped
from experiments.metrics import outcome

THROUGHPUT = "train/examples_per_second"
PUBLISHED = "published, other hardware"
MAX_EFFECTS = 6  # of an outcome, such as of many strata
FIGURES = (
    "Other hardware, other versions, often other data: only directions and ratios can be compared."
)
SPEEDS = (
    "Throughput; the published ratio is TensorFlow's over PyTorch's. Ours is of {size} size, "
    "trained on {data}. Source of the published figures: {source}; TensorFlow 1.15 and PyTorch 1.4 "
    "on a P100: another machine, other versions."
)
SHARES = (
    "Share of a step in which a kernel ran on the GPU; ours is that of operators where the steps "
    "were computed by a CPU. Where the profiler does not show all operators one by one, the true "
    "share is larger. Source: {source}."
)

UNJUDGED = "not judged here"
PROCEDURE = (
    "Not evidence: the verdicts do not use it. The steps of one process per side are tested as if "
    "they were independent. Whatever slows a process slows all of its steps, so their number says "
    "nothing about another run. In simulation (runs that vary by 3 %, steps with autocorrelation "
    "0.5) the paired Wilcoxon test on steps calls two identical systems different in 85 % of cases "
    "instead of 5 %. Kolmogorov-Smirnov with a mean and deviation estimated from the same values "
    "is no valid test of normality: it rejects 0 % of normal and 4 % of exponential samples of 20. "
    "Normality tests have the level’s p, then its baseline’s. The block is the first that has "
    "steps of both sides."
)


def table(evidence: Evidence) -> list[Section]:
    """Return a line for each outcome of which a study has published figures, with ours as ratios.

    Absolute figures of other hardware say nothing about ours.
    """
    figures: dict[tuple[str, str], list[str]] = {}
    for figure in evidence.published:
        key = (figure.get("metric", ""), figure.get("model", ""))
        figures.setdefault(key, []).append(f"{figure['what']}: {figure['published']}")
    rows = [("; ".join(texts), _measured(evidence, *key)) for key, texts in figures.items()]
    caption = f"Source: {evidence.source}. {FIGURES}" if evidence.source else FIGURES
    title, hint = "Published, other hardware", f"{len(evidence.published)} figures of others"
    return [Section(title, caption, (PUBLISHED, "here"), rows, True, hint)] if rows else []


def _measured(evidence: Evidence, metric: str, model: str) -> str:
    """Return each level's effect against the baseline, or the ratio of their medians."""
    comparison, baseline = evidence.comparison, evidence.comparison.baseline
    if not metric:
        return "see the verdicts above"
    of_metric = [finding for finding in comparison.findings if finding.row.metric == metric]
    effects = {
        ", ".join(filter(None, (finding.row.b, finding.row.stratum))): wording.effect(finding)
        for finding in of_metric
        if finding.row.estimate is not None
    }
    if not of_metric and evidence.runs is not None:
        values = medians(evidence.runs, factor=comparison.factor, metric=metric)
        effects = {
            f"{level} over {baseline}": f"{value / values[baseline]:.2f}×"
            for level, value in values.items()
            if level != baseline and values.get(baseline)
        }
    models = {facts.get("model", model) for facts in comparison.environment.values()}
    if effects and model and model not in models:
        return "another model here"
    if not effects:
        sides = ((finding.a_value, finding.b_value) for finding in of_metric)
        is_measured = any(None not in pair for pair in sides)
        return "measured, not compared" if is_measured else "not measured here"
    texts = [f"{name}: {effect}" for name, effect in effects.items()]
    return "; ".join(wording.shortened(texts, MAX_EFFECTS))


def speeds(
    comparison: Comparison,
    published: Mapping[str, tuple[str, float, float]],
    source: str,
    *,
    size: str,
    data: str,
) -> Section:
    """Return training speeds, a line for each network and pair of frameworks.

    Args:
        published: network -> unit, TensorFlow's and PyTorch's throughput.
        data: name of the training data.
    """
    rows: list[Line] = []
    for model, (unit, tensorflow, pytorch) in published.items():
        ratio = f"{tensorflow / pytorch:.3f}×"
        labels = (model, f"{tensorflow:g} {unit}", f"{pytorch:g} {unit}", ratio)
        results = [
            (
                f"{finding.row.b} over {finding.row.a}",
                wording.NONE if finding.row.estimate is None else f"{finding.row.estimate:.3f}×",
                wording.interval(finding),
            )
            for finding in comparison.findings
            if finding.row.metric == THROUGHPUT
            and f"model={model}" in finding.row.stratum.split(", ")
        ]
        rows += [(*labels, *cells) for cells in results or [("not measured here", "", "")]]
    header = (
        *("network", "published, TensorFlow", "published, PyTorch", "published ratio"),
        *("ours", "our ratio", "95 % interval"),
    )
    caption = SPEEDS.format(size=size, data=data, source=source)
    return Section("Published training speeds, and ours", caption, header, rows)


def shares(
    comparison: Comparison, published: Mapping[str, tuple[float, float]], source: str
) -> list[Section]:
    """Return the share of a step in which a kernel ran, if steps were profiled.

    Args:
        published: network -> TensorFlow's and PyTorch's share in percent.
    """
    rows: list[Line] = []
    for model, theirs in published.items():
        ours = {
            breakdown.level: f"{100 * breakdown.share('op'):.2f} %"
            for breakdown in breakdowns(comparison)
            if breakdown.step_seconds and f"model={model}" in breakdown.stratum.split(", ")
        }
        if ours:
            cells = [ours.get(level, wording.NONE) for level in comparison.levels]
            rows.append((model, *(f"{share:.2f} %" for share in theirs), *cells))
    header = ("network", "published, TensorFlow", "published, PyTorch", *comparison.levels)
    title, caption = "Published shares of kernel time, and ours", SHARES.format(source=source)
    return [Section(title, caption, header, rows)] if rows else []


def _procedure_rows(comparison: Comparison, raw: Sequence[RawRun]) -> Iterator[Line]:
    """Yield training and every inference batch size of every pair, from the first whole block."""
    for (stratum, a, b), group in grouped(comparison.findings).items():
        verdicts = {finding.row.metric: finding.row.verdict for finding in group}
        steps: dict[str, dict[str, dict[str, Phase]]] = {}
        for run in raw:
            if run.stratum == stratum and run.level in (a, b):
                for metric, phase in _phases(run):
                    steps.setdefault(metric, {}).setdefault(run.block, {})[run.level] = phase
        for metric, blocks in steps.items():
            for block, sides in blocks.items():
                if len(sides) < 2 or not all(len(side.measured) for side in sides.values()):
                    continue
                if tests := paper_procedure(sides[a].measured, sides[b].measured):
                    n_steps, normality, wilcoxon_p = tests
                    yield (
                        *(outcome(metric).label, stratum, f"{b} against {a}", block),
                        str(n_steps),
                        *("; ".join(map(wording.p_value, reversed(both))) for both in normality),
                        wording.p_value(wilcoxon_p),
                        "significant" if wilcoxon_p < ALPHA else "not significant",
                        verdicts.get(metric, UNJUDGED),
                    )
                    break


def _phases(run: RawRun) -> Iterator[tuple[str, Phase]]:
    if "train" in run.phases:
        yield "train/step_seconds", run.phases["train"]
    for at, (size, phase) in enumerate(of_inference(run).items()):
        yield f"inference/{f'batch_{size}/' if at else ''}latency_seconds_p50", phase


def procedure(evidence: Evidence) -> list[Section]:
    """Return a line for each pair, if the protocol is that of the papers."""
    if evidence.protocol != "paper":
        return []
    numbers = map(number, ("steps", "p, KS", "p, Lilliefors", "p, Shapiro"))
    header: Header = (
        *("outcome", "stratum", "pair", "block"),
        *numbers,
        *(number("p, Wilcoxon on steps"), "it says", "over all blocks"),
    )
    lines = list(_procedure_rows(evidence.comparison, evidence.raw))
    return (
        [
            Section(
                "The papers’ procedure, for comparison only",
                PROCEDURE,
                header,
                lines,
                True,
                "not what the verdicts rest on",
            )
        ]
        if lines
        else []
    )
