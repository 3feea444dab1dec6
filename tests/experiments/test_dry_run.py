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

from experiments import studies
from experiments.cli import dry_run
from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec
from experiments.config import durations
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run import forecast
from tests.conftest import Place
from tests.experiments.comparison import campaigns
from tests.experiments.comparison.campaigns import STEP, paired
from tests.experiments.test_until_settled import TOYS
from tracking.store import Store


def everything(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_dry_run_tells_what_earlier_cells_took_and_writes_nothing(place: Place) -> None:
    def asked(**given: str) -> str:
        before = everything(place.folder)
        done = place.run(**TOYS, **given, dry_run="true")
        assert done.returncode == DONE, done.stdout + done.stderr
        assert everything(place.folder).keys() - before.keys() <= {
            str(path) for path in place.folder.glob("said-*")
        }
        assert {
            path: at for path, at in everything(place.folder).items() if path in before
        } == before
        assert done.stdout.splitlines()[-1] == "Nothing was measured, nothing was written."
        return done.stdout

    assert "time       not known: no journal here has a cell with these settings" in asked(
        blocks="2"
    )
    assert "detectable not known" in asked(blocks="2")
    assert place.run(**TOYS, blocks="3").returncode == 3
    told = asked(blocks="12")
    cells = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    ran = {int(run.tags["block"]): [] for run in cells}
    for run in sorted(cells, key=lambda run: run.start_ms):
        ran[int(run.tags["block"])].append(run.tags["treatment"])
    shown = {
        int(number): names.split(", ")
        for number, names in re.findall(r"^  block (\d+): (.*)$", told, re.MULTILINE)
    }
    assert {number: shown[number] for number in ran} == ran, (
        "the order that was announced is the order that was run"
    )
    assert len(shown) == 12
    assert "\ncells      24: 2 in each of 12 blocks" in told
    by_level: dict[str, list[float]] = {}
    for run in cells:
        assert run.end_ms is not None
        by_level.setdefault(run.tags["framework"], []).append((run.end_ms - run.start_ms) / 1_000)
    expected = 12 * sum(map(statistics.median, by_level.values()))
    assert f"time       about {durations.told(expected)} for 12 blocks" in told
    assert "by 6 cells of 1 earlier campaign" in told
    assert re.search(
        r"detectable training throughput, toy\+twin against toy: .* after 12 blocks in 80 % of campaigns",
        told,
    )

    other = asked(blocks="12", seed="7")
    assert "time       not known" in other, "with other settings nothing is known"
    more = place.run(**{**TOYS, "frameworks": "toy,toy+twin,pytorch"}, dry_run="true", blocks="12")
    assert "at least" in more.stdout, more.stdout + more.stderr
    assert "there is no such cell: pytorch" in more.stdout


def test_nothing_is_known_in_an_empty_folder_and_nothing_is_made(
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
def test_what_a_campaign_would_refuse_is_refused(
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


@pytest.mark.parametrize("study", ["classification", "captioning"])
def test_pictures_that_cannot_be_read_are_counted_and_listed(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its reason, of two kinds of data; and as many as the campaign leaves out."""
    monkeypatch.chdir(tmp_path)
    folders = (
        [tmp_path / "data" / "Images"]
        if study == "captioning"
        else [tmp_path / "data" / name for name in "ab"]
    )
    for folder in folders:
        folder.mkdir(parents=True)
        for number in range(400 // len(folders)):
            Image.new("RGB", (12, 12), (number % 256, 90, 30)).save(folder / f"{number:03}.png")
    broken = {
        folders[0] / "003.png": "not an image",
        folders[-1] / "007.png": "cannot be decoded: ",
    }
    broken |= {folders[0] / "001.png": "empty"}
    for path, content in zip(
        broken, (b"none", (folders[0] / "008.png").read_bytes()[:-30], b""), strict=True
    ):
        path.write_bytes(content)
    words = [
        "--frameworks=pytorch",
        "--batch_size=8",
        "--image_size=32",
        "--steps_per_epoch=8",
        "--data=data",
        "--dry_run",
    ]
    if study == "captioning":
        lines = [
            "image,caption",
            *(f"{path.name},a dog runs" for path in sorted(folders[0].iterdir())),
        ]
        (tmp_path / "data" / "captions.txt").write_text("\n".join(lines) + "\n")
    else:
        words += ["--model=lenet"]
    assert main([study, *words]) == DONE
    told = capsys.readouterr().out
    listed = re.search(
        r"^left out   3, each with the reason:\n((?:  /.*\n){3})", told, re.MULTILINE
    )
    assert listed, told
    shown = dict(line.strip().split(": ", 1) for line in listed[1].splitlines())
    assert shown.keys() == {str(path) for path in broken}
    assert all(shown[str(path)].startswith(reason) for path, reason in broken.items())
    assert "! 3 pictures cannot be read" in told
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    settings = studies.load(study).settings(
        **{
            "frameworks": ("pytorch",),
            "batch_size": 8,
            "image_size": 32,
            "steps_per_epoch": 8,
            "data": "data",
        },
        **({"model": "lenet"} if study == "classification" else {}),
        cache=str(tmp_path / "cache"),
    )
    campaigns_own = forecast.preparation.read_data(study, settings, Display())
    assert campaigns_own.left_out == tuple(f"{path}: {reason}" for path, reason in shown.items())
    (name,) = [name for name in campaigns_own.files if "broken" in name or "left_out" in name]
    assert all(Path(path).name in campaigns_own.files[name] for path in shown)


@pytest.mark.parametrize(
    ("words", "alone"),
    [(["--frameworks=pytorch"], True), (["--frameworks=pytorch", "--aa"], False), ([], False)],
)
def test_a_single_treatment_is_told_that_nothing_is_compared(
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["captioning", "--dry_run", "--resume=last"],
            "dry_run forecasts a campaign that begins; leave resume out",
        ),
        (
            ["captioning", "--dry_run", "--budget=2h"],
            "budget=2h is for campaigns that stop when they know",
        ),
        (
            ["sweep", "--dry_run"],
            "dry_run: a search chooses its cells as it goes; ask the experiment itself",
        ),
    ],
)
def test_what_has_no_forecast_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def earlier(sd: float, blocks: int, seed: int):
    """The finding of an earlier campaign whose log-ratios have about this SD; and the log-ratios."""
    shifts = np.random.default_rng(seed).normal(0, sd, blocks)
    (found,) = compare(paired(np.ones(blocks), np.exp(shifts))).findings
    return found, shifts


def test_the_detectable_difference_is_that_of_the_power_of_a_t_test() -> None:
    """Against statsmodels, at the SD pooled inside of two earlier campaigns; two outcomes share the error rate."""
    (first, a), (second, b) = earlier(0.03, 8, 1), earlier(0.05, 5, 2)
    (found,) = forecast._of_outcome([first, second], 2, replace(CampaignSettings(), blocks=12))
    sd = np.sqrt((7 * a.var(ddof=1) + 4 * b.var(ddof=1)) / 11)
    assert (found.sd, found.blocks, found.after) == (pytest.approx(sd), 13, 12)
    effect = TTestPower().solve_power(nobs=12, alpha=0.025, power=0.8)
    assert found.value == pytest.approx(np.expm1(effect * sd), rel=1e-4)
    assert found.low < found.value < found.high


def test_looks_that_are_to_come_widen_what_can_be_told() -> None:
    first, _ = earlier(0.03, 8, 1)
    fixed = forecast._of_outcome([first], 1, replace(CampaignSettings(), blocks=48))
    settled = forecast._of_outcome(
        [first], 1, replace(CampaignSettings(), until="settled", blocks=6, max_blocks=48)
    )
    assert [one.after for one in settled] == [6, 48]
    assert settled[0].value > settled[1].value > fixed[0].value


def test_a_part_is_a_bound_and_never_more() -> None:
    """One of two treatments has earlier cells: seconds and bytes are those of the one, and said to be the least."""
    found = forecast.Forecast(
        replace(CampaignSettings(), blocks=3),
        forecast.plan_.of_study(
            forecast.studies.load("lenet"), forecast.studies.load("lenet").settings(blocks=3)
        ),
        (),
        "digits: 1,437 training images",
        ("nothing to compare",),
        "box",
        1,
        {"pytorch": [60.0, 120.0, 90.0], "tensorflow": []},
    )
    assert found.seconds_of(3) == (270.0, 180.0, 360.0)
    told = "\n".join(dry_run.lines(found))
    assert "time       at least 4 min for 3 blocks\n" in told
    assert "not in it, since there is no such cell: tensorflow" in told


def test_what_never_varied_asks_for_no_blocks() -> None:
    """BLEU of synthetic captions is 0 in every run: it has no spread, and shares no error rate."""
    runs = list(campaigns.runs(blocks=5))
    asked = ComparisonSpec(outcomes=[STEP, "val/bleu4"])
    found = forecast._detectable(asked, replace(CampaignSettings(), blocks=12), [runs])
    assert [one.finding.row.metric for one in found] == [STEP]
    (alone,) = forecast._of_outcome([found[0].finding], 1, replace(CampaignSettings(), blocks=12))
    assert found[0].value == alone.value
