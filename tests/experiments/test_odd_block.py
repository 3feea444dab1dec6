"""A single block that is unlike the others is measured once more, by a rule that is recorded before."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.statistics import outliers
from experiments.config.settings import CampaignSettings
from experiments.run import rules
from experiments.run.journal_runs import cell_results
from experiments.run.rules import OddBlock, find_odd_block
from tests.conftest import Place, wait_for
from tests.experiments.comparison.campaigns import STEP
from tests.experiments.comparison.campaigns import frame as campaign_frame
from tests.experiments.test_until_settled import TOYS
from tests.faults.test_campaign import records
from tests.warm import Process
from tracking.journal import Journal
from tracking.records import Metrics, Point, RepeatCause, RunClosed, RunOpened, RunOutcome, Tags
from tracking.store import Store

SPEC = ComparisonSpec(baseline="a", outcomes=[STEP], primary=[STEP])
SHIFTS = (0.10, 0.12, 0.09, 0.11, 0.10, 0.08)
# Of the second toy: pauses of its process in each block, in seconds. They outweigh what the machine does.
PAUSES = (0.0, 0.06, 0.03, 1.0, 0.05, 0.02)


# ---- the rule


def test_clean_campaigns_have_an_odd_block_as_often_as_the_level_says() -> None:
    """Of 4,000 campaigns a share of 5 % is known to 1 % (three standard errors)."""
    rng = np.random.default_rng(0)
    for n in (6, 8, 12):
        drawn = rng.standard_normal((4_000, n))
        odd = np.mean([outliers.outlier(shifts, 0.05) is not None for shifts in drawn])
        assert odd == pytest.approx(0.05, abs=0.01)


def test_the_statistic_is_grubbs() -> None:
    """Grubbs' G against its critical value, by the t distribution; the distance is from the others."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        shifts = rng.standard_t(2, 8)
        g = np.abs(shifts - shifts.mean()).max() / shifts.std(ddof=1)
        t2 = stats.t.isf(0.1 / 16, 6) ** 2
        critical = 7 / math.sqrt(8) * math.sqrt(t2 / (6 + t2))
        assert (outliers.outlier(shifts, 0.1) is not None) == (g > critical)


def test_the_rule_does_not_look_at_which_side_is_better() -> None:
    shifts = [0.1, 0.12, 0.09, 0.8, 0.1, 0.08]
    assert outliers.outlier(shifts) == outliers.outlier([-shift for shift in shifts])


@pytest.mark.parametrize(
    ("rows", "odd"),
    [
        ([(0.1, 0.12, 0.09, 0.8, 0.1, 0.08)], {"4"}),
        ([(0.1, 0.12, 0.09, 0.8, 0.1, 0.08), (0.0, 0.01, 0.02, 0.7, 0.01, 0.0)], {"4"}),
        ([(0.1, 0.12, 0.09, 0.8, 0.1, 0.08), (0.9, 0.01, 0.02, 0.0, 0.01, 0.0)], {"1", "4"}),
        ([(0.1, 0.12, 0.09, 0.8, 0.1, 0.08, 0.1, 0.11, 0.09, -6.0)], {"4", "10"}),
        ([SHIFTS], set()),
        ([(0.1, 0.1, 0.1, 0.8, 0.1, 0.1)], set()),
        ([(0.1, 0.12, 0.09, 0.8)], set()),
    ],
)
def test_odd_blocks(rows: Sequence[Sequence[float]], odd: set[str]) -> None:
    labels = [str(block) for block in range(1, 11)]
    assert set(outliers.odd_blocks([(labels[: len(row)], row) for row in rows])) == odd


# ---- a campaign's journal


def campaign(folder: Path, shifts: Sequence[float], **tags: str) -> Journal:
    """A journal of a campaign `c` with these log-ratios, and these tags of its own run."""
    kept = Journal(folder)
    kept.append(RunOpened("c", 0, "e", "campaign", {"kind": "campaign", **tags}, {}))
    for block, shift in enumerate(shifts, start=1):
        for level in "ab":
            measure(kept, block, level, math.exp(shift if level == "b" else 0.0), 60_000 * block)
    return kept


def measure(kept: Journal, block: int, level: str, seconds: float, began: int, **tags: str) -> None:
    run = f"{level}{block}-{began}"
    own = {
        "kind": "cell",
        "campaign": "run:c",
        "framework": level,
        "block": str(block),
        "machine": "box",
    }
    own |= {"settings_hash": "h", "cell": f"block-{block:03d}-{level}", **tags}
    kept.append(RunOpened(run, began, "e", run, own, {}))
    kept.append(Metrics(run, (Point(STEP, seconds, 0, began),)))
    kept.append(RunClosed(run, began + 900, "ok"))


RULE = rules.rule_tags(CampaignSettings())
ODD = (0.10, 0.12, 0.09, 0.79, 0.10, 0.08)


def test_the_rule_is_recorded_by_campaigns_that_have_it() -> None:
    assert set(RULE) == {"odd_block.rule"}
    assert rules.rule_tags(replace(CampaignSettings(), repeat_odd_block=False)) == {}
    assert rules.rule_tags(replace(CampaignSettings(), until="settled")) == {}


