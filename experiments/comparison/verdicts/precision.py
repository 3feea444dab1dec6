"""The smallest effect that a campaign could detect, and what limited it: for every headline, from its pairs and its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.comparison.runs import raw as raw_values
from experiments.comparison.runs.raw import WINDOWS, Phase, RawRun
from experiments.comparison.statistics.components import MIN_BLOCKS, Components, components, error_of_steps
from experiments.comparison.verdicts.findings import Finding

# What is a summary of the steps of one phase.
OF_TRAINING = ("train/step_seconds", "train/examples_per_second", "train/images_per_second")
OF_REQUESTS = ("inference/latency_seconds_p50", "inference/examples_per_second")
PROCESSES, STEPS, APART = "processes", "steps", "apart"


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
        phase = _phase(run, row.metric) if run.level in (row.a, row.b) and run.stratum == row.stratum else None
        seconds = phase.measured / phase.examples[~phase.warmup] if phase else np.empty(0)
        if len(seconds) > 1 and (seconds > 0).all():
            logs = np.log(seconds)
            found.append((float(logs.std(ddof=1)), error_of_steps(logs)))
    return Steps(*np.median(found, axis=0).tolist()) if found else None


def _phase(run: RawRun, metric: str) -> Phase | None:
    if metric in OF_TRAINING:
        windows = run.phases.get(WINDOWS) if metric != OF_TRAINING[0] else None
        return windows or run.phases.get("train")
    return next(iter(raw_values.of_inference(run).values()), None) if metric in OF_REQUESTS else None


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


__all__ = ["APART", "PROCESSES", "STEPS", "Precision", "Steps", "of_findings", "shares"]
