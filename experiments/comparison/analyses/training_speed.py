"""The published table of training speeds with ours beside it."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparison.analyses import Analysis
from experiments.comparison.analyses.breakdown import breakdowns
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.verdicts.findings import Comparison, Finding

METRIC = "train/examples_per_second"
HEADER = (
    "network",
    "published, TensorFlow",
    "published, PyTorch",
    "published ratio",
    "ours",
    "our ratio",
    "95 % interval",
)


def section(
    comparison: Comparison,
    table: Mapping[str, tuple[str, float, float]],
    source: str,
    *,
    size: str,
    data: str,
) -> Section:
    """table: network -> unit, TensorFlow's and PyTorch's throughput. A line for each network and compared pair of frameworks.

    data: what ours was trained on, in words.
    """
    found = [one for one in comparison.findings if one.row.metric == METRIC]
    lines = []
    for model, (unit, tensorflow, pytorch) in table.items():
        ours = [_ours(one) for one in found if f"model={model}" in one.row.stratum.split(", ")]
        published = (
            model,
            f"{tensorflow:g} {unit}",
            f"{pytorch:g} {unit}",
            f"{tensorflow / pytorch:.3f}×",
        )
        lines += [(*published, *one) for one in ours or [("not measured here", "", "")]]
    caption = (
        f"Throughput; the published ratio is TensorFlow's over PyTorch's. Ours is of {size} size, trained on {data}. "
        f"Source of the published figures: {source}; TensorFlow 1.15 and PyTorch 1.4 on a P100: another machine, other versions."
    )
    return Section("Published training speeds, and ours", caption, HEADER, lines)


def shares(
    comparison: Comparison, published: Mapping[str, tuple[float, float]], source: str
) -> list[Section]:
    """Of a step, in which a kernel ran: the published table beside ours. published: network -> TensorFlow's and PyTorch's, in %.

    Nothing where no steps were profiled.
    """
    found = [one for one in breakdowns(comparison) if one.step_seconds]
    header = ("network", "published, TensorFlow", "published, PyTorch", *comparison.levels)
    lines = []
    for model, (tensorflow, pytorch) in published.items():
        ours = {
            one.level: one.share("op")
            for one in found
            if f"model={model}" in one.stratum.split(", ")
        }
        told = [
            f"{100 * ours[level]:.2f} %" if level in ours else wording.NONE
            for level in comparison.levels
        ]
        lines += [(model, f"{tensorflow:.2f} %", f"{pytorch:.2f} %", *told)] if ours else []
    caption = (
        "Share of a step in which a kernel ran on the GPU; ours is that of operators where the steps were computed by a CPU. "
        f"Where the profiler does not show all operators one by one, the true share is larger. Source: {source}."
    )
    return (
        [Section("Published shares of kernel time, and ours", caption, header, lines)]
        if lines
        else []
    )


def _ours(one: Finding) -> tuple[str, str, str]:
    estimate = wording.NONE if one.row.estimate is None else f"{one.row.estimate:.3f}×"
    return f"{one.row.b} over {one.row.a}", estimate, wording.interval(one)


ANALYSIS = Analysis()  # its study adds the tables
