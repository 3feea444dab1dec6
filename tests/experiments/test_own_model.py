"""Models of users, in folders: the tutorial's commands, the gate, and refusals."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import models
from experiments.cli.codes import DONE, FAILED, NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from models import own
from tests import warm
from tests.conftest import Place, wait_for
from tests.documented import commands
from tracking.records import StoredRun
from tracking.store import Store

TUTORIAL = [command for command in commands() if command.page == "docs/own-model.md"]
TUTORIAL = [command for command in TUTORIAL if command.runs]
SETTINGS = {
    "inference_requests": "3",
    "sensor_seconds": "0.1",
    "others_limit_percent": "100",
    "figures": "false",
}
ONE_BLOCK = ("--blocks=1", "--epochs=1")


def run(place: Place, *words: str, code: int = DONE) -> str:
    """Run a command; one that measures has few requests, on a machine that others may use."""
    settings = {"cache": str(place.cache), "journal": str(place.journal), **SETTINGS}
    options = [f"--{name}={text}" for name, text in settings.items()]
    measures = options if words[0] == "classification" else []
    done = place.call(sys.executable, "-m", "experiments", *words, *measures)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def runs_of(place: Place, kind: str) -> list[StoredRun]:
    return [run for run in Store(place.uri).runs("classification") if run.tags["kind"] == kind]


@pytest.mark.slow
def test_tutorial_can_be_followed(place: Place) -> None:
    names = [command.words[1] for command in TUTORIAL]
    assert names == ["new", "new", "parity", "parity", "classification"]
    for command in TUTORIAL:
        # one block gives no verdict
        code = NO_VERDICT if command.words[1] == "classification" else DONE
        run(place, *command.words[1:], code=code)
    (campaign,) = runs_of(place, "campaign")
    assert campaign.tags["parity"] == "equal"
    assert re.fullmatch(r"my_net@\w{12}", campaign.tags["model"])
    files = {file.path for file in Store(place.uri)._client.list_artifacts(campaign.run_id)}
    assert {"my_net.spec.py", "my_net.pytorch.py", "my_net.keras.py", "parity.json"} <= files
    cells = runs_of(place, "cell")
    assert {cell.tags["model"] for cell in cells} == {campaign.tags["model"]}
    # resumed from another folder; with other sources the campaign is refused
    options = ["--resume=last", f"--cache={place.cache}", f"--journal={place.journal}"]
    command_line = (sys.executable, "-m", "experiments", "classification", *options)
    assert place.call(*command_line).returncode == NO_VERDICT
    with (place.folder / "my_net" / "spec.py").open("a") as file:
        file.write("# changed\n")
    done = place.call(*command_line)
    assert done.returncode == WRONG_CALL
    assert "my_net" in done.stderr


NETWORK = """
from torch import nn


def small(num_classes=7):
    norm, pool = nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)
    layers = nn.Conv2d(1, 4, 3, bias=False), norm, nn.ReLU(), pool, nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, num_classes))


class Fixed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(28 * 28, 10))


def in_parts():
    return nn.LSTM(3, 4)
