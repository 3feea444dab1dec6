"""Settings of a cell in its process, by what the process reports from inside."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet
import pytest

import models
from experiments import studies
from experiments.config import devices, memory
from experiments.config import settings as settings_
from experiments.contract import CellSpec, Prepared, Treatment
from experiments.run.cell_run import CellTask, cell_spec
from experiments.run.plan import Plan
from experiments.run.prepared import PreparedCampaign
from experiments.studies import captioning
from models import weights
from models.contract import Weights
from tests import slurm
from tests.conftest import QUICK, Place
from tests.experiments.datasets.folders import picture
from tests.slurm import Slurm
from tracking.store import Store

# Faults of 3 × 40 MB that are mapped anew, with huge pages; kept memory has none of them.
MAPPED_ANEW = 100


@dataclass(frozen=True)
class Cell:
    """Reports of a cell's process and of the extraction of its features, if there was one.

    phases: phase → rows, rows of the warm-up.
    """

    seen: Mapping[str, Any]
    phases: Mapping[str, tuple[int, int]]
    extraction: Mapping[str, Any]

    def calls(self, name: str) -> int:
        return int(self.seen["calls"].get(name, 0))

    def answers(self, **options: int) -> dict[int, int]:
        """Return rows of a request → number of such requests with these words or beams."""
        needed, counts = {f"{name}={value}" for name, value in options.items()}, dict[int, int]()
        for call, count in self.seen["calls"].items():
            kind, *words = call.split()
            if kind == "answers" and needed <= set(words):
                rows = int(words[-1].removeprefix("shape=").split("x")[0])
                counts[rows] = counts.get(rows, 0) + count
        return counts


# Two values of a setting, and a check that a cell's process got the value of its level.
Check = tuple[str, str, Callable[[Cell, Any], bool]]


def on(name: str) -> Callable[[Cell, Any], bool]:
    return lambda cell, settings: bool(cell.seen[name] == getattr(settings, name))


def of_spec(name: str) -> Callable[[Cell, Any], bool]:
    return lambda cell, settings: bool(cell.seen["spec"][name] == str(getattr(settings, name)))


def has_step_rows(cell: Cell, settings: Any) -> bool:
    """Return whether a step has the rows; of prefixes they are a multiple of 64."""
    rows = cell.seen["inputs"]["shapes"][0][0]
    is_sequence = settings.formulation == "sequence"
    return bool(rows == settings.batch_size if is_sequence else rows % 64 == 0)


def has_requests(cell: Cell, settings: Any) -> bool:
    size, warmup = settings.inference_batch_sizes[0], settings.warmup_requests
    count = warmup + settings.inference_requests
    is_stored = cell.phases[f"inference_batch_{size}"] == (count, warmup)
    return is_stored and cell.answers(words=settings.inference_words, beams=1).get(size) == count


def is_captioned(cell: Cell, settings: Any) -> bool:
    return settings.bleu_images in cell.answers(beams=settings.beams)


def is_extracted(cell: Cell, settings: Any) -> bool:
    """Return whether so many pictures of that size were read; a call has up to 32 of them."""
    shape = f"x{settings.image_size}x{settings.image_size}x3"
    calls = cell.extraction["calls"].items()
    return sum(count for call, count in calls if shape in call) == -(-settings.images // 32)


@cache
def densenet() -> Weights:
    """Return the weights of `FILE`."""
    module = models.spec("densenet201")
    return module.initial_weights(module.Spec(classes=None), np.random.default_rng(7))


CHECKS: dict[str, Check] = {
    "frameworks": (
        "toy",
        "toy+twin",
        lambda cell, settings: cell.seen["framework"] == settings.frameworks[-1],
    ),
    "device": (
        "cpu",
        "auto",
        lambda cell, settings: cell.seen["device"] == devices.resolve(settings.device, settings),
    ),
    "conv_algorithm": ("profiled", "heuristic", on("conv_algorithm")),
    "threads": ("2", "3", on("threads")),
    "pin": (
        "none",
        "auto",
        lambda cell, settings: tuple(cell.seen["affinity"]) == devices.cpus_of_cells(settings),
    ),
    "malloc": (
        "system",
        "keep",
        lambda cell, settings: (cell.seen["faults"] < MAPPED_ANEW) == (settings.malloc == "keep"),
    ),
    "memory_limit": (
        "8GiB",
        "6GiB",
        lambda cell, settings: cell.seen["memory_limit"] == memory.size(settings.memory_limit),
    ),
    "formulation": ("sequence", "prefix", has_step_rows),
    "batch_size": ("8", "4", has_step_rows),
    "epochs": ("2", "1", lambda cell, settings: cell.calls("epochs") == settings.epochs),
    "steps_per_epoch": (
        "4",
        "5",
        lambda cell, settings: cell.calls("steps") == settings.epochs * settings.steps_per_epoch,
    ),
    "warmup_steps": (
        "1",
        "2",
        lambda cell, settings: cell.phases["train"][1] == settings.warmup_steps,
    ),
    "optimizer": (
        "adam",
        "adam-stock",
        lambda cell, settings: cell.seen["optimizer"]["name"] == settings.optimizer,
    ),
    "learning_rate": (
        "0.01",
        "0.02",
        lambda cell, settings: cell.seen["optimizer"]["learning_rate"] == settings.learning_rate,
    ),
    "dropout": ("0.5", "0.25", of_spec("dropout")),
    "precision": ("float32", "bfloat16", on("precision")),
    "vocabulary": ("60", "70", of_spec("vocabulary")),
    "length": ("8", "9", of_spec("length")),
    "validation_captions": (
        "8",
        "12",  # evaluated before and after each epoch
        lambda cell, settings: (
            cell.calls("evaluations")
            == 1 + settings.epochs * (settings.validation_captions // settings.batch_size)
        ),
    ),
    "bleu_images": ("4", "3", is_captioned),
    "beams": ("3", "2", is_captioned),
    "inference_batch_sizes": ("2", "5", has_requests),
    "inference_requests": ("7", "6", has_requests),
    "warmup_requests": ("2", "1", has_requests),
    "inference_words": ("5", "6", has_requests),
}
# Checks that need pictures are separate: synthetic data have none.
OF_PICTURES: dict[str, Check] = {
    "images": ("40", "80", is_extracted),
    "image_size": ("32", "40", is_extracted),
    "weights": (
        "random",
        "FILE",
        lambda cell, settings: (
            (cell.extraction["weights"] == weights.digest(densenet()))
            == (settings.weights != "random")
        ),
    ),
}
# Share of the pictures that train.
SPLITS = {"own": 0.5, "random": 0.85}
OF_SPLIT: dict[str, Check] = {
    "split": (
        "own",
        "random",
        lambda cell, settings: (
            cell.calls("steps")
            == round(SPLITS[settings.split] * PICTURES_OF_A_SPLIT) // settings.batch_size
        ),
    )
}
OF_DATA: dict[str, Check] = {
    "data": (
        "synthetic",
        "scenes",
        lambda cell, settings: bool(cell.extraction) == (settings.data == "scenes"),
    )
}
SYNTHETIC = {**QUICK, "data": "synthetic", "blocks": "1"}
PICTURES = {**SYNTHETIC, "data": "scenes", "frameworks": "toy", "weights": "random"}
PICTURES_OF_A_SPLIT = 20
SPLIT = {**PICTURES, "data": "FOLDER", "batch_size": "2", "epochs": "1", "steps_per_epoch": "0"}
GROUPS = {
    "everything": (SYNTHETIC, CHECKS),
    "pictures": (PICTURES, OF_PICTURES),
    "split": (SPLIT, OF_SPLIT),
    "data": (PICTURES, OF_DATA),
}


def test_settings_of_a_cell_are_all_checked() -> None:
    """A new setting fails here until it has two values and a check of a cell's process."""
    checked = [name for _, checks in GROUPS.values() for name in checks]
    assert settings_.searchable(captioning.Settings) == set(checked)


