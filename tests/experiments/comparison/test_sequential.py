"""Campaigns that stop when they are settled: published boundaries, p and intervals at each look."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.runs import looks as looks_of
from experiments.comparison.statistics import autocorrelation, sequential, significance
from experiments.comparison.statistics.sequential import FIXED, Looks, batches, schedule
from experiments.comparison.verdicts.findings import Finding
from tests.experiments.comparison.campaigns import STEP

EVERY = tuple(range(6, 49))
BATCHES = (6, 9, 12, 18, 24, 36, 48)


def after(looks: int, most: int = 48) -> Looks:
    """Return the first looks of a campaign of at most `most` blocks, which begins with six."""
    return Looks(schedule(6, most)[:looks], (most,) * looks)


def boundary(information: Sequence[float], spent: Sequence[float]) -> list[float]:
    """Return the critical |z| of each look at which a Brownian motion has spent its error rate."""
    critical, paths = list[float](), sequential._start(1)
    steps = zip(pairwise((0.0, *information)), pairwise((0.0, *spent)), strict=True)
    for (before, now), (sooner, later) in steps:
        step = math.sqrt(now - before)
        edges = sequential._edges(paths, step, np.array([later - sooner]))
        critical.append(float(edges[0]) / math.sqrt(now))
        paths = sequential._onward(paths, step, edges)
    return critical


def spent_by(information: Sequence[float], critical: Sequence[float]) -> list[float]:
    """Return the chance that |z| was beyond its limit by each look (multivariate normal)."""
    shares = []
    for count in range(1, len(critical) + 1):
        at, limits = np.asarray(information[:count], dtype=float), np.asarray(critical[:count])
        correlation = np.sqrt(np.minimum.outer(at, at) / np.maximum.outer(at, at))
        inside = stats.multivariate_normal(
            np.zeros(count), correlation, seed=0, abseps=1e-7, releps=1e-7, maxpts=400_000
        )
        shares.append(1 - float(inside.cdf(limits, lower_limit=-limits)))
    return shares


# Jennison and Turnbull 2000, tables 2.1 (Pocock) and 2.3 (O'Brien and Fleming), two-sided 5 %,
# equally spaced looks
@pytest.mark.parametrize(
    ("looks", "pocock", "obrien_fleming"), [(2, 2.178, 1.977), (4, 2.361, 2.024), (5, 2.413, 2.040)]
)
def test_published_boundaries_spend_five_percent(
    looks: int, pocock: float, obrien_fleming: float
) -> None:
    information = list(range(1, looks + 1))
    for published in (
        [pocock] * looks,
        [obrien_fleming * math.sqrt(looks / look) for look in information],
    ):
        spent = spent_by(information, published)
        assert spent[-1] == pytest.approx(0.05, abs=1e-4)  # three decimals of the tables
        assert boundary(information, spent) == pytest.approx(published, abs=1e-3)


# Lan and DeMets 1983 with the spending functions of O'Brien and Fleming's and of Pocock's type,
# as DeMets and Lan 1994 and the programs of Reboussin et al. 2000 list them
@pytest.mark.parametrize(
    ("spent", "published"),
    [
        (
            lambda t: 4 * stats.norm.sf(stats.norm.isf(0.0125) / np.sqrt(t)),
            [4.8769, 3.3569, 2.6803, 2.2898, 2.0310],
        ),
        (lambda t: 0.05 * np.log(1 + (math.e - 1) * t), [2.438, 2.427, 2.410, 2.397, 2.386]),
    ],
)
def test_spending_has_the_published_boundaries(spent: object, published: list[float]) -> None:
    at = np.arange(1, 6) / 5
    assert boundary(at, spent(at)) == pytest.approx(published, abs=6e-4)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("spread", "first", "most", "looks"),
    [
        (schedule, 6, 48, EVERY),
        (schedule, 46, 54, (46, 47, 48, 50, 52, 54)),
        (schedule, 95, 101, (95, 98, 101)),
        (schedule, 7, 9, (7, 8, 9)),
        (schedule, 6, 6, (6,)),
        (batches, 6, 48, BATCHES),
        (batches, 12, 40, (12, 18, 24, 36, 40)),
        (batches, 7, 10, (7, 10)),
        (batches, 6, 6, (6,)),
        (batches, 7, 22, (7, 11, 14, 21, 22)),
    ],
)
def test_looks_are_at_every_block_then_every_24th_part_or_in_batches(
    spread: Callable[[int, int], tuple[int, ...]], first: int, most: int, looks: tuple[int, ...]
) -> None:
    assert spread(first, most) == looks


def test_extended_campaign_spends_the_rest() -> None:
    shares = [math.log(1 + (math.e - 1) * blocks / 18) for blocks in (6, 12)]
    assert Looks((6, 12), (18, 18)).spent == pytest.approx(shares)
    extended = Looks((6, 12, 24, 36), (18, 18, 36, 36)).spent
    # of what 12 blocks of 18 leave, 24 of 36 spend the share that lies between 12 and 24 of 36
    third, two_thirds = (math.log(1 + (math.e - 1) * share) for share in (1 / 3, 2 / 3))
    assert extended == pytest.approx(
        [*shares, shares[1] + (1 - shares[1]) * (two_thirds - third) / (1 - third), 1]
    )


def test_p_is_the_error_rate_of_its_level() -> None:
    for looks in map(after, (1, 2, 7, 24, 43)):
        rates = sequential._RATES
        assert looks.p(sequential._state(looks).levels) == pytest.approx(rates, rel=1e-9)
        assert looks.p(looks.level(0.05)) == pytest.approx(0.05, rel=1e-12)
        assert looks.one_sided(looks.level(0.1) / 2) == pytest.approx(0.05, rel=1e-12)
        assert (np.diff(looks.p(np.geomspace(1e-40, 1, 200))) > 0).all()
        assert looks.p(1e-40) > 1e-40
        assert looks.p(1.0) == 1.0


def frame(
    shifts: Sequence[float],
    most: Sequence[int] | int = 48,
    until: str = "settled",
    campaign: str = "c",
) -> pd.DataFrame:
    """Return a campaign of two levels with these log-ratios, block by block."""
    planned = [most] * len(shifts) if isinstance(most, int) else most
    return pd.DataFrame(
        {
            **{
                "run_id": f"{campaign}{level}{block}",
                "status": "FINISHED",
                "framework": level,
                "block": str(block),
            },
            **{
                "campaign": campaign,
                "params.until": until,
                "params.blocks": "6",
                "params.max_blocks": str(limit),
            },
            STEP: math.exp(shift if level == "b" else 0.0),
        }
        for block, (shift, limit) in enumerate(zip(shifts, planned, strict=True), start=1)
        for level in ("a", "b")
    )


def judged(table: pd.DataFrame) -> Finding:
    return compare(table, baseline="a", outcomes=[STEP]).findings[0]


@pytest.mark.parametrize("blocks", [6, 12, 24])
def test_row_has_the_interval_and_p_of_its_look(blocks: int) -> None:
    shifts = np.random.default_rng(blocks).normal(0.02, 0.03, blocks)
    finding, looks = judged(frame(shifts.tolist())), after(EVERY.index(blocks) + 1)
    mean = autocorrelation.distributions_of([shifts])[0]
    assert finding.looks == looks
    assert finding.row.p == pytest.approx(float(looks.p(mean.p())))
    interval = np.log([finding.row.ci_low, finding.row.ci_high])
    expected = list(map(float, mean.interval(looks.confidence)))
    assert interval == pytest.approx(expected)
    fixed = judged(frame(shifts.tolist(), until="fixed"))
    assert fixed.row.p == pytest.approx(float(mean.p()))
    assert fixed.row.ci_low is not None
    assert finding.row.ci_low is not None
    assert finding.row.ci_low < fixed.row.ci_low


def test_equivalence_has_the_level_of_the_look() -> None:
    """The limit is the SD at which two one-sided tests just lie within the margin."""
    looks, bound = after(7), math.log1p(0.03)
    signs = np.tile([1.0, -1.0], 6)
    limit = bound / float(
        autocorrelation.distributions_of([signs])[0].interval(1 - looks.level(0.1))[1]
    )
    for sd, equivalent in ((0.999 * limit, True), (1.001 * limit, False)):
        row = judged(frame((sd * signs).tolist())).row
        assert (row.equivalent, row.verdict == "equivalent") == (equivalent, equivalent)


def test_looks_follow_from_the_settings_of_runs() -> None:
    extended = frame([0.0] * 14, most=[8] * 8 + [36] * 6)
    assert looks_of.looks_of_runs(extended) == Looks(tuple(range(6, 15)), (8,) * 3 + (36,) * 6)
    assert looks_of.looks_of_runs(frame([0.0] * 14, until="fixed")) == FIXED
    both = pd.concat([frame([0.0] * 12), frame([0.0] * 8, campaign="d")])
    assert looks_of.looks_of_runs(both) == after(3), "the looks with the widest intervals"
    assert looks_of.looks_of_runs(both.drop(columns="params.until")) == FIXED


def test_recorded_looks_replace_planned_ones() -> None:
    """Looks of a cluster or of an earlier plan; a report in between is one look more."""
    runs = frame([0.0] * 14)
    runs["tags.looks"] = [
        {9: "6", 10: "6,9", 14: "6,9,12"}.get(int(block)) for block in runs["block"]
    ]
    assert looks_of.looks_of_runs(runs).blocks == (6, 9, 12, 14)


def t_campaigns(
    truth: float, sd: float, margin: float, count: int, most: int = 48
) -> tuple[float, float, float]:
    """Return the shares of campaigns that ever differ, whose interval misses, that are equivalent.

    They are plain t statistics of normal log-ratios, at every look.
    """
    drawn = np.random.default_rng(7).normal(truth, sd, (count, most))
    different, missed, alike = (np.zeros(count, dtype=bool) for _ in range(3))
    for number, blocks in enumerate(schedule(6, most), start=1):
        looks = after(number, most)
        mean, error = drawn[:, :blocks].mean(axis=1), stats.sem(drawn[:, :blocks], axis=1)
        half = stats.t.ppf((1 + looks.confidence) / 2, blocks - 1) * error
        within = stats.t.isf(looks.level(2 * significance.ALPHA) / 2, blocks - 1) * error
        different |= np.abs(mean) > half
        missed |= np.abs(mean - truth) > half
        alike |= np.abs(mean) + within < margin
    return float(different.mean()), float(missed.mean()), float(alike.mean())


@pytest.mark.parametrize("sd", [0.02, 0.04])
def test_promises_hold_over_all_looks(sd: float) -> None:
    """20,000 campaigns each, whose share of 5 % is known to 0.5 % (three standard errors)."""
    different, missed, _ = t_campaigns(0.0, sd, 0.03, 20_000)
    assert different == missed
    assert 0.04 <= different <= 0.055
    assert 0.04 <= t_campaigns(math.log1p(0.03), sd, math.log1p(0.03), 20_000)[2] <= 0.055


def test_extending_by_what_was_seen_costs_little() -> None:
    """The worst rule extends 18 blocks of 24 to 48 if |t| makes a false difference likely."""
    campaigns, first = 40_000, (6, 9, 12, 18)
    drawn = np.random.default_rng(11).standard_normal((campaigns, 48))
    t = {
        blocks: np.abs(drawn[:, :blocks].mean(axis=1) / stats.sem(drawn[:, :blocks], axis=1))
        for blocks in BATCHES
    }

    def crossed(after_18: Sequence[int], most: int) -> np.ndarray:
        looks = Looks((*first, *after_18), (24,) * 4 + (most,) * len(after_18)).each()
        beyond = [
            t[look.blocks[-1]] > stats.t.isf(look.level(0.05) / 2, look.blocks[-1] - 1)
            for look in looks
        ]
        return np.asarray(np.any(beyond, axis=0))

    fixed, extended = crossed([24], 24), crossed([24, 36, 48], 48)
    seen = np.digitize(t[18], np.linspace(0, 3, 13))
    groups = [seen == group for group in np.unique(seen)]
    worst = sum(max(fixed[group].sum(), extended[group].sum()) for group in groups) / campaigns
    assert 0.045 <= fixed.mean() <= 0.055
    assert 0.045 <= extended.mean() <= 0.055
    assert worst <= 0.058  # 5.3 % of 100,000


def test_strictest_looks_have_the_widest_intervals() -> None:
    assert sequential.strictest([FIXED, after(1), after(3), after(43)]) == after(3)
    assert sequential.strictest([]) == FIXED
