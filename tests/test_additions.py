"""Additions of each kind, made in a copy of the source, where they run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import mlflow
import numpy as np
import pytest
import yaml

from tests.conftest import ROOT, Place

SOURCES = ("experiments", "models", "tracking")
PROJECTS = ("MLproject", "deploy/kubernetes/campaign/MLproject")  # for `mlflow run` only
# Files and folders that an addition touches. Each framework has its part of a device or precision.
PLACES = {
    "metric": ("experiments/metrics.py",),
    "framework": ("models/frameworks/mine/",),  # or a runtime
    "network": ("models/tiny/",),
    "data format": ("experiments/datasets/labelled/arrays.py",),
    "study": ("experiments/studies/own.py", *PROJECTS),
    "command": ("experiments/cli/commands/greet.py", *PROJECTS),
    "precision": (
        "models/frameworks/__init__.py",
        "models/frameworks/exported.py",
        "models/frameworks/keras/shared.py",
        "models/frameworks/openvino/adapter.py",
        "models/frameworks/pytorch/adapter.py",
    ),
    "device": (
        "models/devices.py",
        "models/frameworks/jax/device.py",
        "models/frameworks/pytorch/device.py",
        "models/frameworks/tensorflow/device.py",
    ),
}
FILES = {
    "models/frameworks/mine/__init__.py": '''
"""A framework of one's own."""
from models.frameworks import Variant

_MINE = Variant(
    architecture="models.frameworks.mine.architectures",
    packages=("numpy",),
    distributions=("numpy",),
    has_pipeline=True,
)
VARIANTS = {"mine": _MINE, "mine+again": _MINE}
''',
    "models/frameworks/mine/adapter.py": '''
from tests.toy_framework.adapter import Adapter as Toy


class Adapter(Toy):
    """The tests' framework by another name, with its own architectures."""

    architecture = "models.frameworks.mine.architectures"
