"""Blocks of a campaign: until it is settled, measured again where odd, and more of them later."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments import studies
from experiments.cli.codes import DONE, NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.statistics import outliers
from experiments.comparison.verdicts import extended
from experiments.config import durations
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run import journal_runs, pipeline, preparation, resume, rules, scheduler
from experiments.run.campaign import Campaign
from experiments.run.journal_runs import cell_results
from experiments.run.rules import OddBlock, StoppingRule, find_odd_block
from tests.conftest import Place
from tests.experiments import small_campaigns
from tests.experiments.comparison.campaigns import STEP
from tests.experiments.comparison.campaigns import frame as campaign_frame
from tests.experiments.conftest import STEP_SECONDS, CallHere
from tests.experiments.datasets.folders import refused
from tracking import journal, provenance
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal
from tracking.records import Metrics, Point, RepeatCause, RunClosed, RunOpened, RunOutcome, Tags
from tracking.store import Store

TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "inference_requests": "2",
    "epochs": "1",
    "steps_per_epoch": "12",
    "bleu_images": "1",
    "others_limit_percent": "100",
}
SPEED = "train/examples_per_second"
SETTLED = {"until": "settled", "blocks": "6", "primary": SPEED}


def test_resume_continues_after_budget_until_settled(place: Place, call_here: CallHere) -> None:
    settings = {**TOYS, **SETTLED, "max_blocks": "9", "budget": "0.5s"}
    small_campaigns.measure(place, **settings)
    (folder,) = place.journal.iterdir()
    early = small_campaigns.comparison(place)["looks"]
    assert early[-1]["blocks"] < 6

    assert place.resume(budget="none", max_blocks="12").returncode == DONE
    assert journal.read_campaign(folder)["settings"]["max_blocks"] == 12
    cells = Store(place.uri).runs("captioning", "tags.kind = 'cell'")
    assert {int(run.tags["block"]) for run in cells} == {*range(1, 7)}
    looks = [*(look["blocks"] for look in early), 6]
    campaign = Store(place.uri).run(folder.name)
    assert campaign is not None
    assert campaign.tags["looks"] == ",".join(map(str, looks))
    report = small_campaigns.comparison(place)
    assert [(look["blocks"], look["max_blocks"]) for look in report["looks"]] == [
        (block, 9 if number < len(early) else 12) for number, block in enumerate(looks)
    ]
    assert report["rows"][SPEED]["verdict"] in ("slower", "lower")


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"budget": "2h"}, ErrorCode.CONFLICT, "budget=2h needs until=settled"),
        ({"max_blocks": 40}, ErrorCode.CONFLICT, "max_blocks=40 needs until=settled"),
        ({"until": "settled", "blocks": 5}, ErrorCode.INVALID_VALUE, "blocks=5 "),
        ({"until": "settled", "blocks": 60}, ErrorCode.INVALID_VALUE, "max_blocks=48"),
    ],
)
def test_contradicting_settings_are_refused(
    settings: dict[str, Any], code: ErrorCode, values: str
) -> None:
    with refused(code, values):
        scheduler.check_stopping(replace(CampaignSettings(), **settings))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5_400), ("none", math.inf)])
def test_durations(text: str, seconds: float) -> None:
    assert durations.seconds("budget", text) == seconds
    with refused(ErrorCode.INVALID_VALUE, "budget=2 "):
        durations.seconds("budget", "2")


def write_cell(
    journal: Journal, block: int, level: str, seconds: float, began_ms: int, **tags: str
) -> None:
    """Write a finished cell of the campaign `c`."""
    run = f"{level}{block}-{began_ms}"
    tags = {
        "kind": "cell",
        "campaign": "run:c",
        "framework": level,
        "block": str(block),
        "machine": "box",
        "settings_hash": "h",
        "cell": f"block-{block:03d}-{level}",
        **tags,
    }
    params = {"until": "settled", "blocks": "6", "max_blocks": "18"}
    journal.append(RunOpened(run, began_ms, "e", run, tags, params))
    journal.append(Metrics(run, (Point(STEP, seconds, 0, began_ms),)))
    journal.append(RunClosed(run, began_ms + 900, "ok"))


def write_blocks(journal: Journal, shifts: Sequence[float]) -> Iterator[int]:
    """Write a campaign's journal; yield the number of each block when its runs are complete."""
    for block, shift in enumerate(shifts, start=1):
        looks = journal_runs.looks(journal.folder, "c")
        tags = {"looks": ",".join(map(str, looks))} if looks else {}
        for order, level in enumerate("ab" if block % 2 else "ba"):
            value = math.exp(0.02 * block + (shift if level == "b" else 0.0))
            began_ms = 60_000 * block + 1_000 * order
            write_cell(journal, block, level, value, began_ms, order_in_block=str(order), **tags)
        yield block


