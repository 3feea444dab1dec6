"""The published table of training speeds with ours beside it."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.verdicts.findings import Comparison, Finding

METRIC = "train/examples_per_second"
HEADER = ("network", "published, TensorFlow", "published, PyTorch", "published ratio", "ours", "our ratio", "95 % interval")


def section(
    comparison: Comparison, table: Mapping[str, tuple[str, float, float]], source: str, *, size: str, data: str
) -> Section:
    """table: network -> unit, TensorFlow's and PyTorch's throughput. A line for each network and compared pair of frameworks.

    data: what ours was trained on, in words.
    """
    found = [one for one in comparison.findings if one.row.metric == METRIC]
    lines = []
    for model, (unit, tensorflow, pytorch) in table.items():
        ours = [_ours(one) for one in found if f"model={model}" in one.row.stratum.split(", ")]
        published = (model, f"{tensorflow:g} {unit}", f"{pytorch:g} {unit}", f"{tensorflow / pytorch:.3f}×")
        lines += [(*published, *one) for one in ours or [("not measured here", "", "")]]
    caption = (
        f"Throughput; the published ratio is TensorFlow's over PyTorch's. Ours is of {size} size, trained on {data}. "
        f"Source of the published figures: {source}; TensorFlow 1.15 and PyTorch 1.4 on a P100: another machine, other versions."
    )
    return Section("Published training speeds, and ours", caption, HEADER, lines)


def _ours(one: Finding) -> tuple[str, str, str]:
    estimate = wording.NONE if one.row.estimate is None else f"{one.row.estimate:.3f}×"
    return f"{one.row.b} over {one.row.a}", estimate, wording.interval(one)
