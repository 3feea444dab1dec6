"""Presets of all studies on a simulated GPU: the toy framework's, timed as `auto` does it."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from experiments import studies
from experiments.cell import warm_up
from experiments.contract import REQUEST_SECONDS, STEP_SECONDS
from experiments.studies import classification
from experiments.workloads import steps
from models.devices import CUDA
from tests.conftest import ROOT, Place
from tests.experiments.timing_agreement import FREELY, STEPPED, agreement
from tracking import provenance
from tracking.cpus import cpus
from tracking.store import Store

QUICK = {"inference_requests": "3"}
IMAGES = {"model": "mobilenet_v2", "data": "digits", "image_size": "32", **QUICK}
CAPTIONS = {"data": "synthetic", "vocabulary": "60", "length": "8", "bleu_images": "1", **QUICK}
# Settings with which the toy can run a study: its networks, no files of a user, few requests.
SMALL: dict[str, dict[str, str]] = {
    "captioning": CAPTIONS,
    "classification": IMAGES,
    "grid": {
        "models": "mobilenet_v2",
        "image_sizes": "32",
        "batch_sizes": "2,8",
        "seconds": "0.2",
    },
    "lenet": {"data": "digits", **QUICK},
    "training_speed": {"models": "mobilenet_v2", "size": "tiny"},
}
# Presets of operators that the toy does not have.
OTHERS = {("training_speed", name) for name in ("lstm", "graph", "conv_algorithm")}
SHORT = ("demo", "smoke")
# Fewer epochs, and what the embedded digits cannot do.
INSTEAD = {
    **{f"{name}-paper": {"epochs": "1"} for name in ("resnet18", "vgg16")},
    **{f"{name}-paper": {"epochs": "1"} for name in ("flickr8k", "flickr30k", "coco")},
    "sound": {"epochs": "1"},
    "paper": {"epochs": "1", "steps_per_epoch": "15"},
    "original": {"epochs": "1", "augmentation": "crop"},
}
PRESETS = [
    pytest.param(study, preset, marks=[] if preset in SHORT else pytest.mark.slow)
    for study in SMALL
    for preset in studies.load(study).presets
    if (study, preset) not in OTHERS
]


@pytest.fixture
def gpu(local_cells: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_TOY_GPU", "1")
    monkeypatch.setattr(warm_up, "SHORTEST_SECONDS", 0.1)
    monkeypatch.setattr(warm_up, "is_steady", lambda _: True)
    monkeypatch.setattr(provenance, "gpus", lambda: ["Simulated GPU (driver 1)"])


def measured(place: Place, study: str, **options: str) -> list[Any]:
    """Run a campaign of one block, and return its cells."""
    options = {"blocks": "1", "figures": "false", "others_limit_percent": "100", **options}
    folders = {"cache": str(place.cache), "journal": str(place.journal)}
    words = [f"--{name}={text}" for name, text in {**folders, **options}.items()]
    done = place.call("", "", "", study, *words)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return [run for run in Store(place.uri).runs(study) if run.tags["kind"] == "cell"]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("study", "preset"), PRESETS)
def test_preset_starts_and_ends_on_a_gpu(study: str, preset: str, place: Place) -> None:
    kind, instead = studies.load(study).settings, INSTEAD.get(preset, {})
    offered = {name: text for name, text in instead.items() if hasattr(kind, name)}
    if preset == "demo" and hasattr(kind, "phase_seconds"):
        offered["phase_seconds"] = "0.1"
    options = {"preset": preset, "frameworks": "toy,toy+twin", **SMALL[study], **offered}
    cells = measured(place, study, **options)
    assert {run.tags["outcome"] for run in cells} == {"ok"}
    for run in cells:
        expected = {"device": CUDA, "timing": "both", "pairing": "sequential", "malloc": "system"}
        assert expected.items() <= run.params.items()
        assert 1 <= int(run.params["window_steps"]) <= 10
        assert min(run.metrics[FREELY], run.metrics[STEPPED]) > 0
    if study == "grid":  # on the way
        (file,) = place.journal.rglob("comparison.json")
        for facts in json.loads(file.read_text())["environment"].values():
            for phase in ("inference", "train"):
                text = facts[f"warm-up of the GPU, {phase}"]
                assert re.fullmatch(r"\d\.\d to \d\.\d s: steady \(\d\)", text)


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_phases_of_a_demo_last_on_a_gpu(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = studies.load("lenet").presets["demo"]
    costs = {name: {"step": 0.01, "infer": 0.004} for name in ("toy", "toy+twin")}
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(costs))
    cells = measured(place, "lenet", frameworks="toy,toy+twin", data="digits")
    doublings = [
        {int(run.params[name]) / demo[name] for run in cells}
        for name in ("epochs", "inference_requests")
    ]
    assert doublings == [{2}, {4}]
    assert {run.name.count("epochs") for run in cells} == {0}


def test_phases_are_lengthened_for_the_fastest_framework() -> None:
    settings = replace(classification.Settings(), batch_size=10, phase_seconds=2.0)
    findings = [
        {STEP_SECONDS: "0.5", REQUEST_SECONDS: "0.003"},
        {STEP_SECONDS: "0.001", REQUEST_SECONDS: "0.002"},
    ]
    longer = steps.lengthened(settings, 1_000, findings)  # 1 s and 0.2 s as set
    assert (longer.epochs, longer.inference_requests) == (20, 1_600)
    assert steps.lengthened(longer, 1_000, findings) == longer
    assert steps.lengthened(settings, 1_000, []) == settings


def test_page_of_gpus_has_the_defaults() -> None:
    page = (ROOT / "docs" / "gpu" / "index.md").read_text()
    names = {name for name in studies.CPU_ONLY if f"`{name}`" in page}
    assert names == studies.CPU_ONLY
    for name in studies.available():
        for setting, value in studies.load(name).demo_on_gpu.items():
            of_phases = f"{value:g} s (`phase_seconds`)"
            assert (of_phases if setting == "phase_seconds" else f"`{setting}={value:g}`") in page


@pytest.mark.usefixtures("gpu")
def test_a_users_length_is_not_changed() -> None:
    study = studies.load("lenet")
    parsed: list[Any] = [
        studies.parse_settings(study, {"device": "cuda", **options})
        for options in ({}, {"epochs": "3"}, {"inference_requests": "9", "phase_seconds": "1"})
    ]
    assert [settings.phase_seconds for settings in parsed] == [2.0, 0.0, 1.0]


@pytest.mark.usefixtures("gpu")
def test_presets_of_a_gpu_leave_a_users_settings(place: Place) -> None:
    texts = {"frameworks": "toy", **CAPTIONS, "threads": "1", "window_steps": "3"}
    (cell,) = measured(place, "captioning", preset="smoke", **texts)
    assert (cell.params["threads"], cell.params["window_steps"]) == ("1", "3")
    is_short = cpus().usable > 1
    assert ("threads=1 of " in cell.tags.get("warnings", "")) == is_short
    (folder,) = place.journal.iterdir()
    freely, stepped = (cell.metrics[name] for name in (FREELY, STEPPED))
    assert agreement(folder) == {"toy": [freely / stepped]}