class KnownCampaign:
    """Parts of a campaign that `StoppingRule` uses, over a journal; `lines`: what it prints."""

    def __init__(self, folder: Path) -> None:
        self.settings = replace(CampaignSettings(), until="settled", max_blocks=18)
        self.lines: list[str] = []
        self.looks: tuple[int, ...] = ()
        self.journal = Journal(folder)
        display = SimpleNamespace(say=self.lines.append)
        self.recorder = SimpleNamespace(folder=folder, run="c", display=display, tag=self.tag)

    def tag(self, **tags: str) -> None:
        self.journal.append(Tags("c", tags))

    note_look = Campaign.note_look

    def stopping_rule(self) -> StoppingRule:
        return StoppingRule(self, ComparisonSpec(baseline="a", outcomes=[STEP]))  # type: ignore[arg-type]


def noise(sd: float, mean: float = 0.0) -> list[float]:
    """Return eighteen log-ratios; the first six, nine, … have about this mean and SD."""
    rng, signs = np.random.default_rng(5), np.tile([-1.0, 0.0, 1.0], (6, 1))
    return [mean + sd * float(sign) for sign in rng.permuted(signs, axis=1).ravel()]


def stop(folder: Path, shifts: Sequence[float]) -> tuple[int, StoppingRule, KnownCampaign]:
    """Run a campaign of known runs to the block after which it stops."""
    campaign = KnownCampaign(folder)
    rule = campaign.stopping_rule()
    written = write_blocks(campaign.journal, shifts)
    block = next(block for block in written if rule(block, ran_now=True))
    return block, rule, campaign


@pytest.mark.parametrize(("sd", "is_settled"), [(0.035, True), (0.2, False)])
def test_open_campaign_continues_until_settled_or_at_its_end(
    tmp_path: Path, sd: float, *, is_settled: bool
) -> None:
    block, rule, campaign = stop(tmp_path, noise(sd))
    assert 6 < block < 18 if is_settled else block == 18
    assert rule.stopped.endswith(f"{block} blocks: settled." if is_settled else "not settled.")
    assert campaign.looks == tuple(range(6, block + 1))
    assert journal_runs.looks(tmp_path, "c") == campaign.looks
    assert [line.partition(" ")[0] for line in campaign.lines] == list(map(str, campaign.looks))


def test_repeated_look_has_the_same_result(tmp_path: Path) -> None:
    """Look again after a resumption, when there are more runs: a look counts those before it."""
    shifts = noise(0.035)
    block, _, first = stop(tmp_path / "a", shifts)
    campaign = KnownCampaign(tmp_path / "b")
    assert list(write_blocks(campaign.journal, shifts)) == list(range(1, 19))
    rule = campaign.stopping_rule()
    assert next(number for number in range(1, 19) if rule(number, ran_now=False)) == block
    assert campaign.looks == first.looks


def test_spent_error_rate_is_not_spent_again(tmp_path: Path) -> None:
    _, _, campaign = stop(tmp_path, noise(0.2))
    for now, before in ((40, 18), (12, 24)):
        settings = replace(campaign.settings, max_blocks=now)
        with refused(ErrorCode.CONFLICT, "18 blocks ", f" {now};"):
            resume.require_extendable("captioning", settings, {"max_blocks": before}, tmp_path, "c")
    # the report may be written again
    resume.require_extendable("captioning", campaign.settings, {"max_blocks": 18}, tmp_path, "c")


def test_resume_changes_only_length() -> None:
    fixed = studies.load("captioning").settings()
    settings = asdict(replace(fixed, until="settled", max_blocks=18, budget="1h"))
    resumed = resume.same_settings("captioning", settings, {"max_blocks": "40", "budget": "2h"})
    assert (resumed.max_blocks, resumed.budget, resumed.until) == (40, "2h", "settled")
    with refused(ErrorCode.CHANGED, "max_blocks was 48 ", " 40;"):
        resume.same_settings("captioning", asdict(fixed), {"max_blocks": "40"})


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


