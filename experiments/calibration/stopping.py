"""Campaigns that stop when they know: how often they err, and how many blocks they take against a fixed number of them."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.calibration.simulation import (
    BASELINE,
    MAIN,
    MARGIN,
    MOST_FALSE_ALARMS,
    MOST_WRONG_BEYOND,
    MOST_WRONG_EQUIVALENT,
    Claim,
    Noise,
    Share,
    Tails,
    limit,
    share,
    simulate,
)
from experiments.comparison import compare
from experiments.comparison.statistics import power
from experiments.comparison.statistics.sequential import schedule
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison
from experiments.config.settings import MAX_BLOCKS

FIRST_LOOK = 6
MOST_FIXED_POWER = 0.99
MOST_MISSED = 0.05


@dataclass(frozen=True)
class Truth:
    """A machine and what is true on it. gain: at most so many blocks, as a share of a fixed design's; 0: none is promised."""

    noise: Noise
    ratio: float
    gain: float = 0.0


def _noise(name: str, spread: float, tails: Tails = "normal") -> Noise:
    return Noise(f"{name} {100 * spread:.0f} %", spread, tails=tails, metric_correlation=0.0, unrelated=True)


TRUTHS = (
    *(Truth(_noise("run-to-run spread", 0.03), ratio) for ratio in (1.0, 1 + MARGIN, 1.05)),
    *(Truth(_noise("heavy tails", 0.03, "student-t"), ratio) for ratio in (1.0, 1 + MARGIN)),
    Truth(_noise("run-to-run spread", 0.07), 1.1, gain=0.7),
    Truth(_noise("run-to-run spread", 0.14), 1.2, gain=0.7),
)


@dataclass(frozen=True)
class Stops:
    """How campaigns ended whose one primary outcome is the median training step, over the rows of all twelve outcomes.

    settled: campaigns whose primary outcome has a verdict. blocks: their mean number; fixed: how many a campaign of a fixed
    number needs to show the true effect beyond the margin as often, at most in 99 %; None where it does not lie beyond.
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


def calibrate(truths: Sequence[Truth] = TRUTHS, *, campaigns: int = 100, seed: int = 0) -> list[Stops]:
    """The same seed gives the same campaigns. A campaign takes about half a second."""
    return [_stops(truth, campaigns, np.random.default_rng([seed, at])) for at, truth in enumerate(truths)]


def _stops(truth: Truth, campaigns: int, rng: np.random.Generator) -> Stops:
    reports = [_stopped(truth, rng) for _ in range(campaigns)]
    mains = [next(one for one in report.findings if one.row.metric == MAIN) for report in reports]
    settled = share([one.judged for one in mains])
    # chance makes the order of one campaign in a thousand so uneven that nothing in it is comparable
    spread = math.sqrt(float(np.mean([one.shifts.var(ddof=1) for one in mains if one.row.n_blocks])))
    intervals = [(one.row.ci_low or 0.0, one.row.ci_high or math.inf) for one in mains]
    inside = {Decision.EQUIVALENT, Decision.WITHIN_MARGIN}
    return Stops(
        truth,
        campaigns,
        settled,
        blocks=float(np.mean([one.row.n_blocks or MAX_BLOCKS for one in mains])),
        fixed=_fixed(truth.ratio, spread, min(settled.value, MOST_FIXED_POWER)),
        primary_false_alarms=share([_any_different(report, primary=True) for report in reports]),
        exploratory_false_alarms=share([_any_different(report, primary=False) for report in reports]),
        equivalent=share([_rows(report, inside) for report in reports]),
        beyond=share([_rows(report, {Decision.DIFFERENT}) for report in reports]),
        missed=share([not low <= truth.ratio <= high for low, high in intervals]),
    )


def _stopped(truth: Truth, rng: np.random.Generator) -> Comparison:
    """The report of a campaign at the look at which its primary outcome was settled, or at the last."""
    runs = simulate(truth.noise, blocks=MAX_BLOCKS, steps=80, ratio=truth.ratio, rng=rng)
    asked = {"until": "settled", "blocks": str(FIRST_LOOK), "max_blocks": str(MAX_BLOCKS)}
    runs = runs.assign(**{f"params.{name}": text for name, text in asked.items()})
    block = pd.to_numeric(runs["block"])
    looks = schedule(FIRST_LOOK, MAX_BLOCKS)
    judged = (compare(runs[block <= look], baseline=BASELINE, margin=MARGIN, outcomes=[MAIN], primary=[MAIN]) for look in looks)
    last = next((look for look, one in zip(looks, judged, strict=True) if one.findings[0].judged), MAX_BLOCKS)
    return compare(runs[block <= last], baseline=BASELINE, margin=MARGIN, primary=[MAIN])


def _rows(report: Comparison, decisions: Set[Decision]) -> float:
    """The share of a report's rows that are so decided."""
    return sum(one.decision in decisions for one in report.findings) / len(report.findings)


