"""Campaigns that stop when they are settled: error rates, and blocks against a fixed design."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.calibration import simulation
from experiments.calibration.simulation import (
    BASELINE,
    MAIN,
    MARGIN,
    MAX_FALSE_ALARMS,
    MAX_WRONG_BEYOND,
    MAX_WRONG_EQUIVALENT,
    Claim,
    Noise,
    Proportion,
    Tails,
    share,
)
from experiments.comparison import compare
from experiments.comparison.statistics.sequential import schedule
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison
from experiments.config.settings import DEFAULT_MAX_BLOCKS

FIRST_LOOK = 6
# Blocks up to which the fixed design is looked for.
MAX_FIXED = 96
MAX_MISSED = 0.05


@dataclass(frozen=True)
class Truth:
    """Machine and its true ratio.

    gain: most blocks that are promised, as a share of a fixed design's; 0: nothing is promised.
    """

    noise: Noise
    ratio: float
    gain: float = 0.0


def _noise(name: str, spread: float, tails: Tails = "normal") -> Noise:
    return Noise(
        f"{name} {100 * spread:.0f} %", spread, tails=tails, metric_correlation=0.0, unrelated=True
    )


TRUTHS = (
    *(Truth(_noise("run-to-run spread", 0.03), ratio) for ratio in (1.0, 1 + MARGIN, 1.05)),
    *(Truth(_noise("heavy tails", 0.03, "student-t"), ratio) for ratio in (1.0, 1 + MARGIN)),
    Truth(_noise("run-to-run spread", 0.07), 1.1, gain=0.7),
    Truth(_noise("run-to-run spread", 0.14), 1.2, gain=0.6),
)


@dataclass(frozen=True)
class Stops:
    """Results of campaigns whose one primary outcome is the median training step.

    Attributes:
        settled: Campaigns whose primary outcome has a verdict.
        blocks: Their mean number of blocks.
        fixed: Least fixed number of blocks with which the same campaigns have a verdict as often;
            None if the true effect does not lie beyond the margin.
        primary_false_alarms, exploratory_false_alarms: Reports with any difference in the family;
            false only if the true ratio is 1.
        equivalent, beyond: Rows with these verdicts; wrong at the margin.
        missed: Intervals of the primary outcome that leave the true ratio out.
    """

    truth: Truth
    campaigns: int
    settled: Proportion
    blocks: float
    fixed: int | None
    primary_false_alarms: Proportion
    exploratory_false_alarms: Proportion
    equivalent: Proportion
    beyond: Proportion
    missed: Proportion


def calibrate(
    truths: Sequence[Truth] = TRUTHS, *, campaigns: int = 100, seed: int = 0
) -> list[Stops]:
    """Simulate campaigns of each truth, the same for the same seed; half a second each."""
    return [
        _stops(truth, campaigns, np.random.default_rng([seed, at]))
        for at, truth in enumerate(truths)
    ]


def _stops(truth: Truth, campaigns: int, rng: np.random.Generator) -> Stops:
    most = MAX_FIXED if _beyond(truth.ratio) else DEFAULT_MAX_BLOCKS
    machines = [simulate(truth, most, rng) for _ in range(campaigns)]
    reports = [_stopped(runs) for runs in machines]
    mains = [simulation._main(report) for report in reports]
    settled = share([main.judged for main in mains])
    intervals = [(main.row.ci_low or 0.0, main.row.ci_high or math.inf) for main in mains]
    inside = {Decision.EQUIVALENT, Decision.WITHIN_MARGIN}
    return Stops(
        truth,
        campaigns,
        settled,
        blocks=float(np.mean([main.row.n_blocks for main in mains])),
        fixed=_fixed(machines, settled.value) if _beyond(truth.ratio) else None,
        primary_false_alarms=share([_any_different(report, primary=True) for report in reports]),
        exploratory_false_alarms=share(
            [_any_different(report, primary=False) for report in reports]
        ),
        equivalent=share([_rows(report, inside) for report in reports]),
        beyond=share([_rows(report, {Decision.DIFFERENT}) for report in reports]),
        missed=share([not low <= truth.ratio <= high for low, high in intervals]),
    )


def simulate(truth: Truth, blocks: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return the runs of a simulated campaign of twelve metrics, if the noise names no number."""
    return simulation._table(simulation._campaign(truth.noise, blocks, 12, 80, truth.ratio, rng))