# ---- campaigns


def test_slowed_block_is_measured_again_once(
    place: Place, call_here: CallHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STEP_SECONDS, "toy+twin 4", 0.06)
    small_campaigns.measure(place, DONE, **TOYS, blocks="6", primary=SPEED)
    monkeypatch.delitem(STEP_SECONDS, "toy+twin 4")
    assert place.resume().returncode == DONE
    cells = list(Store(place.uri).runs("captioning", "tags.kind = 'cell'"))
    assert len(cells) == 14
    again = [run.tags for run in cells if "repeats" in run.tags]
    assert sorted((tags["framework"], tags["block"], tags["repeats.cause"]) for tags in again) == [
        (name, "4", "odd_block") for name in ("toy", "toy+twin")
    ]
    report = small_campaigns.comparison(place)
    row = report["rows"][SPEED]
    assert (row["verdict"], row["n_blocks"]) == ("slower", 6)
    excluded = [run["block"] for run in report["excluded"] if run["code"] == "odd_block"]
    assert excluded == ["4", "4"]


def test_command_of_the_report_measures_more_blocks(place: Place, call_here: CallHere) -> None:
    output = small_campaigns.measure(place, **TOYS, blocks="2")
    (folder,) = place.journal.iterdir()
    words = f"captioning --resume={folder.name} --blocks=6"  # a verdict needs six
    (line,) = [line for line in output.splitlines() if words in line]
    for name in ("report.md", "report.html"):
        assert words in (folder / "report" / name).read_text()

    command = line[line.index(words) :].replace("--blocks=6", "--blocks=3")
    assert call_here(*shlex.split(command)).returncode == NO_VERDICT
    assert journal.read_campaign(folder)["settings"]["blocks"] == 3
    cells = list(Store(place.uri).runs("captioning", "tags.kind = 'cell'"))
    assert sorted(run.tags["block"] for run in cells) == list("112233"), "none is run again"
    assert {run.tags["block"] for run in cells if run.tags.get("looks") == "2"} == {"3"}
    rows = small_campaigns.comparison(place)["rows"].values()
    assert max(row["n_blocks"] for row in rows) == 3


# ---- refusals


def write_journal(root: Path, name: str = "f00d", study: str = "captioning") -> Path:
    """Write the journal of a campaign of two blocks that ran on this machine."""
    records = Journal(root / name)
    values = asdict(studies.load(study).settings())
    description = {"study": study, "run": "c", "run_id": name, "settings": values}
    journal.write_campaign(records.folder, {**description, "experiment": "e"})
    tags = {"kind": "campaign", "machine": provenance.fingerprint(), "commit": provenance.commit()}
    records.append(RunOpened("c", 0, "e", "c", tags, {}))
    for block in (1, 2):
        write_cell(records, block, "toy", 1.0, block)
    records.close()
    return records.folder


def test_restart_locks_journal_before_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = UsageError(ErrorCode.NO_RUNS, "from the preparation")
    monkeypatch.setattr(preparation, "prepare", Mock(side_effect=error))
    settings = CampaignSettings(resume="last", journal=str(tmp_path))
    running = Journal(write_journal(tmp_path))
    with pytest.raises(UsageError, match="f00d"):  # another process runs it
        pipeline.reopen("captioning", settings, Display(), {})
    running.close()
    for _ in range(2):  # a refused one closes the journal
        with refused(ErrorCode.NO_RUNS):
            pipeline.reopen("captioning", settings, Display(), {})