''',
    "models/frameworks/mine/architectures/__init__.py": "",
    "models/frameworks/mine/architectures/tiny.py": """
from tests.toy_framework.networks import Network


def build(spec):
    return Network(spec.shapes(), spec.shapes().parameters, output="words.bias")
""",
    "models/tiny/__init__.py": "",
    "models/tiny/spec.py": """
from dataclasses import dataclass
from typing import ClassVar

from models.layers.images import ImageSpec, Shapes, probe_batch


@dataclass(frozen=True)
class Spec(ImageSpec):
    channels: ClassVar[int] = 1
    only_side: ClassVar[int] = 8

    def shapes(self):
        shapes = Shapes()
        shapes.linear("words", self.classes, 64)
        return shapes


def probe(rng, *, full=False):
    spec = Spec(classes=10)
    return spec, probe_batch(spec, 8, rng)
""",
    "experiments/datasets/labelled/arrays.py": """
import numpy as np

from experiments.datasets.labelled.raw import Pictures, digest_of, held_out, of_arrays

LOOKS_FOR = "two arrays (pictures.npy and labels.npy)"


def detect(path):
    return (path / "pictures.npy").is_file()


def read(path):
    files = [path / "pictures.npy", path / "labels.npy"]
    pictures, labels = map(np.load, files)
    names = tuple(map(str, range(labels.max() + 1)))
    held = held_out(labels)
    digest = digest_of(files)
    return Pictures("arrays", str(path), digest, names, labels, held, lambda: of_arrays([pictures]))
""",
    "experiments/studies/own.py": """
from dataclasses import dataclass, replace

from experiments.metrics import outcome
from experiments.config.settings import setting
from experiments.studies import classification


@dataclass(frozen=True)
class Settings(classification.Settings):
    model: str = setting("tiny", "a model that takes images")
    remark: str = setting("", "what nobody measures", affects_measurement=False, searchable=False)


STUDY = replace(
    classification.STUDY,
    name="own",
    title="A study of one's own",
    settings=Settings,
    presets={
        "demo": {
            "epochs": 1,
            "blocks": 1,
            "batch_size": 8,
            "warmup_steps": 1,
            "frameworks": ("mine", "mine+again"),
            "device": "mine",
            "precision": "mine16",
        }
    },
    outcomes=(
        outcome("train/step_seconds"),
        replace(outcome("train/first_step_seconds"), headline=("start", 1)),
    ),
    primary=(),
    published=(),
)
""",
    "experiments/cli/commands/greet.py": """
from dataclasses import dataclass

from experiments.cli.codes import DONE
from experiments.cli.commands import Command
from experiments.config.settings import setting


@dataclass(frozen=True)
class Greet:
    name: str = setting("", "who is greeted", group="guest")


def run(settings, display):
    display.say(f"hello {settings.name}")
    return DONE


COMMAND = Command("Greet somebody", Greet, run, bare=("name",))
""",
}


# Text after which a line is inserted.
EDITS = {
    "models/devices.py": (
        "ACCELERATORS = {\n",
        '    "mine": Accelerator("accelerator of mine", Path("/dev/null"), "MINE_VISIBLE"),\n',
    ),
    "models/frameworks/__init__.py": ("TRAINING_PRECISIONS = (", '"mine16", '),
    "experiments/metrics.py": (
        "KNOWN = (\n",
        '    _ratio("train/tokens_per_second", "reading speed", "tokens/s", "higher", '
        'headline=("training", 0), verb="reads", short=("tokens",)),\n',
    ),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the source with one addition of each kind, in which commands run."""
    folder = tmp_path_factory.mktemp("source")
    for package in SOURCES:
        shutil.copytree(ROOT / package, folder / package)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, (before, line) in EDITS.items():
        text = (folder / name).read_text()
        assert text.count(before) == 1
        (folder / name).write_text(text.replace(before, before + line))
    return folder


def run(
    source: Path, environment: Mapping[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(source), *sys.path])
    call, variables = [sys.executable, *command], {**environment, "PYTHONPATH": path}
    options = {"cwd": source, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(call, env=variables, **options)


def test_study_of_additions_runs(place: Place, source: Path) -> None:
    """Run the study: its model in its framework, on its device, precision and data."""
    data = place.folder / "data"
    data.mkdir()
    pictures, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 8
    pictures[np.arange(60), labels] = 255  # the label is the lit row
    np.save(data / "pictures.npy", pictures)
    np.save(data / "labels.npy", labels)
    settings = {"data": data, "cache": place.cache, "journal": place.journal, "blocks": 1}
    settings |= {
        "input": "native",
        "workers": 0,
        "threads": 1,
        "inference_requests": 3,
        "timing": "step",
    }
    settings |= {"remark": "mine", "others_limit_percent": 100, "figures": "false"}
    options = [f"--{name}={value}" for name, value in settings.items()]
    done = run(source, place.environment, "-m", "experiments", "own", *options)
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    assert "first training step" in done.stdout.lower(), "the study's headline"
    cells = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")
    assert {cell.data.tags["framework"] for cell in cells} == {"mine", "mine+again"}
    for cell in cells:
        tags, params = cell.data.tags, cell.data.params
        assert (tags["model"], tags["dataset"], tags["parity"]) == ("tiny", "arrays", "equal")
        assert (params["device"], params["precision"]) == ("mine", "mine16")


def test_wrong_study_fails_at_import(source: Path) -> None:
    path = source / "experiments/studies/own.py"
    text = path.read_text()
    for right, wrong in {
        "title=": "titel=",
        '"epochs": 1': '"epoch": 1',
        "primary=()": 'primary=("val/acuracy",)',
    }.items():
        path.write_text(text.replace(right, wrong))
        done = run(source, os.environ, "-B", "-c", "import experiments.studies.own")
        assert "TypeError" in done.stderr.splitlines()[-1], done.stderr
    path.write_text(text)


def test_command_is_listed_explained_and_run(source: Path) -> None:
    for words, printed in {
        ("--help",): r"greet +Greet somebody",
        ("greet", "--help"): "who is greeted",
        ("greet", "world"): "hello world",
    }.items():
        done = run(source, os.environ, "-m", "experiments", *words)
        assert done.returncode == 0, done.stderr
        assert re.search(printed, done.stdout)


METRIC = """
import pandas as pd
from experiments.comparison import compare
from experiments.comparison.report import tables
from experiments.sweep import goals
noise = [1, 1.01, 0.99, 1.02, 0.98, 1.01]
rows = [
    {"run_id": f"{a}{b}", "framework": a, "block": b, "train/tokens_per_second": speed * noise[b]}
    for a, speed in (("a", 1e3), ("b", 2e3)) for b in range(6)
]
result = compare(pd.DataFrame(rows), baseline="a")
(row,) = tables.verdicts(result).rows
finding = result.findings[0]
print(finding.row.verdict, finding.good, row[0], row[2], result.sentences[0])
print(goals.objectives("tokens", ())[0])
"""


def test_metric_reaches_verdicts_sentences_tables_and_goals(source: Path) -> None:
    done = run(source, os.environ, "-c", METRIC)
    assert done.returncode == 0, done.stderr
    judged, searched = done.stdout.splitlines()
    assert judged.startswith("faster True reading speed 2,")
    assert "tokens/s b reads 2" in judged
    assert "metric='train/tokens_per_second'" in searched
    assert searched.endswith("direction='max')")


def modules_with(pattern: str) -> set[str]:
    files = [path for package in SOURCES for path in (ROOT / package).rglob("*.py")]
    return {str(at.relative_to(ROOT)) for at in files if re.search(pattern, at.read_text())}


def test_additions_touch_no_other_places() -> None:
    named = {place for places in PLACES.values() for place in places}
    for path in (*FILES, *EDITS):
        assert any(path.startswith(place) for place in named), path
    assert modules_with(r'"cuda"') == {"models/devices.py"}
    assert modules_with(r"import .*\bCUDA\b|\bCUDA = ") == {
        *PLACES["device"],
        "experiments/config/devices.py",  # asks NVML
    }
    assert modules_with(r'(?<!\w)"bfloat16"') == {
        *PLACES["precision"],
        "experiments/workloads/training_speed/prepare.py",  # a layer that refuses it
    }
    projects = [yaml.safe_load((ROOT / name).read_text())["entry_points"] for name in PROJECTS]
    assert projects[0] == projects[1]