def _any_different(report: Comparison, *, primary: bool) -> bool:
    return any(one.different for one in report.findings if one.primary is primary)


def _fixed(ratio: float, spread: float, wanted: float) -> int | None:
    """The least fixed number of blocks that shows an effect of this size beyond the margin with this power."""
    bound, effect = math.log1p(MARGIN), abs(math.log(ratio))
    if effect <= bound * 1.001 or wanted <= 0:
        return None
    enough = (n for n in range(FIRST_LOOK, 2_000) if power.minimum_for_verdict(bound, spread, n, power=wanted) <= effect)
    return next(enough, None)


def meets(stops: Sequence[Stops]) -> list[Claim]:
    """What is promised, and whether it stands."""
    found = []
    for one in stops:
        where = f"{one.truth.noise.name}, true ratio {one.truth.ratio:g}"
        promised = [(f"{where}: intervals of the primary outcome that leave it out", MOST_MISSED, one.missed)]
        if one.truth.ratio == 1:
            promised += [
                (f"{where}: any false alarm of the primary metric", MOST_FALSE_ALARMS, one.primary_false_alarms),
                (f"{where}: any false alarm of exploratory metrics", MOST_FALSE_ALARMS, one.exploratory_false_alarms),
            ]
        if one.truth.ratio == 1 + MARGIN:
            promised += [
                (f"{where}: rows called equivalent", MOST_WRONG_EQUIVALENT, one.equivalent),
                (f"{where}: rows called beyond the margin", MOST_WRONG_BEYOND, one.beyond),
            ]
        found += [Claim(claim, limit(0.0, most), measured, measured.low <= most) for claim, most, measured in promised]
        if one.truth.gain and one.fixed:
            gain = one.blocks / one.fixed
            wanted = f"≤ {100 * one.truth.gain:g} %"
            found.append(Claim(f"{where}: blocks, of a fixed design's", wanted, Share(gain, gain, gain), gain <= one.truth.gain))
    return found


_COLUMNS = (
    *("settled", "blocks", "fixed design", "false alarms: primary", "exploratory", "equivalent: rows", "beyond: rows"),
    "primary intervals that miss",
)


def as_markdown(stops: Sequence[Stops]) -> str:
    """A line for every truth, then every promise with whether it stands."""
    lines = [f"| noise | true ratio | {' | '.join(_COLUMNS)} |", f"|---|--:|{'--:|' * len(_COLUMNS)}"]
    for one in stops:
        alarms = (one.primary_false_alarms, one.exploratory_false_alarms) if one.truth.ratio == 1 else ("–", "–")
        cells = (one.settled, f"{one.blocks:.1f}", one.fixed or "–", *alarms, one.equivalent, one.beyond, one.missed)
        lines.append(f"| {one.truth.noise.name} | {one.truth.ratio:g} | {' | '.join(map(str, cells))} |")
    lines += ["", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    for claim in meets(stops):
        lines.append(f"| {claim.claim} | {claim.limit} | {claim.measured} | {'holds' if claim.holds else '**does not hold**'} |")
    return "\n".join(lines) + "\n"