def test_the_odd_block_of_a_campaign(tmp_path: Path) -> None:
    campaign(tmp_path / "odd", ODD, **RULE).close()
    odd = find_odd_block(tmp_path / "odd", "c", SPEC)
    assert odd is not None
    assert odd.number == 4
    for name, shifts, tags in (
        ("clean", SHIFTS, RULE),
        ("no rule", ODD, {}),
        ("repeated", ODD, {**RULE, **odd.tags}),
        ("few blocks", ODD[1:], RULE),
    ):
        campaign(tmp_path / name, shifts, **tags).close()
        assert find_odd_block(tmp_path / name, "c", SPEC) is None, name


def test_an_odd_block_is_owed_until_all_its_cells_are_repeated(tmp_path: Path) -> None:
    kept = campaign(tmp_path, ODD, **RULE)
    odd = OddBlock(4, "odd block: 12 SDs")
    kept.append(Tags("c", odd.tags))

    def owed() -> set[str]:
        return {
            key for key, end in cell_results(tmp_path).items() if end.disturbed and not end.repeat
        }

    assert owed() == {"block-004-a", "block-004-b"}
    end = cell_results(tmp_path)["block-004-a"]
    assert (end.outcome, end.cause, end.disturbed) == (
        RunOutcome.OK,
        RepeatCause.ODD_BLOCK,
        odd.reason,
    )
    measure(kept, 4, "a", 1.0, 900_000, repeats=odd.reason)
    assert owed() == {"block-004-b"}
    measure(kept, 4, "b", 1.1, 910_000, repeats=odd.reason)
    assert owed() == set()
    kept.close()
    assert find_odd_block(tmp_path, "c", SPEC) is None, "once"


def test_the_repeat_is_used_and_the_first_runs_are_listed_with_a_code() -> None:
    first, again = campaign_frame(blocks=6), campaign_frame(blocks=6, seed=1, campaign="c1")
    again = again[again["block"] == 4].assign(
        **{"tags.repeats": "odd block: 12 SDs", "tags.repeats.cause": "odd_block"}
    )
    again["run_id"] += "-again"
    again["start_ms"] += 3_600_000
    again["end_ms"] += 3_600_000
    found = compare(pd.concat([first, again], ignore_index=True), outcomes=[STEP])
    assert [(one.block, one.code) for one in found.excluded] == [("4", "odd_block")] * 2
    assert all(one.reason.startswith("odd block: 12 SDs; ") for one in found.excluded)
    assert found.findings[0].row.n_blocks == 6
    (warning,) = found.warnings
    assert (warning.code, "Block 4 " in warning.text) == (WarningCode.ODD_BLOCK, True)
    assert max(found.findings[0].pairs, key=lambda pair: pair.sequence).block == "4"


# ---- real processes


def pause_twin(events: Path, process: Process) -> None:
    """Stops each cell of the second toy in its seventh step or later, when it is warm, for its block's time."""
    seen: list[int] = []
    while len(seen) < len(PAUSES) and process.poll() is None:
        lines = (
            [json.loads(line) for line in events.read_text().splitlines() if line.endswith("}")]
            if events.exists()
            else []
        )
        steps = Counter(
            line["pid"]
            for line in lines
            if (line["framework"], line["event"]) == ("toy+twin", "step")
        )
        for pid, count in steps.items():
            if count >= 7 and pid not in seen:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(PAUSES[len(seen)])
                os.kill(pid, signal.SIGCONT)
                seen.append(pid)
        time.sleep(0.01)


@pytest.mark.slow  # a pause is odd where the machine is quiet: other noise hides it
def test_a_slowed_block_is_measured_again_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed while it repeats: resume finishes the repeat, and a further one adds nothing."""
    events = tmp_path / "events"
    monkeypatch.setenv(
        "EVENHAND_TOY_COSTS", json.dumps({"toy": {"step": 0.03}, "toy+twin": {"step": 0.05}})
    )
    monkeypatch.setenv("EVENHAND_TOY_EVENTS", str(events))

    def repeated() -> list[RunOpened]:
        return [
            one for one in records(place) if isinstance(one, RunOpened) and "repeats" in one.tags
        ]

    process = place.start(**TOYS, blocks="6", primary="train/examples_per_second")
    pause_twin(events, process)
    wait_for(lambda: bool(repeated()), 120)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    monkeypatch.delenv("EVENHAND_TOY_EVENTS")
    for _ in range(2):
        done = place.resume()
        assert done.returncode == 0, done.stdout + done.stderr
        ok = [
            run
            for run in Store(place.uri).runs("captioning")
            if run.tags["kind"] == "cell" and run.tags["outcome"] == "ok"
        ]
        assert len(ok) == 14
        again = [run for run in ok if "repeats" in run.tags]
        assert {
            (run.tags["framework"], run.tags["block"], run.tags["repeats.cause"]) for run in again
        } == {
            ("toy", "4", "odd_block"),
            ("toy+twin", "4", "odd_block"),
        }
    folder = next(place.journal.iterdir())
    run = Store(place.uri).run(folder.name)
    assert run is not None
    assert (run.tags["odd_block"], run.tags["odd_block.rule"]) == ("4", RULE["odd_block.rule"])
    report = json.loads((folder / "report" / "comparison.json").read_text())
    row = next(one for one in report["rows"] if one["family"] == "primary")
    assert (row["verdict"], row["n_blocks"]) == ("slower", 6)
    assert [one["block"] for one in report["excluded"] if one["code"] == "odd_block"] == ["4", "4"]
    assert (
        "Block 4 was unlike all others and was measured again"
        in (folder / "report" / "report.md").read_text()
    )
