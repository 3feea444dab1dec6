"""Framework, model, data format, study, command and metric: each is added by one edit."""

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

from tests.conftest import ROOT, Place

FILES = {
    "models/frameworks/mine/__init__.py": '''
"""A framework of one's own."""
from models.frameworks import Variant

_MINE = Variant(
    architecture="numbers", packages=("numpy",), distributions=("numpy",), has_pipeline=True
)
VARIANTS = {"mine": _MINE, "mine+again": _MINE}
''',
    "models/frameworks/mine/adapter.py": '''
from tests.toy_framework.adapter import Adapter as Toy


class Adapter(Toy):
    """The tests' framework by another name, with architecture files in the models' folders."""

    architecture = "numbers"
''',
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
    "models/tiny/numbers.py": """
from tests.toy_framework.networks import Network


def build(spec):
    return Network(spec.shapes(), spec.shapes().parameters, output="words.bias")
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


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a copy of the source with one addition of each kind, in which commands run."""
    for package in ("experiments", "models", "tracking"):
        shutil.copytree(ROOT / package, tmp_path / package)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(
    source: Path, environment: Mapping[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    environment = {**environment, "PYTHONPATH": os.pathsep.join([str(source), *sys.path])}
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
    )


def data(folder: Path) -> Path:
    """Write sixty pictures whose label is the lit row."""
    folder.mkdir()
    labels = np.arange(60) % 8
    pictures = np.zeros((60, 8, 8), np.uint8)
    pictures[np.arange(60), labels] = 255
    np.save(folder / "pictures.npy", pictures)
    np.save(folder / "labels.npy", labels)
    return folder


def test_additions_run(place: Place, source: Path) -> None:
    settings = {
        "data": str(data(source / "mine")),
        "remark": "mine",
        "input": "native",
        "workers": "0",
        "threads": "1",
    }
    settings |= {
        "blocks": "3",
        "inference_requests": "3",
        "sensor_seconds": "0.1",
        "others_limit_percent": "100",
        "cache": str(place.cache),
        "journal": str(place.journal),
    }
    done = run(
        source,
        place.environment,
        "-m",
        "experiments",
        "own",
        *(f"--{name}={value}" for name, value in settings.items()),
    )
    assert done.returncode == 3, done.stdout + done.stderr  # three blocks: no verdict
    assert "first training step" in done.stdout.lower(), done.stdout  # the study's headline
    cells = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")
    assert {cell.data.tags["framework"] for cell in cells} == {"mine", "mine+again"}
    assert {
        (cell.data.tags["model"], cell.data.tags["dataset"], cell.data.tags["parity"])
        for cell in cells
    } == {("tiny", "arrays", "equal")}
    losses = [cell.data.metrics["val/loss"] for cell in cells if cell.data.tags["block"] == "1"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)  # the same program twice


def test_study_is_validated_on_import(source: Path) -> None:
    script = """
from experiments import studies
from experiments.config import settings
kind = studies.load("own").settings
assert "remark" in settings.names_not_affecting_measurement(kind)
assert "remark" in studies.poolable_names()
assert "remark" not in settings.searchable(kind) and "batch_size" in settings.searchable(kind)
"""
    done = run(source, os.environ, "-B", "-c", script)
    assert done.returncode == 0, done.stderr
    path = source / "experiments/studies/own.py"
    text = path.read_text()
    for right, wrong in {
        "title=": "titel=",
        '"epochs": 1': '"epoch": 1',
        "primary=()": 'primary=("val/acuracy",)',
    }.items():
        path.write_text(text.replace(right, wrong))
        done = run(source, os.environ, "-B", "-c", script)
        assert "TypeError" in done.stderr.splitlines()[-1], done.stderr


def test_command_is_listed_explained_and_run(source: Path) -> None:
    for words, printed in {
        ("--help",): r"greet +Greet somebody",
        ("greet", "--help"): "who is greeted",
        ("greet", "world"): "hello world",
    }.items():
        done = run(source, os.environ, "-m", "experiments", *words)
        assert done.returncode == 0, done.stderr
        assert re.search(printed, done.stdout)


def test_metric_is_one_entry_of_the_catalogue(source: Path) -> None:
    """Add an entry; it reaches verdicts, sentences, tables and the goals of a search."""
    catalogue = source / "experiments" / "metrics.py"
    more = 'headline=("training", 0), verb="reads", short=("tokens",)'
    entry = (
        f'    _ratio("train/tokens_per_second", "reading speed", "tokens/s", "higher", {more}),\n'
    )
    catalogue.write_text(catalogue.read_text().replace("KNOWN = (\n", f"KNOWN = (\n{entry}", 1))
    script = """
import pandas as pd
from experiments.comparison import compare
from experiments.comparison.report import tables
from experiments.sweep import goals
noise = [1, 1.01, 0.99, 1.02, 0.98, 1.01]
rows = [
    {
        "run_id": f"{level}{block}",
        "framework": level,
        "block": block,
        "train/tokens_per_second": speed * factor,
    }
    for level, speed in (("a", 1e3), ("b", 2e3)) for block, factor in enumerate(noise)
]
result = compare(pd.DataFrame(rows), baseline="a")
(row,) = tables.verdicts(result).rows
finding = result.findings[0]
print(finding.row.verdict, finding.good, row[0], row[2], result.sentences[0])
print(goals.objectives("tokens", ())[0])
"""
    done = run(source, os.environ, "-c", script)
    assert done.returncode == 0, done.stderr
    judged, searched = done.stdout.splitlines()
    assert judged.startswith("faster True reading speed 2,")
    assert "tokens/s b reads 2" in judged
    assert "metric='train/tokens_per_second'" in searched
    assert searched.endswith("direction='max')")
