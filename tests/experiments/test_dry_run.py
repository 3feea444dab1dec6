"""What a campaign would be, before it begins: real journals of the toy framework, and detectable effects against statsmodels."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from statsmodels.stats.power import TTestPower

from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec
from experiments.config import durations
from experiments.config.settings import CampaignSettings
from experiments.run import forecast
from tests.conftest import Place
from tests.experiments.comparison import campaigns
from tests.experiments.comparison.campaigns import STEP, paired
from tests.experiments.test_until_settled import TOYS
from tracking.store import Store


def everything(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_dry_run_forecasts_and_writes_nothing(place: Place) -> None:
    def dry_run(**overrides: str) -> str:
        before = everything(place.folder)
        done = place.run(**{**TOYS, **overrides}, dry_run="true")
        assert done.returncode == DONE, done.stdout + done.stderr
        after = everything(place.folder)
        assert before.items() <= after.items()
        assert all(Path(path).name.startswith("said-") for path in after.keys() - before.keys())
        assert done.stdout.splitlines()[-1] == "Nothing was measured, nothing was written."
        return done.stdout

    text = dry_run(blocks="2")
    assert "time       not known: no journal here has a cell with these settings" in text
    assert "detectable not known" in text
    assert place.run(**TOYS, blocks="3").returncode == 3
    text = dry_run(blocks="12")
    cells = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    order: dict[str, list[str]] = {}
    seconds: dict[str, list[float]] = {}
    for run in sorted(cells, key=lambda run: run.start_ms):
        assert run.end_ms is not None
        order.setdefault(run.tags["block"], []).append(run.tags["treatment"])
        seconds.setdefault(run.tags["framework"], []).append((run.end_ms - run.start_ms) / 1_000)
    shown = dict(re.findall(r"^  block (\d+): (.*)$", text, re.MULTILINE))
    assert {block: shown[block].split(", ") for block in order} == order
    assert "\ncells      24: 2 in each of 12 blocks" in text
    expected = 12 * sum(map(statistics.median, seconds.values()))
    assert f"time       about {durations.format_duration(expected)} for 12 blocks" in text
    assert "by 6 cells of 1 earlier campaign" in text
    effect = r"detectable training throughput, toy\+twin against toy: .* after 12 blocks in 80 % of"
    assert re.search(effect, text)
    text = dry_run(frameworks="toy,toy+twin,pytorch", blocks="12")
    assert "at least" in text
    assert "there is no such cell: pytorch" in text


def test_dry_run_in_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["captioning", "--dry_run", "--until=settled", "--max_blocks=18"]) == DONE
    told = capsys.readouterr().out
    assert "cells      36: 2 in each of at most 18 blocks, the first look after 6" in told
    assert "time       not known" in told
    assert list(tmp_path.iterdir()) == []
    assert re.search(
        r"^data       scenes: 320 images, .* training captions, .*; the settings fit them$",
        told,
        re.MULTILINE,
    )
    assert "! DenseNet-201 has RANDOM weights" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--steps_per_epoch=9999"],
            "steps_per_epoch=9999 is more than scenes has at this batch size; at most",
        ),
        (["--batch_size=5000"], "batch_size=5000 is more than the"),
        (["--data=nowhere"], "nowhere"),
    ],
)
def test_dry_run_refuses_invalid_settings(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["captioning", "--dry_run", "--images=40", "--image_size=32", *words]) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_dry_run_lists_pictures_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its reason, and as many as the campaign leaves out."""
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / "data" / name for name in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        for number in range(200):
            Image.new("RGB", (12, 12), (number, 90, 30)).save(folder / f"{number:03}.png")
    reasons = {
        folders[0] / "003.png": "not an image",
        folders[1] / "007.png": "cannot be decoded: ",
        folders[0] / "001.png": "not an image",
    }
    contents = (b"none", (folders[0] / "008.png").read_bytes()[:-30], b"")
    for path, content in zip(reasons, contents, strict=True):
        path.write_bytes(content)
    words = ["--frameworks=pytorch", "--batch_size=8", "--image_size=32", "--steps_per_epoch=8"]
    assert main(["classification", *words, "--model=lenet", "--data=data", "--dry_run"]) == DONE
    text = capsys.readouterr().out
    listed = re.search(
        r"^left out   3, each with the reason:\n((?:  /.*\n){3})", text, re.MULTILINE
    )
    assert listed, text
    shown = dict(line.strip().split(": ", 1) for line in listed[1].splitlines())
    assert shown.keys() == {str(path) for path in reasons}
    assert all(shown[str(path)].startswith(reason) for path, reason in reasons.items())
    assert "! 3 pictures cannot be read" in text
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


@pytest.mark.parametrize(
    ("words", "alone"),
    [(["--frameworks=pytorch"], True), (["--frameworks=pytorch", "--aa"], False), ([], False)],
)
def test_dry_run_warns_of_single_treatment(
    words: list[str],
    alone: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lenet", "--dry_run", *words]) == DONE
    line = "! nothing to compare: pytorch is measured alone, without a verdict; name two frameworks, or add aa=true"
    assert (line in capsys.readouterr().out) is alone


def earlier(sd: float, blocks: int, seed: int):
    """The finding of an earlier campaign whose log-ratios have about this SD; and the log-ratios."""
    shifts = np.random.default_rng(seed).normal(0, sd, blocks)
    (found,) = compare(paired(np.ones(blocks), np.exp(shifts))).findings
    return found, shifts


def test_detectable_effect_equals_power_of_t_test() -> None:
    """Against statsmodels, at the SD pooled inside of two earlier campaigns; two outcomes share the error rate."""
    (first, a), (second, b) = earlier(0.03, 8, 1), earlier(0.05, 5, 2)
    (found,) = forecast._of_outcome([first, second], 2, replace(CampaignSettings(), blocks=12))
    sd = np.sqrt((7 * a.var(ddof=1) + 4 * b.var(ddof=1)) / 11)
    assert (found.sd, found.blocks, found.after) == (pytest.approx(sd), 13, 12)
    effect = TTestPower().solve_power(nobs=12, alpha=0.025, power=0.8)
    assert found.value == pytest.approx(np.expm1(effect * sd), rel=1e-4)
    assert found.low < found.value < found.high


def test_constant_outcome_has_no_detectable_effect() -> None:
    """BLEU of synthetic captions is 0 in every run: it has no spread, and shares no error rate."""
    runs = list(campaigns.runs(blocks=5))
    asked = ComparisonSpec(outcomes=[STEP, "val/bleu4"])
    found = forecast._detectable(asked, replace(CampaignSettings(), blocks=12), [runs])
    assert [one.finding.row.metric for one in found] == [STEP]
    (alone,) = forecast._of_outcome([found[0].finding], 1, replace(CampaignSettings(), blocks=12))
    assert found[0].value == alone.value
