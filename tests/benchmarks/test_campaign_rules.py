"""Error rates and costs of until=settled and of the repeated block: docs/comparison.md.

`pytest -n 0 -s -m slow tests/benchmarks/test_campaign_rules.py` prints the tables of that page.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.statistics.sequential import Looks
from tests.benchmarks import simulated_campaigns as simulated
from tests.benchmarks import simulated_reports
from tests.benchmarks.simulated_campaigns import (
    BELOW,
    BEYOND,
    INSIDE,
    at_every_look,
    draw,
    errors,
    looks_of,
    slow_block,
    stop,
    with_repeats,
)
from tests.benchmarks.simulated_reports import MARGIN
from tests.benchmarks.test_verdict_rule import NAMES, table

CAMPAIGNS, FEW, MOST_WRONG = 1_000, 100, 0.06
# Noises of which no more than `MOST_WRONG` campaigns end with a wrong verdict.
PROMISED = (
    *(
        "normal",
        "t with 3 degrees of freedom",
        "bimodal",
        "lognormal on both sides",
        "coarse clock",
    ),
    *("10 % of runs twice as slow", "3 % of runs 10 SDs slow", "10 % of runs 5 SDs slow"),
    *("AR(1) .3", "AR(1) .5", "AR(1) .7"),
)
# Measured, not promised.
OTHERS = (
    *("AR(1) .7, outcomes correlated .7", "AR(1) .7 in 3 of 12 outcomes"),
    *("lognormal on one side", "exponential on one side"),
)
# SD of the log-ratio of a block, true ratio.
EFFECTS = ((0.099, 1.1), (0.198, 1.2))


def allowed(share: float, campaigns: int) -> float:
    """Return a share with three standard errors."""
    return share + 3 * math.sqrt(share * (1 - share) / campaigns)


def test_simulated_campaigns_stop_like_compare() -> None:
    """Three spreads, so that verdicts of every kind are among them, look by look."""
    looks, noise = looks_of(most=10), draw("normal", 2, 10)
    means = at_every_look(noise, looks)
    verdicts = set()
    for sd, ratio in ((0.012, 1.0), (0.03, 1.1), (0.05, 0.8)):
        result = stop(means, looks, sd, ratio)
        for at, campaign in enumerate(noise):
            runs = settled(campaign * sd + math.log(ratio))
            judged = {}
            for look in looks:
                report = compare(runs[runs["block"] < look.blocks[-1]], primary=NAMES[:1])
                judged[look.blocks[-1]] = next(
                    finding for finding in report.findings if finding.primary
                )
            codes = {
                "slower": BEYOND,
                "faster": BELOW,
                "equivalent": INSIDE,
                "different, within margin": INSIDE,
            }
            verdict_codes = {
                blocks: codes.get(finding.row.verdict, 0) for blocks, finding in judged.items()
            }
            last = next((blocks for blocks, code in verdict_codes.items() if code), 10)
            assert (last, verdict_codes[last]) == (result.blocks[at], result.verdict[at])
            assert judged[last].different == result.different[at]
            verdicts.add(verdict_codes[last])
    assert verdicts == {BEYOND, BELOW, INSIDE}


def settled(shifts: np.ndarray) -> pd.DataFrame:
    """Return runs of a campaign with until=settled."""
    params = {"params.until": "settled", "params.blocks": "6", "params.max_blocks": "10"}
    return table(shifts).assign(campaign="c", **params)


def test_wrong_verdicts_in_the_small() -> None:
    """A hundred campaigns of at most 18 blocks."""
    looks = looks_of(most=18)
    for name in ("normal", "AR(1) .5"):
        rates = errors(draw(name, FEW, 18), looks)
        assert max(rates.different, rates.equivalent, rates.beyond) <= allowed(MOST_WRONG, FEW)


def test_slow_block_in_the_small() -> None:
    slowed = slow_block(0.02 * draw("normal", FEW, 8) + math.log(1.1))
    before, after = simulated.judge(slowed[..., :7]), simulated.judge(with_repeats(slowed)[0])
    assert before.slower.mean() < 0.1
    assert after.slower.mean() >= 0.8


def test_walds_blocks_are_those_of_simulated_boundaries() -> None:
    """Whole blocks overshoot: a simulated test takes one to three blocks more."""
    for sd, ratio in EFFECTS:
        approximate, exact = simulated.wald_blocks(sd, ratio), simulated.sprt_blocks(sd, ratio)
        assert approximate < exact < approximate + 3
    assert simulated.wald_blocks(*EFFECTS[0]) == pytest.approx(15.8, abs=0.05)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_wrong_verdicts() -> None:
    """1,000 campaigns each: a share of 6 % has a standard error of .75 points."""
    looks: tuple[Looks, ...] = looks_of()
    print("\n| noise | false difference | wrongly equivalent | wrongly beyond | one outcome: | | |")
    missed = []
    for name in (*PROMISED, *OTHERS):
        noise = draw(name, CAMPAIGNS, simulated.MOST)
        both = (errors(noise, looks), errors(noise[:, :1], looks))
        shares = [
            share for rates in both for share in (rates.different, rates.equivalent, rates.beyond)
        ]
        print(f"| {name} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |", flush=True)
        if name in PROMISED:
            missed += [(name, share) for share in shares[:3] if share > MOST_WRONG]
    assert not missed


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_blocks_that_are_needed() -> None:
    """2,000 campaigns: a mean of 20 blocks has a standard error of .2."""
    looks = looks_of()
    print("\n| outcomes | true ratio | SD | settled | blocks | SPRT | approximation |")
    for outcomes in (12, 1):
        means = at_every_look(draw("normal", 2 * CAMPAIGNS, simulated.MOST)[:, :outcomes], looks)
        for sd, ratio in EFFECTS:
            result = stop(means, looks, sd, ratio)
            exact, approximate = simulated.sprt_blocks(sd, ratio), simulated.wald_blocks(sd, ratio)
            blocks = float(result.blocks.mean())
            settled = 100 * np.mean(result.verdict == BEYOND)
            print(
                f"| {outcomes} | {ratio} | {sd} | {settled:.1f} | {blocks:.1f} "
                f"| {exact:.1f} ({blocks / exact:.2f}) "
                f"| {approximate:.1f} ({blocks / approximate:.2f}) |"
            )
            # trimming costs 6 % of the blocks in normal noise
            assert outcomes == 1 or blocks <= 1.45 * exact


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "verdict", "most"), [(1.05, BEYOND, 20.0), (1.0, INSIDE, 14.0)])
def test_looks_settle_in_spite_of_slow_runs(ratio: float, verdict: int, most: float) -> None:
    """1,500 campaigns of one outcome with an SD of 2 % but for slow runs."""
    noise, looks = simulated_reports.NOISES["3 % of runs 10 SDs slow"][0], looks_of()
    shifts = noise(np.random.default_rng(11), (1_500, 1, simulated.MOST))
    result = stop(at_every_look(shifts, looks), looks, 0.02, ratio)
    print(f"\n{ratio}: {np.mean(result.verdict == verdict):.1%}, {result.blocks.mean():.1f} blocks")
    assert np.mean(result.verdict == verdict) >= 0.99
    assert result.blocks.mean() <= most


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_repeats_of_clean_campaigns() -> None:
    """1,000 campaigns each, of 12 outcomes of which one is declared; without the rule / with it."""
    print("\n| noise | blocks | repeated | false difference | any of 12 | wrongly equivalent |")
    missed = []
    for name in (*PROMISED, *OTHERS):
        for blocks in (6, 7):
            noise = 0.03 * draw(name, CAMPAIGNS, blocks + 1)
            counted, repeated = with_repeats(noise)
            cells = []
            pairs = [
                (simulated.judge(part), simulated.judge(part + MARGIN))
                for part in (noise[..., :-1], counted)
            ]
            for answers in (
                [none.different for none, _ in pairs],
                [none.any_different for none, _ in pairs],
                [at.equivalent for _, at in pairs],
            ):
                before, after = (float(answer.mean()) for answer in answers)
                cells.append(f"{100 * before:.1f} / {100 * after:.1f}")
                if name in PROMISED and after > max(MOST_WRONG, before):
                    missed.append((name, blocks, before, after))
            print(
                f"| {name} | {blocks} | {100 * repeated.mean():.1f} | {' | '.join(cells)} |",
                flush=True,
            )
            if name == "normal":
                assert repeated.mean() <= 0.01
    assert not missed


@pytest.mark.slow
def test_repeats_of_a_slow_block() -> None:
    """1,000 campaigns with a true difference of 10 %: the share with the true verdict."""
    print("\n| noise | SD | blocks | clean | one slow block | with its repetition | size open |")
    for name in ("normal", "t with 3 degrees of freedom", "bimodal"):
        for sd in (0.02, 0.03):
            for blocks in (6, 7):
                clean = sd * draw(name, CAMPAIGNS, blocks + 1) + math.log(1.1)
                slowed = slow_block(clean)
                after = simulated.judge(with_repeats(slowed)[0])
                shares = [
                    *(simulated.judge(part[..., :-1]).slower.mean() for part in (clean, slowed)),
                    *(after.slower.mean(), (after.different & ~after.slower).mean()),
                ]
                cells = " | ".join(f"{100 * share:.1f}" for share in shares)
                print(f"| {name} | {sd} | {blocks} | {cells} |", flush=True)
                assert after.slower.mean() >= 0.8 or name != "normal" or sd > 0.02
