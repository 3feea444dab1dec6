"""A model and a data set of somebody else's, in folders of their own: the tutorial's commands, the gate, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli.codes import DONE, NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from models import own
from tests.conftest import ROOT, Place
from tests.documented import commands
from tracking.store import Store

TUTORIAL = [one for one in commands() if one.page == "docs/own-model.md" and one.runs]
SETTINGS = {"inference_requests": "3", "sensor_seconds": "0.1", "others_limit_percent": "100", "figures": "false"}


def run(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the tutorial; one that measures does so with few requests, on a machine that others may use."""
    given = {"cache": str(place.cache), "journal": str(place.journal), **SETTINGS} if words[0] == "classification" else {}
    return place.call(sys.executable, "-m", "experiments", *words, *(f"--{name}={text}" for name, text in given.items()))


@pytest.mark.slow
def test_the_tutorial_can_be_followed(place: Place) -> None:
    assert [one.words[1] for one in TUTORIAL] == ["new", "parity", "classification", "new", "classification"]
    for one in TUTORIAL:
        done = run(place, *one.words[1:])
        wanted = NO_VERDICT if one.words[1] == "classification" else DONE  # of one block there is none
        assert done.returncode == wanted, done.stdout + done.stderr
    (first, second) = sorted(
        (run for run in Store(place.uri).runs("classification") if run.tags["kind"] == "campaign"), key=lambda run: run.start_ms
    )
    assert first.tags["parity"] == "equal"
    assert second.tags["dataset"] == "my_pictures"
    name, _, digest = first.tags["model"].partition("@")
    assert (name, len(digest)) == ("my_net", 12)
    kept = {one.path for one in Store(place.uri)._client.list_artifacts(first.run_id)}
    assert {"my_net.spec.py", "my_net.pytorch.py", "my_net.keras.py", "parity.json"} <= kept
    cells = [one for one in Store(place.uri).runs("classification") if one.tags["kind"] == "cell"]
    assert {cell.tags["model"] for cell in cells} == {first.tags["model"]}
    assert {cell.metrics["model/trainable_parameters"] for cell in cells} >= {5_418.0}
    _check_a_resumption(place)


def _check_a_resumption(place: Place) -> None:
    """From another folder the model is found again; with other sources the campaign is not continued."""
    options = ["--resume=last", f"--cache={place.cache}", f"--journal={place.journal}"]
    done = place.call(sys.executable, "-m", "experiments", "classification", *options)
    assert done.returncode == NO_VERDICT, done.stdout + done.stderr
    with (place.folder / "my_net" / "spec.py").open("a") as file:
        file.write("# changed\n")
    done = place.call(sys.executable, "-m", "experiments", "classification", *options)
    assert done.returncode == WRONG_CALL
    assert "my_net has changed since the campaign began" in done.stderr


def test_the_gate_refuses_sides_that_differ(place: Place) -> None:
    assert run(place, "new", "model", "leaning").returncode == DONE
    file = place.folder / "leaning" / "keras.py"
    file.write_text(file.read_text().replace("layers.ReLU()(convolution(x,", "layers.LeakyReLU(0.01)(convolution(x,"))
    done = run(place, "classification", "--model=./leaning/", "--blocks=1", "--epochs=1", "--frameworks=pytorch,keras-torch")
    assert done.returncode == WRONG_CALL, done.stdout + done.stderr
    assert "leaning of keras-torch is not equal to that of pytorch: forward of outputs differs" in done.stderr
    assert ", first between conv2 and classifier" in done.stderr


def test_a_vision_transformer_is_proven_and_measured(place: Place) -> None:
    """One of docs/own-model.md, with a layer and a rule for its weights in it."""
    folder = ROOT / "tests" / "models" / "own" / "vision_transformer"
    done = run(place, "parity", f"--models={folder}/", "--frameworks=pytorch,keras-torch")
    assert done.returncode == DONE, done.stdout + done.stderr
    few = ("--blocks=1", "--epochs=1", "--steps_per_epoch=8", "--batch_size=16", "--threads=1")
    few += ("--frameworks=pytorch,keras-torch",)
    done = run(place, "classification", f"--model={folder}/", *few)
    assert done.returncode == NO_VERDICT, done.stdout + done.stderr
    runs = list(Store(place.uri).runs("classification"))
    (campaign,) = (run for run in runs if run.tags["kind"] == "campaign")
    assert campaign.tags["parity"] == "equal"
    cells = [run for run in runs if run.tags["kind"] == "cell"]
    outcomes = {cell.tags["framework"]: cell.tags["outcome"] for cell in cells}
    assert outcomes == {"pytorch": "ok", "keras-torch": "ok"}
    assert {cell.metrics["model/trainable_parameters"] for cell in cells} == {53_354.0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(own.FOLDERS, "")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new", "model", "lenet"], "evenhand has a 'lenet' of its own"),
        (["new", "model", "My-Net"], "small letters, digits and _"),
        (["new", "model"], "name is missing: "),
        (["new", "models", "a"], "kind=models is not known; choose model, dataset"),
        (["new", "model", "there"], "there is there already"),
        (["classification", "--model=./nowhere/"], "there is no spec.py; `evenhand new model NAME` writes"),
        (["classification", "--model=./lenet/"], "evenhand has a 'lenet' of its own"),
        (["parity", "--models=lenet,./broken/"], "spec.py cannot be imported: NameError: name 'nothing' is not defined"),
        (["classification", "--data=nowhere.py"], "there is no such file; `evenhand new dataset NAME` writes one"),
        (["classification", "--data=failing.py"], "failing.py, line 3: ValueError: no pictures"),
        (["classification", "--data=empty.py"], "read() returned NoneType; it returns Pictures"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_cannot_be_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    for name, text in {"lenet": "", "there": "", "broken": "nothing"}.items():
        (folder / name).mkdir()
        (folder / name / "spec.py").write_text(text)
    (folder / "failing.py").write_text("\ndef read(folder):\n    raise ValueError('no pictures')\n")
    (folder / "empty.py").write_text("def read(folder):\n    return None\n")
    assert main(words) == WRONG_CALL
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_a_version_of_a_model_has_a_name_of_its_own(folder: Path) -> None:
    (folder / "net").mkdir()
    (folder / "net" / "spec.py").write_text("one")
    assert own.add(folder / "net") == "net"
    first = own.labelled("net")
    (folder / "net" / "spec.py").write_text("two")
    assert own.labelled("net") != first
    assert own.labelled("lenet") == "lenet"
