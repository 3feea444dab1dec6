"""A model and a data set of somebody else's, in folders of their own: the tutorial's commands, the gate, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.cli.codes import DONE, NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from models import own
from tests.conftest import ROOT, Place, wait_for
from tests.documented import commands
from tracking.store import Store

TUTORIAL = [one for one in commands() if one.page == "docs/own-model.md" and one.runs]
SETTINGS = {
    "inference_requests": "3",
    "sensor_seconds": "0.1",
    "others_limit_percent": "100",
    "figures": "false",
}


def run(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the tutorial; one that measures does so with few requests, on a machine that others may use."""
    given = (
        {"cache": str(place.cache), "journal": str(place.journal), **SETTINGS}
        if words[0] == "classification"
        else {}
    )
    return place.call(
        sys.executable,
        "-m",
        "experiments",
        *words,
        *(f"--{name}={text}" for name, text in given.items()),
    )


@pytest.mark.slow
def test_the_tutorial_can_be_followed(place: Place) -> None:
    assert [one.words[1] for one in TUTORIAL] == [
        "new",
        "parity",
        "classification",
        "new",
        "classification",
    ]
    for one in TUTORIAL:
        done = run(place, *one.words[1:])
        wanted = (
            NO_VERDICT if one.words[1] == "classification" else DONE
        )  # of one block there is none
        assert done.returncode == wanted, done.stdout + done.stderr
    (first, second) = sorted(
        (run for run in Store(place.uri).runs("classification") if run.tags["kind"] == "campaign"),
        key=lambda run: run.start_ms,
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
    file.write_text(
        file.read_text().replace(
            "layers.ReLU()(convolution(x,", "layers.LeakyReLU(0.01)(convolution(x,"
        )
    )
    done = run(
        place,
        "classification",
        "--model=./leaning/",
        "--blocks=1",
        "--epochs=1",
        "--frameworks=pytorch,keras-torch",
    )
    assert done.returncode == WRONG_CALL, done.stdout + done.stderr
    assert (
        "leaning of keras-torch is not equal to that of pytorch: forward of outputs differs"
        in done.stderr
    )
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


HOSTILE = {
    "ending": "raise SystemExit(0)",
    "raising": r"raise type('\x1b[31mOdd', (BaseException,), {})('\x1b]0;title\a\nmore')",
    "mute": "class Mute(BaseException):\n    def __str__(self):\n        raise ValueError\nraise Mute",
    "endless": "while True:\n    pass",
    "stubborn": "while True:\n    try:\n        while True:\n            pass\n    except TimeoutError as error:\n"
    "        if not globals().setdefault('caught', []):\n            caught.append(error)\n            continue\n        raise",
}


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
        (
            ["classification", "--model=./nowhere/"],
            "there is no spec.py; `evenhand new model NAME` writes",
        ),
        (["classification", "--model=./lenet/"], "evenhand has a 'lenet' of its own"),
        (
            ["parity", "--models=lenet,./broken/"],
            "spec.py cannot be imported: NameError: name 'nothing' is not defined",
        ),
        (
            ["parity", "--models=lenet,./ending/"],
            "ending/spec.py cannot be imported: SystemExit: 0",
        ),
        (
            ["parity", "--models=lenet,./raising/"],
            "raising/spec.py cannot be imported: Odd: \\x1b]0;title\\x07 more",
        ),
        (["classification", "--model=./mute/"], "mute/spec.py cannot be imported: Mute"),
        (
            ["classification", "--model=./endless/"],
            "endless/spec.py cannot be imported: TimeoutError: it takes longer than 1 s",
        ),
        (
            ["classification", "--model=./stubborn/"],
            "stubborn/spec.py cannot be imported: TimeoutError: it takes longer than 1 s",
        ),
        (["classification", "--model=./loop/"], "model=loop cannot be read: "),
        (["classification", "--model=./linked/"], "there is no spec.py"),
        (["classification", "--model=~nobody-of-this-name/net"], "cannot be read: "),
        (["classification", "--data=ending.py"], "ending.py, line 1: SystemExit: 3"),
        (["classification", "--data=endless.py"], ": TimeoutError: it takes longer than 1 s"),
        (
            ["classification", "--data=nowhere.py"],
            "there is no such file; `evenhand new dataset NAME` writes one",
        ),
        (["classification", "--data=failing.py"], "failing.py, line 3: ValueError: no pictures"),
        (["classification", "--data=empty.py"], "read() returned NoneType; it returns Pictures"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
@pytest.mark.timeout(60)
def test_what_cannot_be_is_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(own, "IMPORT_SECONDS", 1.0)
    monkeypatch.setattr(own, "AGAIN_SECONDS", 0.1)
    for name, text in {"lenet": "", "there": "", "broken": "nothing", **HOSTILE}.items():
        (folder / name).mkdir()
        (folder / name / "spec.py").write_text(text)
    (folder / "failing.py").write_text("\ndef read(folder):\n    raise ValueError('no pictures')\n")
    (folder / "ending.py").write_text("raise SystemExit(3)\n")
    (folder / "endless.py").write_text("while True:\n    pass\n")
    (folder / "loop").symlink_to("loop")
    (folder / "linked").mkdir()
    (folder / "linked" / "spec.py").symlink_to("spec.py")
    (folder / "empty.py").write_text("def read(folder):\n    return None\n")
    handler = signal.getsignal(signal.SIGALRM)
    assert main(words) == WRONG_CALL
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert said[:-1].isprintable()
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0, (
        "the time limit of the test itself is there again"
    )


@pytest.mark.timeout(120)
def test_ctrl_c_ends_a_spec_without_an_end(place: Place) -> None:
    """In a process of its own, long before the time limit."""
    (place.folder / "endless").mkdir()
    (place.folder / "endless" / "spec.py").write_text(
        "open('begun', 'w').close()\nwhile True:\n    pass\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-m", "experiments", "classification", "--model=./endless/"],
        env=place.environment,
        cwd=place.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((place.folder / "begun").exists, 60)
    time.sleep(0.5)  # the parent may not have come back from starting it
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=20)
    assert (started.returncode, said) == (130, "evenhand: stopped by SIGINT\n")


@pytest.mark.parametrize("which", ["import", "build"])
def test_a_side_that_ends_the_process_is_one_line(place: Place, which: str) -> None:
    assert run(place, "new", "model", "ending").returncode == DONE
    file = place.folder / "ending" / "keras.py"
    file.write_text(
        {"import": "raise SystemExit(0)\n", "build": "def build(spec):\n    raise SystemExit(0)\n"}[
            which
        ]
    )
    done = run(
        place,
        "classification",
        "--model=./ending/",
        "--blocks=1",
        "--epochs=1",
        "--frameworks=pytorch,keras-torch",
    )
    assert done.returncode == WRONG_CALL, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "parity of ending: keras-torch exited with" in done.stderr
    assert not list(place.journal.glob("*"))


def test_a_network_that_ends_its_cell_is_a_failed_cell_with_its_reason(place: Place) -> None:
    assert run(place, "new", "model", "leaving").returncode == DONE
    file = place.folder / "leaving" / "pytorch.py"
    odd = "    import sys\n    if 'experiments.workloads.classification.train' in sys.modules:\n"
    odd += "        raise type('Odd', (BaseException,), {})('\\x1b[31mred')\n"
    file.write_text(re.sub(r"(def build\(.*\n)", lambda found: found[0] + odd, file.read_text()))
    done = run(
        place,
        "classification",
        "--model=./leaving/",
        "--blocks=1",
        "--epochs=1",
        "--frameworks=pytorch",
    )
    assert "\x1b[31m" not in done.stdout + done.stderr
    (cell,) = [one for one in Store(place.uri).runs("classification") if one.tags["kind"] == "cell"]
    assert (cell.tags["outcome"], cell.tags["outcome_reason"]) == ("failed", "Odd: \x1b[31mred"), (
        done.stdout + done.stderr
    )


def test_a_pipe_in_a_models_folder_is_no_source_of_it(folder: Path) -> None:
    (folder / "net").mkdir()
    (folder / "net" / "spec.py").write_text("one")
    before = own.digest(own.add(folder / "net"))
    os.mkfifo(folder / "net" / "pipe.py")
    (folder / "net" / "loop.py").symlink_to("loop.py")
    (folder / "net" / "more.py").mkdir()
    assert own.digest("net") == before


def test_a_version_of_a_model_has_a_name_of_its_own(folder: Path) -> None:
    (folder / "net").mkdir()
    (folder / "net" / "spec.py").write_text("one")
    assert own.add(folder / "net") == "net"
    first = own.labelled("net")
    (folder / "net" / "spec.py").write_text("two")
    assert own.labelled("net") != first
    assert own.labelled("lenet") == "lenet"
