"""Odd block: measured once more, by a rule that is recorded before the first block."""

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
from tests.experiments import small_campaigns
from tests.experiments.comparison.campaigns import STEP
from tests.experiments.comparison.campaigns import frame as campaign_frame
from tests.experiments.test_until_settled import TOYS, write_cell
from tests.faults.test_campaign import records
from tests.warm import Process
from tracking.journal import Journal
from tracking.records import RepeatCause, RunOpened, RunOutcome, Tags
from tracking.store import Store

SPEC = ComparisonSpec(baseline="a", outcomes=[STEP], primary=[STEP])
RULE = rules.rule_tags(CampaignSettings())
CLEAN, ODD = (0.10, 0.12, 0.09, 0.11, 0.10, 0.08), (0.10, 0.12, 0.09, 0.79, 0.10, 0.08)


# ---- the rule


def test_clean_campaigns_have_odd_blocks_at_the_level() -> None:
    """Simulate 4,000 campaigns: three standard errors of a share of 5 % are 1 %."""
    rng = np.random.default_rng(0)
    for n in (6, 8, 12):
        samples = rng.standard_normal((4_000, n))
        share = np.mean([outliers.outlier(shifts, 0.05) is not None for shifts in samples])
        assert share == pytest.approx(0.05, abs=0.01)


