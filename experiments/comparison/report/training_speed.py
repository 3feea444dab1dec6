"""The published table of training speeds with ours beside it."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparison.report import wording
from experiments.comparison.report.sections import Section
from experiments.comparison.verdicts.findings import Comparison, Finding

METRIC = "train/examples_per_second"
HEADER = ("network", "published, TensorFlow", "published, PyTorch", "published ratio", "ours", "ours: ratio", "95 % interval")


def section(comparison: Comparison, table: Mapping[str, tuple[str, float, float]], source: str, *, size: str) -> Section:
    """table: network -> unit, TensorFlow's and PyTorch's throughput. A line for each network and pair of frameworks that we have."""
    found = [one for one in comparison.findings if one.row.metric == METRIC]
    lines = []
    for model, (unit, tensorflow, pytorch) in table.items():
        ours = [one for one in found if f"model={model}" in one.row.stratum or len(_models(found)) == 1]
        published = (model, f"{tensorflow:g} {unit}", f"{pytorch:g} {unit}", f"{tensorflow / pytorch:.3f}×")
        lines += [(*published, *_ours(one)) for one in ours] or [(*published, "not measured here", "", "")]
    caption = (
        f"TensorFlow's throughput over PyTorch's; ours is that of the second framework over the first, at {size} size. "
        f"Source of the published figures: {source}; TensorFlow 1.15 and PyTorch 1.4 on a P100. Another machine, other versions."
    )
    return Section("Published training speeds, and ours", caption, HEADER, lines)


def _models(found: list[Finding]) -> set[str]:
    return {one.row.stratum for one in found}


def _ours(one: Finding) -> tuple[str, str, str]:
    return f"{one.row.b} over {one.row.a}", wording.effect(one), wording.effect_interval(one)
