"""The smallest effect that a campaign could detect, and what limited it: for every headline, from its pairs and its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import number, under
from experiments.comparison.runs import raw as raw_values
from experiments.comparison.runs.raw import WINDOWS, Phase, RawRun
from experiments.comparison.statistics.components import (
    MIN_BLOCKS,
    Components,
    components,
    error_of_steps,
)
from experiments.comparison.verdicts.findings import Finding
from experiments.metrics import Within

PROCESSES, STEPS, APART = "processes", "steps", "apart"
LIMITS = {PROCESSES: "processes", STEPS: "steps", APART: "drift apart"}
# What a part of the spread is called.
PARTS = {
    "block": "lies between blocks",
    "drift": "is drift",
    "process": "lies between processes",
    "apart": "is drift apart",
}
MIN_SHARE = 0.05


@dataclass(frozen=True)
class Steps:
    """SD of the logarithms of the steps inside a process, and the standard error that they leave in its value: medians."""

    sd: float
    error: float


@dataclass(frozen=True)
class Precision:
    """parts: where the spread of the finding's runs comes from. steps: None where no steps were read, or it summarises none."""

    finding: Finding
    parts: Components
    steps: Steps | None

    @property
    def limit(self) -> str:
        """What makes most of the variance of a block's difference: `processes`, `steps` inside them, or a drift `apart`.

        A drift that chance explains (its 95 % interval holds 0) limits nothing: a line fits a few blocks by chance.
        """
        apart = self.parts.apart
        of_steps = min(self.steps.error, self.parts.process) if self.steps else 0.0
        variances = {
            PROCESSES: 2 * (self.parts.process**2 - of_steps**2),
            STEPS: 2 * of_steps**2,
            APART: apart.sd**2 if apart.is_shown else 0.0,
        }
        return max(variances, key=lambda part: variances[part])


def of_findings(findings: Iterable[Finding], raw: Sequence[RawRun]) -> tuple[Precision, ...]:
    """Of every finding with a test. raw: the runs whose steps were read."""
    return tuple(
        Precision(finding, _parts(finding), _steps(finding, raw))
        for finding in findings
        if finding.row.p is not None and len(finding.pairs) >= MIN_BLOCKS
    )


def _parts(finding: Finding) -> Components:
    pairs = sorted(finding.pairs, key=lambda pair: pair.sequence)
    a, b = np.array([pair.a for pair in pairs]), np.array([pair.b for pair in pairs])
    return components(np.log(a), np.log(b)) if finding.row.kind == "ratio" else components(a, b)


def _steps(finding: Finding, raw: Sequence[RawRun]) -> Steps | None:
    row, found = finding.row, []
    for run in raw:
        phase = (
            _phase(run, finding.outcome.within)
            if run.level in (row.a, row.b) and run.stratum == row.stratum
            else None
        )
        seconds = phase.measured / phase.examples[~phase.warmup] if phase else np.empty(0)
        if len(seconds) > 1 and (seconds > 0).all():
            logs = np.log(seconds)
            found.append((float(logs.std(ddof=1)), error_of_steps(logs)))
    return Steps(*np.median(found, axis=0).tolist()) if found else None


def _phase(run: RawRun, within: Within) -> Phase | None:
    """Return what an outcome of this run summarises."""
    if within == "requests":
        return next(iter(raw_values.of_inference(run).values()), None)
    windows = run.phases.get(WINDOWS) if within == "windows" else None
    return (windows or run.phases.get("train")) if within else None


def shares(parts: Components) -> dict[str, float]:
    """The parts of the variance of a run's value, without its level: they add up to 1, or are all 0."""
    variances = {
        "drift": parts.drift.sd**2,
        "block": parts.block**2,
        "process": parts.process**2,
        "apart": parts.apart.sd**2 / 4,
    }
    whole = math.fsum(variances.values())
    return {name: value / whole if whole else 0.0 for name, value in variances.items()}


def of_evidence(evidence: Evidence) -> tuple[Precision, ...]:
    """Return the precision of every headline."""
    return of_findings(wording.headlines(evidence.comparison), evidence.raw)