@pytest.mark.parametrize(
    ("words", "changes", "values"),
    [
        (["cafe"], {}, ["cafe", "have f00d"]),  # a campaign of another study is not listed
        (["f00d", "--blocks=0"], {}, ["blocks=0"]),
        (["f00d", "--blocks=10001"], {}, ["10001", "10000"]),
        (["f00d", "--budget=2h"], {}, ["budget", "none", "2h"]),
        (["f00d", "--blocks=12"], {"settings": {"until": "settled"}}, ["blocks", "max_blocks"]),
        (["f00d"], {"settings": {"conv_algorithm": None}}, ["conv_algorithm"]),  # of before
        (["f00d"], {"settings": ["blocks"]}, ["resume"]),
        (["f00d"], {"settings": {"blocks": "six"}}, ["resume"]),
        (["f00d"], {"settings": {"frameworks": 5}}, ["resume"]),
        (["f00d"], {"run_id": 7}, ["resume"]),
        (["f00d"], {"study": ["captioning"]}, ["resume"]),
        (["f00d"], {"own_models": []}, ["resume"]),
        (["f00d"], {"plan": []}, ["resume"]),
    ],
)
def test_refusals_are_one_line(
    words: list[str],
    changes: dict[str, Any],
    values: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_journal(tmp_path)
    write_journal(tmp_path, "beef", study="lenet")
    description = journal.read_campaign(folder)
    if isinstance(changes.get("settings"), dict):
        merged = description["settings"] | changes["settings"]
        changes = {"settings": {name: value for name, value in merged.items() if value is not None}}
    journal.write_campaign(folder, description | changes)
    call = ["captioning", f"--resume={words[0]}", *words[1:], f"--journal={tmp_path}"]
    assert main(call) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert all(value in line for value in values), line


@pytest.mark.parametrize(
    ("tag", "blocks", "code"),
    [
        ("machine", 26, ErrorCode.CHANGED),
        ("environment", 26, ErrorCode.CHANGED),
        ("commit", 26, ErrorCode.CHANGED),
        ("commit", 4, ErrorCode.CONFLICT),
    ],
)
def test_more_blocks_need_the_origin_of_the_first(
    tag: str, blocks: int, code: ErrorCode, tmp_path: Path
) -> None:
    folder = write_journal(tmp_path)

    def extend(blocks: int) -> None:
        settings = replace(CampaignSettings(), blocks=blocks)
        resume.require_extendable("captioning", settings, {"blocks": 6}, folder, "c")

    extend(26)
    records = Journal(folder)
    records.append(Tags("c", {tag: "another"}))
    records.close()
    extend(6)
    with refused(code, "another" if code is ErrorCode.CHANGED else ""):
        extend(blocks)


# ---- looks


def test_reported_looks_need_a_report(tmp_path: Path) -> None:
    folder = write_journal(tmp_path)
    assert resume.reported_looks(folder, "c", 6) == (), "stopped before its report"
    steps = [
        ({"verdict": "b is slower"}, 6, (6,)),
        ({"looks": "6"}, 12, (6,)),  # no report since
        ({"verdict": "b is slower"}, 12, (6, 12)),
    ]
    records = Journal(folder)
    for tags, blocks, looks in steps:
        records.append(Tags("c", tags))
        assert resume.reported_looks(folder, "c", blocks) == looks
    records.close()


def test_error_rate_equals_table_of_repeated_looks() -> None:
    """Compare with Armitage, McPherson and Rowe 1969, table 2: a test at 5 % after n batches."""
    for count, percent in ((1, 5.0), (2, 8.3), (3, 10.7), (4, 12.6), (5, 14.2)):
        rate = extended.error_rate([10 * batch for batch in range(1, count + 1)])
        assert 100 * rate == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "looks", "length"),
    [
        ({}, (), ["--blocks=18"]),
        ({"until": "settled", "max_blocks": 18}, (6, 9), ["--max_blocks=21"]),
        (
            {"until": "settled", "max_blocks": 48, "budget": "2h"},
            (6, 9),
            ["--max_blocks=48", "--budget=none"],
        ),
    ],
)
def test_advice_counts_planned_or_judged_blocks(
    tmp_path: Path, settings: dict[str, Any], looks: tuple[int, ...], length: list[str]
) -> None:
    recorder = SimpleNamespace(folder=tmp_path / "f00d", run_id="f00d")
    campaign: Any = SimpleNamespace(
        settings=replace(CampaignSettings(), **settings),
        looks=looks,
        recorder=recorder,
        prepared=SimpleNamespace(study="captioning"),
    )
    advice = resume.advice(campaign, 12)
    assert advice is not None
    words = ["captioning", "--resume=f00d", *length, f"--journal={tmp_path}"]
    assert shlex.split(str(advice))[-len(words) :] == words
    assert resume.advice(campaign, 20_000) is None, "more than a campaign may have"
    campaign.looks = (*looks, settings.get("max_blocks", 0))
    assert (resume.advice(campaign, 12) is None) == bool(settings), "after its last look"
