"""Benefit of cells in turns: `tests.benchmarks.calibration --pairing`, and real campaigns."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from tests.benchmarks import calibration as command
from tests.benchmarks import pairing
from tests.benchmarks.pairing import METRIC, PairingResult
from tests.conftest import PYTHONPATH, wait_for
from tracking.journal import Journal
from tracking.records import RunClosed, RunOpened

TOY = (
    "--frameworks=toy",
    "--data=synthetic",
    "--vocabulary=60",
    "--length=8",
    "--epochs=1",
    "--steps_per_epoch=50",
)
TOY += ("--inference_requests=2", "--inference_batch_sizes=1")


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.2])
def test_the_blocks_that_show_an_effect_are_those_of_a_paired_t_test(spread: float) -> None:
    expected = TTestPower().solve_power(effect_size=math.log(1.05) / spread, power=0.8, alpha=0.05)
    assert pairing.blocks_to_show(0.05, spread) == math.ceil(expected)


def test_a_campaign_is_read_from_its_report_and_its_journal(tmp_path: Path) -> None:
    """The SD comes from the report's interval, here 1.5 times as wide as SciPy's."""
    shifts = {
        "toy A/A": np.array([0.1, -0.2, 0.05, 0.0, 0.3, -0.1]),
        "toy +5 %": np.array([0.1, 0.0, 0.05, 0.1, 0.08, 0.2]),
    }
    rows = []
    for name, shift in shifts.items():
        low, high = stats.t.interval(0.95, 5, shift.mean(), 1.5 * stats.sem(shift))
        interval = {
            "estimate": math.exp(shift.mean()),
            "ci_low": math.exp(low),
            "ci_high": math.exp(high),
        }
        rows.append(
            {"metric": METRIC, "b": name, "n_blocks": 6, **interval, "p_holm": 0.5, "widening": 1.5}
        )
    rows.append({**rows[0], "metric": "val/loss", "p_holm": 0.01})
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "comparison.json").write_text(json.dumps({"rows": rows}))
    records = Journal(tmp_path)
    for number, kind in enumerate(("campaign", "cell", "cell")):
        records.append(RunOpened(str(number), 60_000 * number, "e", kind, {"kind": kind}))
    for number in (1, 2, 0):
        records.append(RunClosed(str(number), 180_000, "ok"))
    records.close()
    campaign = pairing._read(tmp_path)
    assert campaign.shift == pytest.approx(shifts["toy A/A"].mean())
    assert campaign.spread == pytest.approx(shifts["toy A/A"].std(ddof=1))
    assert campaign.delayed_spread == pytest.approx(shifts["toy +5 %"].std(ddof=1))
    assert (campaign.different, campaign.blocks, campaign.block_seconds) == (("val/loss",), 6, 20.0)
    both = pairing._together("interleaved", [campaign, replace(campaign, shift=0.0)])
    assert (both.shift, both.error) == pytest.approx(
        (campaign.shift / 2, campaign.spread / math.sqrt(12))
    )


def test_promises_hold_and_break() -> None:
    """One false alarm in twelve campaigns is chance; three are not."""
    one_by_one = PairingResult("sequential", 0.0, 0.03, 0.2, 0.2, (False,) * 12, 30.0, 130)
    in_turns = PairingResult("interleaved", 0.0, 0.01, 0.1, 0.1, (True, *[False] * 11), 30.0, 35)
    assert [claim.holds for claim in pairing.meets([one_by_one, in_turns], neighbour=True)] == [
        True,
        True,
        True,
    ]
    worse = replace(in_turns, spread=0.11, different=(True,) * 3 + (False,) * 9, blocks=70)
    assert [claim.holds for claim in pairing.meets([one_by_one, worse], neighbour=True)] == [
        False,
        False,
        False,
    ]
    assert len(pairing.meets([one_by_one, worse], neighbour=False)) == 1
    assert pairing.as_markdown([one_by_one, worse], neighbour=True).count("**does not hold**") == 3


def test_settings_of_real_campaigns_need_pairing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as error:
        command.main(["--neighbour"])
    assert error.value.code == 2
    assert "--pairing" in capsys.readouterr().err


def test_the_neighbour_works_rests_and_ends() -> None:
    cpu = min(os.sched_getaffinity(0))
    with pairing._busy(seed=1, cpu=cpu) as pid:
        program = psutil.Process(pid)
        wait_for(lambda: program.cpu_times().user > 0.3, 60)
        assert program.cpu_affinity() == [cpu]
        wait_for(lambda: program.status() == psutil.STATUS_SLEEPING, 60)
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_in_turns_a_neighbour_cancels(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> None:
    """Three campaigns of each pairing on a CPU that a neighbour burns at random seconds."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": {"work": 150}}))
    began = time.monotonic()
    results = pairing.calibrate(
        campaigns=3, seed=1, neighbour=True, settings=(*TOY, f"--cache={shared_cache}")
    )
    print(f"{time.monotonic() - began:.0f} s\n\n{pairing.as_markdown(results, neighbour=True)}")
    one_by_one, in_turns = results
    assert in_turns.spread <= pairing.MAX_SPREAD * one_by_one.spread
    assert in_turns.seconds <= pairing.MAX_TIME * one_by_one.seconds
    assert in_turns.delayed_spread < one_by_one.delayed_spread