"""


def make_from(place: Place, name: str, source: str) -> str:
    """Make a model from a network in a process that has PyTorch; return its errors."""
    (place.folder / "nets.py").write_text(NETWORK)
    words = ("new", "model", name, f"--from={source}", "--output=made")
    command = (sys.executable, "-m", "experiments", *words)
    done = warm.run(command, place.environment, place.folder, framework="pytorch")
    assert done.returncode == (WRONG_CALL if done.stderr else DONE)
    return done.stderr


@pytest.mark.parametrize(
    ("source", "sizes", "files"),
    [
        ("torchvision:resnet18", (3, 8, None, 1_000, (11_689_512, 9_600)), 2),
        ("torch:nets:small", (1, 8, None, 7, (36 + 8 + 4 * 7 + 7, 8)), 3),
        ("torch:nets:Fixed", (1, 28, 28, 10, (7_850, 0)), 3),
    ],
)
def test_network_in_pytorch_becomes_a_model(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    sizes: tuple[int, int, int | None, int, tuple[int, int]],
    files: int,
) -> None:
    name = f"from_{source.rpartition(':')[2].lower()}"
    assert make_from(place, name, source) == ""
    folder = place.folder / "made" / name
    assert len(list(folder.iterdir())) == files
    monkeypatch.setenv(own.FOLDERS, "")
    definition = models.spec(own.add(folder))
    kind, spec = definition.Spec, definition.Spec()
    counts = definition.parameters(spec)
    assert (kind.channels, kind.least_side, kind.only_side, spec.classes, counts) == sizes


def test_network_in_pytorch_is_measured(place: Place) -> None:
    """Its cells start in other folders than that of its module."""
    assert make_from(place, "mine", "torch:nets:small") == ""
    (place.folder / "nets.py").unlink()
    few = ("--steps_per_epoch=8", "--image_size=28", "--batch_size=16", "--threads=1")
    call = ("classification", "--model=./made/mine/", "--frameworks=pytorch")
    run(place, *call, *few, *ONE_BLOCK, code=NO_VERDICT)
    (cell,) = runs_of(place, "cell")
    assert cell.tags["outcome"] == "ok"
    assert cell.metrics["model/trainable_parameters"] == 36 + 8 + 4 * 10 + 10


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("torchvision:resnet19", "resnet19"),
        ("torch:nothing:small", "No module named 'nothing'"),
        ("torch:nets:in_parts", "(n, classes)"),
    ],
)
def test_network_that_cannot_be_described_is_one_line(place: Place, source: str, part: str) -> None:
    (line,) = make_from(place, "mine", source).splitlines()
    assert part in line
    assert not (place.folder / "made" / "mine").exists()


@pytest.mark.slow
def test_network_that_ends_its_cell_is_a_failed_cell(place: Place) -> None:
    run(place, "new", "model", "leaving")
    file = place.folder / "leaving" / "pytorch.py"
    odd = "    import sys\n    if 'experiments.workloads.classification.train' in sys.modules:\n"
    odd += "        raise type('Odd', (BaseException,), {})('\\x1b[31mred')\n"
    file.write_text(re.sub(r"(def build\(.*\n)", lambda match: match[0] + odd, file.read_text()))
    words = ("classification", "--model=./leaving/", *ONE_BLOCK, "--frameworks=pytorch")
    output = run(place, *words, code=FAILED)
    assert "\x1b[31m" not in output
    (cell,) = runs_of(place, "cell")
    outcome = cell.tags["outcome"], cell.tags["outcome_reason"]
    assert outcome == ("failed", "Odd: \x1b[31mred"), output


HOSTILE = {
    "broken": "nothing",
    "ending": "raise SystemExit(0)",
    "stopping": "raise KeyboardInterrupt",
    "raising": r"raise type('\x1b[31mOdd', (BaseException,), {})('\x1b]0;title\a\nmore')",
    "mute": (
        "class Mute(BaseException):\n    def __str__(self):\n        raise ValueError\nraise Mute"
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(own.FOLDERS, "")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("new model lenet", "name=lenet"),
        ("new model My-Net", "My-Net"),
        ("new models a", "kind=models"),
        ("new model a --from=torchvision", "torchvision:resnet18"),
        ("new model broken", "name=broken"),
        ("classification --model=./nowhere/", "spec.py"),
        ("classification --model=./lenet/", "lenet"),
        ("parity --models=lenet,./broken/", "NameError: name 'nothing' is not defined"),
        ("parity --models=lenet,./ending/", "SystemExit: 0"),
        ("parity --models=lenet,./stopping/", "spec.py, line 1: KeyboardInterrupt"),
        ("parity --models=lenet,./raising/", "Odd: \\x1b]0;title\\x07 more"),
        ("classification --model=./mute/", "Mute"),
        ("classification --model=./loop/", "model=loop"),
    ],
)
@pytest.mark.timeout(60)
def test_unusable_code_is_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    part: str,
) -> None:
    for name, text in {"lenet": "", **HOSTILE}.items():
        (folder / name).mkdir()
        (folder / name / "spec.py").write_text(text)
    (folder / "loop").symlink_to("loop")
    assert main(words.split()) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line
    assert line.isprintable()


@pytest.mark.timeout(120)
def test_ctrl_c_ends_an_endless_spec(place: Place) -> None:
    (place.folder / "endless").mkdir()
    text = "open('begun', 'w').close()\nwhile True:\n    pass\n"
    (place.folder / "endless" / "spec.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", "classification", "--model=./endless/"],
        env=place.environment,
        cwd=place.folder,
        stderr=subprocess.PIPE,
        text=True,
        # ignored where the tests run in the background of a script
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for((place.folder / "begun").exists, 60)
    time.sleep(0.5)  # the parent may not have come back from starting it
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "evenhand: stopped by SIGINT\n")
