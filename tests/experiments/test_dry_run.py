"""Dry run: real journals of the toy framework, and detectable effects against statsmodels."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from statsmodels.stats.power import TTestPower

from experiments import studies
from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS
from experiments.config import durations
from experiments.config.settings import CampaignSettings
from experiments.run import forecast
from tests.conftest import Place
from tests.experiments.comparison import campaigns
from tests.experiments.comparison.campaigns import STEP, paired
from tests.experiments.datasets.test_labelled import write_cifar, write_mnist
from tests.experiments.test_blocks import TOYS
from tracking.store import Store

Capture = pytest.CaptureFixture[str]


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.usefixtures("local_cells")
def test_dry_run_forecasts_and_writes_nothing(place: Place) -> None:
    def dry_run(**overrides: str) -> dict[str, str]:
        """Return the lines of a forecast by their titles."""
        before = files(place.folder)
        done = place.run(**{**TOYS, **overrides}, dry_run="true")
        assert done.returncode == DONE, done.stdout + done.stderr
        assert files(place.folder) == before
        return dict(re.findall(r"^ *(block \d+|\w+):? +(.*)$", done.stdout, re.MULTILINE))

    lines = dry_run(blocks="2")
    assert (lines["time"][:9], lines["detectable"][:9]) == ("not known", "not known")
    assert place.run(**TOYS, blocks="3").returncode == 3
    lines = dry_run(blocks="12")
    order: dict[str, list[str]] = {}
    seconds: dict[str, list[float]] = {}
    for run in sorted(Store(place.uri).runs("captioning"), key=lambda run: run.start_ms):
        if run.tags["kind"] == "cell":
            assert run.end_ms is not None
            order.setdefault(run.tags["block"], []).append(run.tags["treatment"])
            cell_seconds = (run.end_ms - run.start_ms) / 1_000
            seconds.setdefault(run.tags["framework"], []).append(cell_seconds)
    assert [lines[f"block {block}"].split(", ") for block in order] == list(order.values())
    assert lines["cells"].startswith("24: 2 in each of 12 blocks")
    expected = durations.format_duration(12 * sum(map(statistics.median, seconds.values())))
    assert f"about {expected} for 12 blocks" in lines["time"]
    assert "toy+twin against toy" in lines["detectable"]
    lines = dry_run(frameworks="toy,toy+twin,pytorch", blocks="12")
    assert lines["time"].startswith("at least")


PRESETS = [(name, preset) for name in studies.available() for preset in studies.load(name).presets]
# What a preset leaves to the user.
INPUTS = {
    "captioning": ["--data=synthetic"],
    "captioning demo": ["--data=scenes"],
    "classification": ["--data=digits"],
    "classification original": ["--data=cifar"],
    "lenet paper": ["--data=mnist"],
    "race": ["--level=a=true", "--level=b=true"],
    # the published choices are a GPU's
    "training_speed conv_algorithm": ["--device=cpu", "--vary=conv_algorithm=plain,onednn"],
}


LOOKS = "36: 2 in each of at most 18 blocks, the first look after 6"
SINGLE = "! nothing to compare: pytorch"


@pytest.mark.parametrize(
    ("call", "text", "is_printed"),
    [
        ("captioning --until=settled --max_blocks=18", LOOKS, True),
        ("lenet --frameworks=pytorch", SINGLE, True),
        ("lenet --frameworks=pytorch --aa", SINGLE, False),
        ("lenet", SINGLE, False),
    ],
)
def test_dry_run_in_empty_folder(
    call: str,
    text: str,
    is_printed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*call.split(), "--dry_run"]) == DONE
    assert (text in capsys.readouterr().out) is is_printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=map(" ".join, PRESETS))
def test_every_preset_starts(
    name: str, preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    if preset == "original":  # a mirrored numeral is none
        write_cifar(tmp_path / "cifar", batch=200)
    if (name, preset) == ("lenet", "paper"):
        (tmp_path / "mnist").mkdir()
        write_mnist(tmp_path / "mnist", "", train=60_000)
    if preset == "demo":
        study = studies.load(name)
        assert study.settings(**study.presets[preset]).blocks >= MINIMUM_BLOCKS, "a verdict"
    inputs = INPUTS.get(f"{name} {preset}", INPUTS.get(name, []))
    assert main([name, f"--preset={preset}", "--dry_run", *inputs]) == DONE, capsys.readouterr().err


def test_points_of_the_paper_that_cannot_train_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """BatchNorm of one image whose features are a single pixel has no variance."""
    monkeypatch.chdir(tmp_path)
    assert main(["grid", "--preset=paper", "--frameworks=pytorch", "--dry_run"]) == DONE
    left_out = re.findall(
        r"^  pytorch · (\w+ · \d+ px · batch \d+): ", capsys.readouterr().out, re.M
    )
    models = ("resnet18", "resnet152", "mobilenet_v2", "efficientnet_b4")
    assert set(left_out) == {f"{model} · 32 px · batch 1" for model in models}


@pytest.mark.parametrize(
    "word", ["--steps_per_epoch=9999", "--batch_size=5000", "--data=nowhere", "--resume=last"]
)
def test_dry_run_refuses_invalid_settings(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["captioning", "--dry_run", "--images=40", "--image_size=32", word]) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert word.partition("=")[0].removeprefix("--") in line
    assert list(tmp_path.iterdir()) == []


def test_detectable_effect_equals_power_of_t_test() -> None:
    shifts = np.random.default_rng(1).normal(0, 0.03, 8)
    (finding,) = compare(paired(np.ones(8), np.exp(shifts))).findings
    (effect,) = forecast._effects(finding, 2, replace(CampaignSettings(), blocks=12))
    assert (effect.sd, effect.after) == (finding.spread, 12)
    assert effect.sd == pytest.approx(shifts.std(ddof=1), rel=0.15)
    # of 12 blocks the trimmed mean has the 10 - 1 degrees of freedom of 10
    least = TTestPower().solve_power(nobs=10, alpha=0.025, power=0.8) * np.sqrt(10 / 12)
    assert effect.value == pytest.approx(np.expm1(least * effect.sd), rel=1e-4)


def test_constant_outcome_has_no_detectable_effect() -> None:
    """BLEU of synthetic captions is 0 in every run: it has no spread, and shares no error rate."""
    runs, settings = list(campaigns.runs(blocks=5)), replace(CampaignSettings(), blocks=12)
    question = ComparisonSpec(outcomes=[STEP, "val/bleu4"])
    (effect,) = forecast._detectable(question, settings, runs)
    assert effect.finding.row.metric == STEP
    (single,) = forecast._effects(effect.finding, 1, settings)
    assert effect.value == single.value