def smallest(found: Sequence[Precision]) -> str:
    """The smallest effects that these runs could detect; empty without a test."""
    if not found:
        return ""
    by_metric = _by_metric(found)
    told = [
        f"{_told_apart(group)} in {group[0].finding.outcome.label}" for group in by_metric.values()
    ]
    blocks = sorted({one.finding.row.n_blocks for one in found})
    count = (
        wording.blocks(blocks[0])
        if len(blocks) == 1
        else f"{blocks[0]} to {wording.blocks(blocks[-1])}"
    )
    return f"about {wording.joined(told)} (80 % power, {count})"


def sentence(found: Sequence[Precision]) -> str:
    """The smallest effect that these runs could detect, what limits it, and where their spread lies; empty without a test."""
    if not found:
        return ""
    worst = _by_size(next(iter(_by_metric(found).values())))[-1]
    of = f" of {wording.named(worst.finding)}" if len(found) > 1 else ""
    parts = sorted(shares(worst.parts).items(), key=lambda one: -one[1])
    told = wording.joined(
        [f"{100 * share:.0f} % {PARTS[name]}" for name, share in parts if share >= MIN_SHARE]
    )
    return (
        f"Smallest detectable effect: {smallest(found)}. {_limit(worst)}. "
        f"Of the variance of runs{of} {told}; what both sides of a block share cancels."
    )


def _by_metric(found: Sequence[Precision]) -> dict[str, list[Precision]]:
    groups: dict[str, list[Precision]] = {}
    for one in found:
        groups.setdefault(one.finding.row.metric, []).append(one)
    return groups


def _by_size(group: Sequence[Precision]) -> list[Precision]:
    return sorted(group, key=lambda one: one.finding.row.minimum_in_family or 0.0)


def _told_apart(group: Sequence[Precision]) -> str:
    least, most = (
        wording.detectable(one.finding) for one in (_by_size(group)[0], _by_size(group)[-1])
    )
    return most if least == most else f"{least} to {most}"


def _limit(one: Precision) -> str:
    finding, parts = one.finding, one.parts
    if one.limit == STEPS and one.steps:
        return f"The limit is the spread of steps inside a process (SD {wording.spread(one.steps.sd)}): longer runs narrow it"
    if one.limit == APART:
        rise = wording.rise(parts.apart.rise, finding)
        who = f"{finding.row.b} against {finding.row.a}"
        return (
            f"The limit is a drift of {who}, {rise} over the blocks: more blocks do not narrow it"
        )
    return f"The limit is the spread between processes (SD {wording.amount(parts.process, finding)}): more blocks narrow it"


def table(evidence: Evidence) -> list[Section]:
    """What the spread of every headline's runs is made of."""
    names = (
        "smallest detectable effect (80 % power)",
        "between processes",
        "of steps in a process",
        "between blocks",
        "drift",
        "drift apart",
    )
    header: Header = ("outcome", under(""), *map(number, names), "limit")
    rows: list[Line] = [
        (
            *(
                wording.named(one.finding),
                f"{one.finding.row.b} against {one.finding.row.a}",
                wording.detectable(one.finding),
            ),
            wording.amount(one.parts.process, one.finding),
            wording.spread(one.steps.sd) if one.steps else wording.NONE,
            wording.amount(one.parts.block, one.finding),
            *(
                wording.rise(line.rise, one.finding) if line.is_shown else wording.NONE
                for line in (one.parts.drift, one.parts.apart)
            ),
            LIMITS[one.limit],
        )
        for one in of_evidence(evidence)
    ]
    caption = (
        "SDs of one run: between two processes of a block, between steps of one process, between blocks about their drift. Drift "
        "is the rise of a straight line from the first block to the last, of both sides’ mean and, apart, of their difference, "
        "where chance does not explain it (its 95 % interval leaves 0 out). "
        "Drift and blocks are shared by both sides and cancel in the difference; processes and a drift apart do not."
    )
    return [Section("What limited the precision", caption, header, rows)] if rows else []


ANALYSIS = Analysis(
    sentences={10: lambda evidence: list(filter(None, [sentence(of_evidence(evidence))]))},
    tables={60: table},
)