def other(value: Any, name: str) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (*value, *value) or ((1,) if name == "drop_epochs" else ("other",))
    return value + ("other" if isinstance(value, str) else 1)


def test_settings_of_all_studies_reach_a_cell_as_json() -> None:
    shared = settings_.searchable(captioning.Settings)
    count = 0
    for study in studies.available():
        module = studies.load(study)
        settings = settings_.parse(module.settings, module.presets, {})
        prepared = PreparedCampaign(study, settings, cast(Plan, None), cast(Prepared, None))
        for name in sorted(settings_.searchable(module.settings) - shared):
            for value in (getattr(settings, name), other(getattr(settings, name), name)):
                treatment = Treatment("cell", "toy", settings={name: value})
                task = CellTask(treatment, "cell", "cell", {}, {}, 1)
                message = json.loads(json.dumps(cell_spec(prepared, task, Path()).to_values()))
                assert not message["settings"].keys() & {"journal", "cache", "executor"}
                received = CellSpec.from_values(message, module.settings).settings
                assert getattr(received, name) == value, (study, name)
                count += 1
    assert count > 80


@pytest.mark.parametrize("group", GROUPS)
def test_cell_has_the_settings_of_its_level(
    place: Place, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    check_levels(place, *GROUPS[group])


def check_levels(place: Place, base: Mapping[str, str], checks: Mapping[str, Check]) -> None:
    """Run a campaign of the first and the second values of all settings of a group."""
    files = {
        "FILE": f"{place.folder}/densenet.safetensors",
        "FOLDER": str(make_half_split(place.folder / "pictures")),
    }
    if "weights" in checks:
        weights.write_safetensors(densenet(), Path(files["FILE"]))
    cached = place if base["data"] == "synthetic" else place.without_features()
    first = {**base, "cache": str(cached.cache), "journal": str(place.journal)}
    first |= {name: check[0] for name, check in checks.items()}
    first["data"] = files.get(first["data"], first["data"])
    second = {name: files.get(check[1], check[1]) for name, check in checks.items()}
    arguments = ("captioning", json.dumps(first), json.dumps(second))
    done = place.call(sys.executable, "-m", "tests.experiments.two_levels", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    params = []
    for level, values in {"default": first, "best": first | second}.items():
        settings = settings_.parse(captioning.Settings, captioning.STUDY.presets, values)
        cell = cell_of(place, level, is_first=level == "default")
        for name, (*_, is_received) in checks.items():
            assert is_received(cell, settings), (level, name, cell.seen)
        (run,) = (
            run for run in Store(place.uri).runs("captioning") if run.tags.get("treatment") == level
        )
        params.append(run.params)
    same = {name for name in checks if params[0].get(name, "") == params[1].get(name, "")}
    assert same <= {"frameworks", "device"}, "a run logs what its cell was measured with"


def make_half_split(folder: Path) -> Path:
    """Make Flickr8k in Karpathy's form: every second picture is for training."""
    rows = []
    for number in range(PICTURES_OF_A_SPLIT):
        name = f"{number}.png"
        picture(folder / "Images" / name, number)
        captions = [{"raw": f"a dog runs {'fast' if number % 3 else 'slowly'}"}]
        split = ("train", "val")[number % 2]
        rows.append({"filename": name, "split": split, "sentences": captions})
    (folder / "dataset_flickr8k.json").write_text(json.dumps({"images": rows}))
    return folder


def cell_of(place: Place, level: str, *, is_first: bool) -> Cell:
    """Return the only cell of a level, and the last extraction whose features it may have read."""
    (folder,) = place.journal.glob(f"*/cells/block-001-{level}/*/")
    table = pyarrow.parquet.read_table(folder / "values.parquet").to_pandas()
    phases = {
        str(phase): (len(rows), int(rows["warmup"].sum())) for phase, rows in table.groupby("phase")
    }
    extractions = sorted(
        place.journal.glob("*/cells/extraction-toy/*/"), key=lambda folder: folder.stat().st_mtime
    )
    extraction: Mapping[str, Any] = {}
    if len(extractions) == 2:
        extraction = report_of(extractions[0 if is_first else 1])
    elif extractions and not is_first:
        extraction = report_of(extractions[0])
    return Cell(report_of(folder), phases, extraction)


def report_of(folder: Path) -> Mapping[str, Any]:
    environment = json.loads((folder / "environment.json").read_text())
    report: Mapping[str, Any] = json.loads(environment["framework"]["seen"])
    return report


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=1) as running:
        yield running


@pytest.mark.slow
@pytest.mark.debian(package="slurm-wlm")
def test_cell_on_a_cluster_has_the_settings_of_its_level(
    on_cluster: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVENHAND_TOY_SEEN", "EVENHAND_TOY_GPU"):  # the device is the node's: a GPU
        monkeypatch.setenv(name, "1")
    base = {**SYNTHETIC, "executor": "slurm", "partition": "main", "timing": "step"}
    device = ("cpu", "cuda", CHECKS["device"][2])
    check_levels(on_cluster, base, {**CHECKS, "device": device})
