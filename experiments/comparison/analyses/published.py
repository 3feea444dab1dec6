"""Published figures in tables with those of the runs."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparison.analyses.breakdown import breakdowns
from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Line, Section
from experiments.comparison.runs.environment import medians
from experiments.comparison.verdicts.findings import Comparison
from experiments.metrics import outcome

THROUGHPUT = "train/examples_per_second"
PUBLISHED = "published, other hardware"
FIGURES = (
    "Other hardware, other versions, often other data: compare directions and ratios, not absolute "
    "figures."
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


def table(evidence: Evidence) -> list[Section]:
    """Return a line for each published figure of a study."""
    rows = [
        (figure["what"], figure["published"], _measured(evidence, figure))
        for figure in evidence.published
    ]
    caption = f"Source: {evidence.source}. {FIGURES}" if evidence.source else FIGURES
    header = ("what", PUBLISHED, "measured here")
    title, hint = "Published, other hardware", f"{len(rows)} figures of others"
    return [Section(title, caption, header, rows, True, hint)] if rows else []


def _measured(evidence: Evidence, figure: Mapping[str, str]) -> str:
    comparison, metric = evidence.comparison, figure.get("metric", "")
    if not metric:
        return "see the verdicts above"
    values: dict[str, float | None] = {}
    for finding in comparison.findings:
        if finding.row.metric == metric:
            values |= {finding.row.a: finding.a_value, finding.row.b: finding.b_value}
    if not values and evidence.runs is not None:
        values |= medians(evidence.runs, factor=comparison.factor, metric=metric)
    model = figure.get("model", "")
    models = {level: comparison.environment.get(level, {}).get("model", model) for level in values}
    same = {level: values[level] for level in values if model in ("", models[level])}
    lines = [
        f"{level}: {wording.quantity(value, outcome(metric))}"
        for level, value in same.items()
        if value is not None
    ]
    missing = "not measured here" if same or not values else "another model here"
    return "; ".join(lines) or missing


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