def _stopped(runs: pd.DataFrame) -> Comparison:
    """Return the report at the look that settles the primary outcome, or at the last."""
    settings = {
        "until": "settled",
        "blocks": str(FIRST_LOOK),
        "max_blocks": str(DEFAULT_MAX_BLOCKS),
    }
    runs = runs.assign(**{f"params.{name}": text for name, text in settings.items()})
    looks = schedule(FIRST_LOOK, DEFAULT_MAX_BLOCKS)
    last = next((look for look in looks if _judged(runs, look)), DEFAULT_MAX_BLOCKS)
    return compare(_first(runs, last), baseline=BASELINE, margin=MARGIN, primary=[MAIN])


def _judged(runs: pd.DataFrame, blocks: int) -> bool:
    """Return whether the primary outcome has a verdict after these blocks."""
    report = compare(
        _first(runs, blocks), baseline=BASELINE, margin=MARGIN, outcomes=[MAIN], primary=[MAIN]
    )
    return report.findings[0].judged


def _first(runs: pd.DataFrame, blocks: int) -> pd.DataFrame:
    return runs[pd.to_numeric(runs["block"]) <= blocks]


def _rows(report: Comparison, decisions: Set[Decision]) -> float:
    """Return the share of a report's rows with one of these decisions."""
    return sum(finding.decision in decisions for finding in report.findings) / len(report.findings)


def _any_different(report: Comparison, *, primary: bool) -> bool:
    return any(finding.different for finding in report.findings if finding.primary is primary)


def _beyond(ratio: float) -> bool:
    return abs(math.log(ratio)) > math.log1p(MARGIN) * 1.001


def _fixed(machines: Sequence[pd.DataFrame], target: float) -> int | None:
    """Return the least fixed number of blocks that settles this share of campaigns.

    None if `MAX_FIXED` blocks do not.
    """

    def enough(blocks: int) -> bool:
        return float(np.mean([_judged(runs, blocks) for runs in machines])) >= target

    least = bisect.bisect_left(range(MAX_FIXED + 1), True, lo=FIRST_LOOK, key=enough)
    return least if least <= MAX_FIXED else None


def meets(stops: Sequence[Stops]) -> list[Claim]:
    """Return the promises, and whether they hold."""
    claims = []
    for stop in stops:
        where = f"{stop.truth.noise.name}, true ratio {stop.truth.ratio:g}"
        promised = [
            (
                f"{where}: intervals of the primary outcome that leave it out",
                MAX_MISSED,
                stop.missed,
            )
        ]
        if stop.truth.ratio == 1:
            promised += [
                (
                    f"{where}: any false alarm of the primary metric",
                    MAX_FALSE_ALARMS,
                    stop.primary_false_alarms,
                ),
                (
                    f"{where}: any false alarm of exploratory metrics",
                    MAX_FALSE_ALARMS,
                    stop.exploratory_false_alarms,
                ),
            ]
        if stop.truth.ratio == 1 + MARGIN:
            promised += [
                (f"{where}: rows called equivalent", MAX_WRONG_EQUIVALENT, stop.equivalent),
                (f"{where}: rows called beyond the margin", MAX_WRONG_BEYOND, stop.beyond),
            ]
        claims += [
            Claim(claim, f"≤ {100 * most:g} %", measured, measured.low <= most)
            for claim, most, measured in promised
        ]
        if stop.truth.gain and stop.fixed:
            gain = stop.blocks / stop.fixed
            claims.append(
                Claim(
                    f"{where}: blocks, of a fixed design's",
                    f"≤ {100 * stop.truth.gain:g} %",
                    Proportion(gain, gain, gain),
                    gain <= stop.truth.gain,
                )
            )
    return claims


_COLUMNS = (
    *(
        "settled",
        "blocks",
        "fixed design",
        "false alarms: primary",
        "exploratory",
        "equivalent: rows",
        "beyond: rows",
    ),
    "primary intervals that miss",
)


def as_markdown(stops: Sequence[Stops]) -> str:
    """Return a line for each truth, then the promises and whether they hold."""
    lines = [
        f"| noise | true ratio | {' | '.join(_COLUMNS)} |",
        f"|---|--:|{'--:|' * len(_COLUMNS)}",
    ]
    for stop in stops:
        alarms = (
            (stop.primary_false_alarms, stop.exploratory_false_alarms)
            if stop.truth.ratio == 1
            else ("–", "–")
        )
        cells = (
            stop.settled,
            f"{stop.blocks:.1f}",
            stop.fixed or "–",
            *alarms,
            stop.equivalent,
            stop.beyond,
            stop.missed,
        )
        lines.append(
            f"| {stop.truth.noise.name} | {stop.truth.ratio:g} | {' | '.join(map(str, cells))} |"
        )
    lines += ["", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    for claim in meets(stops):
        holds = "holds" if claim.holds else "**does not hold**"
        lines.append(f"| {claim.claim} | {claim.limit} | {claim.measured} | {holds} |")
    return "\n".join(lines) + "\n"