def test_statistic_is_grubbs() -> None:
    """Compare Grubbs' G with its critical value, by the t distribution; the side is no matter."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        shifts = rng.standard_t(2, 8)
        g = np.abs(shifts - shifts.mean()).max() / shifts.std(ddof=1)
        t2 = stats.t.isf(0.1 / 16, 6) ** 2
        critical = 7 / math.sqrt(8) * math.sqrt(t2 / (6 + t2))
        assert (outliers.outlier(shifts, 0.1) is not None) == (g > critical)
        assert outliers.outlier(shifts, 0.1) == outliers.outlier(-shifts, 0.1)


@pytest.mark.parametrize(
    ("rows", "odd"),
    [
        ([ODD], {"4"}),
        ([ODD, (0.0, 0.01, 0.02, 0.7, 0.01, 0.0)], {"4"}),
        ([ODD, (0.9, 0.01, 0.02, 0.0, 0.01, 0.0)], {"1", "4"}),
        ([(*ODD, 0.1, 0.11, 0.09, -6.0)], {"4", "10"}),
        ([CLEAN], set()),
        ([(0.1, 0.1, 0.1, 0.8, 0.1, 0.1)], set()),
        ([(0.1, 0.12, 0.09, 0.8)], set()),
    ],
)
def test_odd_blocks(rows: Sequence[Sequence[float]], odd: set[str]) -> None:
    labels = [str(block) for block in range(1, 11)]
    assert set(outliers.odd_blocks([(labels[: len(row)], row) for row in rows])) == odd


# ---- a campaign's journal


def write_campaign(folder: Path, shifts: Sequence[float], **tags: str) -> Journal:
    """Write the journal of a campaign `c` with these log-ratios, and these tags of its run."""
    journal = Journal(folder)
    journal.append(RunOpened("c", 0, "e", "campaign", {"kind": "campaign", **tags}, {}))
    for block, shift in enumerate(shifts, start=1):
        for level, seconds in (("a", 1.0), ("b", math.exp(shift))):
            write_cell(journal, block, level, seconds, 60_000 * block)
    return journal


@pytest.mark.parametrize(
    ("shifts", "tags", "number"),
    [
        (ODD, RULE, 4),
        (CLEAN, RULE, None),
        (ODD, rules.rule_tags(replace(CampaignSettings(), repeat_odd_block=False)), None),
        (ODD, rules.rule_tags(replace(CampaignSettings(), until="settled")), None),
        (ODD, {**RULE, **OddBlock(4, "odd").tags}, None),
        (ODD[1:], RULE, None),
    ],
    ids=["odd", "clean", "no rule", "until settled", "repeated", "few blocks"],
)
def test_odd_block_of_a_campaign(
    tmp_path: Path, shifts: Sequence[float], tags: dict[str, str], number: int | None
) -> None:
    write_campaign(tmp_path, shifts, **tags).close()
    odd = find_odd_block(tmp_path, "c", SPEC)
    assert (odd.number if odd else None) == number


def test_odd_block_is_owed_until_all_its_cells_are_repeated(tmp_path: Path) -> None:
    journal, odd = write_campaign(tmp_path, ODD, **RULE), OddBlock(4, "12 SDs")
    journal.append(Tags("c", odd.tags))

    def owed_cells() -> set[str]:
        results = cell_results(tmp_path).items()
        return {key for key, result in results if result.disturbed and not result.repeat}

    assert owed_cells() == {"block-004-a", "block-004-b"}
    result = cell_results(tmp_path)["block-004-a"]
    assert (result.outcome, result.cause) == (RunOutcome.OK, RepeatCause.ODD_BLOCK)
    write_cell(journal, 4, "a", 1.0, 900_000, repeats=odd.reason)
    assert owed_cells() == {"block-004-b"}
    write_cell(journal, 4, "b", 1.1, 910_000, repeats=odd.reason)
    assert owed_cells() == set()
    journal.close()
    assert find_odd_block(tmp_path, "c", SPEC) is None, "once"


def test_repeat_is_used_and_first_runs_are_listed_with_a_code() -> None:
    first, again = campaign_frame(blocks=6), campaign_frame(blocks=6, seed=1, campaign="c1")
    tags = {"tags.repeats": "12 SDs", "tags.repeats.cause": "odd_block"}
    again = again[again["block"] == 4].assign(**tags)
    again["run_id"] += "-again"
    again[["start_ms", "end_ms"]] += 3_600_000
    comparison = compare(pd.concat([first, again], ignore_index=True), outcomes=[STEP])
    assert [(run.block, run.code) for run in comparison.excluded] == [("4", "odd_block")] * 2
    (finding,) = comparison.findings
    assert finding.row.n_blocks == 6
    assert max(finding.pairs, key=lambda pair: pair.sequence).block == "4"
    (warning,) = comparison.warnings
    assert (warning.code, "Block 4 " in warning.text) == (WarningCode.ODD_BLOCK, True)


# ---- real processes


def pause_twin(events: Path, process: Process, pauses: Sequence[float]) -> None:
    """Stop each cell of the second toy in its seventh step, when it is warm, for these seconds."""
    events.touch()
    paused: list[int] = []
    while len(paused) < len(pauses) and process.poll() is None:
        lines = [line for line in events.read_text().splitlines() if line.endswith("}")]
        rows = [row for row in map(json.loads, lines) if row["framework"] == "toy+twin"]
        steps = Counter(row["pid"] for row in rows if row["event"] == "step")
        for pid in [pid for pid, count in steps.items() if count >= 7 and pid not in paused]:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(pauses[len(paused)])
            os.kill(pid, signal.SIGCONT)
            paused.append(pid)
        time.sleep(0.01)


@pytest.mark.slow  # a pause is odd where the machine is quiet: other noise hides it
def test_slowed_block_is_measured_again_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kill the campaign while it repeats: resume finishes that, and a further one adds nothing."""
    costs = {"toy": {"step": 0.03}, "toy+twin": {"step": 0.05}}
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(costs))
    monkeypatch.setenv("EVENHAND_TOY_EVENTS", str(tmp_path / "events"))

    process = place.start(**TOYS, blocks="6", primary="train/examples_per_second")
    pause_twin(tmp_path / "events", process, (0.0, 0.06, 0.03, 1.0, 0.05, 0.02))
    wait_for(lambda: any("repeats" in getattr(each, "tags", ()) for each in records(place)), 120)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    monkeypatch.delenv("EVENHAND_TOY_EVENTS")
    for _ in range(2):
        done = place.resume()
        assert done.returncode == 0, done.stdout + done.stderr
        runs = [run.tags for run in Store(place.uri).runs("captioning")]
        cells = [tags for tags in runs if (tags["kind"], tags["outcome"]) == ("cell", "ok")]
        assert len(cells) == 14
        again = [tags for tags in cells if "repeats" in tags]
        assert sorted(
            (tags["framework"], tags["block"], tags["repeats.cause"]) for tags in again
        ) == [(name, "4", "odd_block") for name in ("toy", "toy+twin")]
    report = small_campaigns.comparison(place)
    row = report["rows"]["train/examples_per_second"]
    assert (row["verdict"], row["n_blocks"]) == ("slower", 6)
    excluded = [run["block"] for run in report["excluded"] if run["code"] == "odd_block"]
    assert excluded == ["4", "4"]
