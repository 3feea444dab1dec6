"""Campaigns that stop when they know: how often they err, and how many blocks they take against a fixed number of them."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.calibration.simulation import (
    BASELINE,
    MAIN,
    MARGIN,
    MAX_FALSE_ALARMS,
    MAX_WRONG_BEYOND,
    MAX_WRONG_EQUIVALENT,
    Claim,
    Noise,
    Share,
    Tails,
    limit,
    share,
    simulate,
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
    """A machine and what is true on it. gain: at most so many blocks, as a share of a fixed design's; 0: none is promised."""

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
    """How campaigns ended whose one primary outcome is the median training step, over the rows of all twelve outcomes.

    settled: campaigns whose primary outcome has a verdict. blocks: their mean number; fixed: the least number with which the same
    campaigns, had it been fixed, have a verdict as often; None where the true effect does not lie beyond the margin.
    primary_false_alarms, exploratory_false_alarms: reports with any difference in the family; false only where there is none.
    equivalent, beyond: rows called so; wrong at the margin. missed: intervals of the primary outcome that leave the truth out.
    """

    truth: Truth
    campaigns: int
    settled: Share
    blocks: float
    fixed: int | None
    primary_false_alarms: Share
    exploratory_false_alarms: Share
    equivalent: Share
    beyond: Share
    missed: Share


def calibrate(
    truths: Sequence[Truth] = TRUTHS, *, campaigns: int = 100, seed: int = 0
) -> list[Stops]:
    """The same seed gives the same campaigns. A campaign takes about half a second."""
    return [
        _stops(truth, campaigns, np.random.default_rng([seed, at]))
        for at, truth in enumerate(truths)
    ]


def _stops(truth: Truth, campaigns: int, rng: np.random.Generator) -> Stops:
    most = MAX_FIXED if _beyond(truth.ratio) else DEFAULT_MAX_BLOCKS
    machines = [
        simulate(truth.noise, blocks=most, steps=80, ratio=truth.ratio, rng=rng)
        for _ in range(campaigns)
    ]
    reports = [_stopped(runs) for runs in machines]
    mains = [next(one for one in report.findings if one.row.metric == MAIN) for report in reports]
    settled = share([one.judged for one in mains])
    intervals = [(one.row.ci_low or 0.0, one.row.ci_high or math.inf) for one in mains]
    inside = {Decision.EQUIVALENT, Decision.WITHIN_MARGIN}
    return Stops(
        truth,
        campaigns,
        settled,
        blocks=float(np.mean([one.row.n_blocks for one in mains])),
        fixed=_fixed(machines, settled.value) if _beyond(truth.ratio) else None,
        primary_false_alarms=share([_any_different(report, primary=True) for report in reports]),
        exploratory_false_alarms=share(
            [_any_different(report, primary=False) for report in reports]
        ),
        equivalent=share([_rows(report, inside) for report in reports]),
        beyond=share([_rows(report, {Decision.DIFFERENT}) for report in reports]),
        missed=share([not low <= truth.ratio <= high for low, high in intervals]),
    )


def _stopped(runs: pd.DataFrame) -> Comparison:
    """The report of a campaign at the look at which its primary outcome was settled, or at the last."""
    asked = {"until": "settled", "blocks": str(FIRST_LOOK), "max_blocks": str(DEFAULT_MAX_BLOCKS)}
    runs = runs.assign(**{f"params.{name}": text for name, text in asked.items()})
    looks = schedule(FIRST_LOOK, DEFAULT_MAX_BLOCKS)
    last = next((look for look in looks if _judged(runs, look)), DEFAULT_MAX_BLOCKS)
    return compare(_first(runs, last), baseline=BASELINE, margin=MARGIN, primary=[MAIN])


def _judged(runs: pd.DataFrame, blocks: int) -> bool:
    """Whether the primary outcome has a verdict after so many blocks."""
    found = compare(
        _first(runs, blocks), baseline=BASELINE, margin=MARGIN, outcomes=[MAIN], primary=[MAIN]
    )
    return found.findings[0].judged


def _first(runs: pd.DataFrame, blocks: int) -> pd.DataFrame:
    return runs[pd.to_numeric(runs["block"]) <= blocks]


def _rows(report: Comparison, decisions: Set[Decision]) -> float:
    """The share of a report's rows that are so decided."""
    return sum(one.decision in decisions for one in report.findings) / len(report.findings)


def _any_different(report: Comparison, *, primary: bool) -> bool:
    return any(one.different for one in report.findings if one.primary is primary)


def _beyond(ratio: float) -> bool:
    return abs(math.log(ratio)) > math.log1p(MARGIN) * 1.001


def _fixed(machines: Sequence[pd.DataFrame], wanted: float) -> int | None:
    """The least fixed number of blocks after which this share of campaigns has a verdict, by the same code; None beyond most."""

    def enough(blocks: int) -> bool:
        return float(np.mean([_judged(runs, blocks) for runs in machines])) >= wanted

    least = bisect.bisect_left(range(MAX_FIXED + 1), True, lo=FIRST_LOOK, key=enough)
    return least if least <= MAX_FIXED else None


def meets(stops: Sequence[Stops]) -> list[Claim]:
    """What is promised, and whether it stands."""
    found = []
    for one in stops:
        where = f"{one.truth.noise.name}, true ratio {one.truth.ratio:g}"
        promised = [
            (f"{where}: intervals of the primary outcome that leave it out", MAX_MISSED, one.missed)
        ]
        if one.truth.ratio == 1:
            promised += [
                (
                    f"{where}: any false alarm of the primary metric",
                    MAX_FALSE_ALARMS,
                    one.primary_false_alarms,
                ),
                (
                    f"{where}: any false alarm of exploratory metrics",
                    MAX_FALSE_ALARMS,
                    one.exploratory_false_alarms,
                ),
            ]
        if one.truth.ratio == 1 + MARGIN:
            promised += [
                (f"{where}: rows called equivalent", MAX_WRONG_EQUIVALENT, one.equivalent),
                (f"{where}: rows called beyond the margin", MAX_WRONG_BEYOND, one.beyond),
            ]
        found += [
            Claim(claim, limit(0.0, most), measured, measured.low <= most)
            for claim, most, measured in promised
        ]
        if one.truth.gain and one.fixed:
            gain = one.blocks / one.fixed
            wanted = f"≤ {100 * one.truth.gain:g} %"
            found.append(
                Claim(
                    f"{where}: blocks, of a fixed design's",
                    wanted,
                    Share(gain, gain, gain),
                    gain <= one.truth.gain,
                )
            )
    return found


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
    """A line for every truth, then every promise with whether it stands."""
    lines = [
        f"| noise | true ratio | {' | '.join(_COLUMNS)} |",
        f"|---|--:|{'--:|' * len(_COLUMNS)}",
    ]
    for one in stops:
        alarms = (
            (one.primary_false_alarms, one.exploratory_false_alarms)
            if one.truth.ratio == 1
            else ("–", "–")
        )
        cells = (
            one.settled,
            f"{one.blocks:.1f}",
            one.fixed or "–",
            *alarms,
            one.equivalent,
            one.beyond,
            one.missed,
        )
        lines.append(
            f"| {one.truth.noise.name} | {one.truth.ratio:g} | {' | '.join(map(str, cells))} |"
        )
    lines += ["", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    for claim in meets(stops):
        lines.append(
            f"| {claim.claim} | {claim.limit} | {claim.measured} | {'holds' if claim.holds else '**does not hold**'} |"
        )
    return "\n".join(lines) + "\n"
