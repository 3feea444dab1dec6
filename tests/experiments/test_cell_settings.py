"""Every setting of a cell reaches its process: by what the process reports from inside, not by what its parent wrote down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet
import pytest

import models
from experiments import studies
from experiments.config import devices, memory
from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from experiments.contract import Prepared, Treatment
from experiments.run.cell_run import CellTask, cell_spec
from experiments.run.plan import Plan
from experiments.run.preparation import PreparedCampaign
from models import weights
from tests import slurm
from tests.conftest import QUICK, ROOT, Place
from tests.experiments.datasets.folders import picture
from tests.slurm import Slurm
from tracking.store import Store

# Faults of 3 × 40 MB that are mapped anew, with huge pages; kept memory has none of them.
MAPPED_ANEW = 100


@dataclass(frozen=True)
class Cell:
    """What a cell's process has left. extraction: the report of what extracted features, if anything did."""

    seen: Mapping[str, Any]
    phases: Mapping[str, tuple[int, int]]
    extraction: Mapping[str, Any] = field(default_factory=dict)

    def calls(self, name: str) -> int:
        return int(self.seen["calls"].get(name, 0))

    def answers(self, **options: int) -> dict[int, int]:
        """Rows of a request → how many requests of so many words or beams there were."""
        asked, found = {f"{name}={value}" for name, value in options.items()}, dict[int, int]()
        for call, count in self.seen["calls"].items():
            kind, *words = call.split()
            if kind == "answers" and asked <= set(words):
                rows = int(words[-1].removeprefix("shape=").split("x")[0])
                found[rows] = found.get(rows, 0) + count
        return found


@dataclass(frozen=True)
class Check:
    """Two values of a setting, and whether a cell's process got the one that its level has."""

    first: str
    second: str
    received: Callable[[Cell, Any], bool]


def on(name: str) -> Callable[[Cell, Any], bool]:
    return lambda cell, settings: bool(cell.seen[name] == getattr(settings, name))


def of_spec(name: str) -> Callable[[Cell, Any], bool]:
    return lambda cell, settings: bool(cell.seen["spec"][name] == str(getattr(settings, name)))


def steps_an_epoch(cell: Cell, settings: Any) -> bool:
    return cell.calls("steps") == settings.epochs * settings.steps_per_epoch


def is_placed(cell: Cell, settings: CampaignSettings) -> bool:
    return tuple(cell.seen["affinity"]) == devices.cpus_of_cells(settings)


def rows_of_a_step(cell: Cell, settings: Any) -> bool:
    """Of a prefix formulation there are rows for every word, always a multiple of 64."""
    rows = cell.seen["inputs"]["shapes"][0][0]
    return bool(
        rows == settings.batch_size if settings.formulation == "sequence" else rows % 64 == 0
    )


def validated(cell: Cell, settings: Any) -> bool:
    """Batches of the held-out captions, before the first epoch and after each."""
    return cell.calls("evaluations") == 1 + settings.epochs * (
        settings.validation_captions // settings.batch_size
    )


def requests(cell: Cell, settings: Any) -> bool:
    size, count = (
        settings.inference_batch_sizes[0],
        settings.warmup_requests + settings.inference_requests,
    )
    in_values = cell.phases[f"inference_batch_{size}"] == (count, settings.warmup_requests)
    return in_values and cell.answers(words=settings.inference_words, beams=1).get(size) == count


def captioned(cell: Cell, settings: Any) -> bool:
    """The pictures of BLEU, greedily and by a search so wide; the greedy ones may be as long as a request's."""
    return settings.bleu_images in cell.answers(beams=settings.beams)


def extracted(cell: Cell, settings: Any) -> bool:
    """Pictures of that size were looked at, so many in all, as one call holds up to 32 of them."""
    side = settings.image_size
    shapes = [call for call in cell.extraction["calls"] if f"x{side}x{side}x3" in call]
    return sum(cell.extraction["calls"][one] for one in shapes) == -(-settings.images // 32)


def weighted(cell: Cell, settings: Any) -> bool:
    """Those of a file are the same for every seed."""
    return (cell.extraction["weights"] == OF_FILE) == (settings.weights != "random")


def trained(cell: Cell, settings: Any) -> bool:
    """Half of the pictures by the data's own split, 85 % by a random one; one caption each."""
    captions = {"own": PICTURES_OF_A_SPLIT // 2, "random": round(0.85 * PICTURES_OF_A_SPLIT)}[
        settings.split
    ]
    return cell.calls("steps") == captions // settings.batch_size


# Of the settings that belong to a cell, two values each. Those of pictures come apart: synthetic data have none.
CHECKS: dict[str, Check] = {
    "frameworks": Check(
        "toy", "toy+twin", lambda cell, own: cell.seen["framework"] == own.frameworks[-1]
    ),
    "device": Check(
        "cpu", "auto", lambda cell, own: cell.seen["device"] == devices.resolve(own.device, own)
    ),
    "conv_algorithm": Check("profiled", "heuristic", on("conv_algorithm")),
    "threads": Check("2", "3", on("threads")),
    "pin": Check("none", "auto", is_placed),
    "malloc": Check(
        "system",
        "keep",
        lambda cell, own: (cell.seen["faults"] < MAPPED_ANEW) == (own.malloc == "keep"),
    ),
    "memory_limit": Check(
        "8GiB", "6GiB", lambda cell, own: cell.seen["memory_limit"] == memory.size(own.memory_limit)
    ),
    "formulation": Check("sequence", "prefix", rows_of_a_step),
    "batch_size": Check("8", "4", rows_of_a_step),
    "epochs": Check("2", "1", lambda cell, own: cell.calls("epochs") == own.epochs),
    "steps_per_epoch": Check("4", "5", steps_an_epoch),
    "warmup_steps": Check("1", "2", lambda cell, own: cell.phases["train"][1] == own.warmup_steps),
    "optimizer": Check(
        "adam", "adam-stock", lambda cell, own: cell.seen["optimizer"]["name"] == own.optimizer
    ),
    "learning_rate": Check(
        "0.01",
        "0.02",
        lambda cell, own: cell.seen["optimizer"]["learning_rate"] == own.learning_rate,
    ),
    "dropout": Check("0.5", "0.25", of_spec("dropout")),
    "precision": Check("float32", "bfloat16", on("precision")),
    "vocabulary": Check(
        "60", "70", lambda cell, own: cell.seen["spec"]["vocabulary"] == str(own.vocabulary)
    ),
    "length": Check("8", "9", lambda cell, own: cell.seen["spec"]["length"] == str(own.length)),
    "validation_captions": Check("8", "12", validated),
    "bleu_images": Check("4", "3", captioned),
    "beams": Check("3", "2", captioned),
    "inference_batch_sizes": Check("2", "5", requests),
    "inference_requests": Check("7", "6", requests),
    "warmup_requests": Check("2", "1", requests),
    "inference_words": Check("5", "6", requests),
}
OF_PICTURES: dict[str, Check] = {
    "images": Check("40", "80", extracted),
    "image_size": Check("32", "40", extracted),
    "weights": Check("random", "FILE", weighted),
}
OF_SPLIT = {"split": Check("own", "random", trained)}
OF_DATA = {
    "data": Check(
        "synthetic", "scenes", lambda cell, own: bool(cell.extraction) == (own.data == "scenes")
    )
}
DENSENET_SPEC = models.spec("densenet201")
OF_FILE = weights.digest(
    DENSENET := DENSENET_SPEC.initial_weights(
        DENSENET_SPEC.Spec(classes=None), np.random.default_rng(7)
    )
)

SYNTHETIC = {**QUICK, "data": "synthetic", "blocks": "1", "save_model": "none"}
PICTURES = {
    **QUICK,
    "data": "scenes",
    "frameworks": "toy",
    "weights": "random",
    "blocks": "1",
    "save_model": "none",
}
PICTURES_OF_A_SPLIT = 20
SPLIT = {**PICTURES, "data": "FOLDER", "batch_size": "2", "epochs": "1", "steps_per_epoch": "0"}
GROUPS = {
    "everything": (SYNTHETIC, CHECKS),
    "pictures": (PICTURES, OF_PICTURES),
    "split": (SPLIT, OF_SPLIT),
    "data": (PICTURES, OF_DATA),
}


def test_every_setting_of_a_cell_is_checked() -> None:
    """A new one fails here until it has two values and a way to see which of them a process got."""
    of_cells = settings_.searchable(studies.load("captioning").settings)
    checked = [(name, check) for _, checks in GROUPS.values() for name, check in checks.items()]
    assert of_cells == {name for name, _ in checked}
    assert all(check.first != check.second for _, check in checked)


def other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (*value, *value) or ("other",)
    return value + ("other" if isinstance(value, str) else 1)


REPORT = """
import json, sys
from experiments.contract import CellSpec
for line in sys.stdin:
    print(json.dumps(CellSpec.from_values(json.loads(line)).settings))
"""


def test_every_setting_of_every_study_reaches_the_process_of_a_treatment() -> None:
    """Each setting that only some studies have, as a process reads it from what the runner sends to a cell."""
    shared = settings_.searchable(studies.load("captioning").settings)
    lines, expected = list[str](), list[tuple[str, str, Any]]()
    for study in studies.available():
        module = studies.load(study)
        settings = settings_.parse(module.settings, module.presets, {})
        prepared = PreparedCampaign(study, settings, cast(Plan, None), cast(Prepared, None))
        for name in sorted(settings_.searchable(module.settings) - shared):
            for value in (getattr(settings, name), other(getattr(settings, name))):
                task = CellTask(
                    Treatment("own", "toy", settings={name: value}), "cell", "cell", {}, {}, 1
                )
                lines.append(json.dumps(asdict(cell_spec(prepared, task, Path()))))
                expected.append((study, name, json.loads(json.dumps(value))))
    sent = "\n".join(lines)
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        input=sent,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    received = [json.loads(line) for line in done.stdout.splitlines()]
    assert [
        (study, name, cell[name]) for (study, name, _), cell in zip(expected, received, strict=True)
    ] == expected
    assert len(expected) > 100


@pytest.mark.parametrize("group", GROUPS)
def test_cell_has_the_settings_of_its_treatment(
    place: Place, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    base, checks = GROUPS[group]
    check_levels(place, base, checks)


def check_levels(
    place: Place, base: Mapping[str, str], checks: Mapping[str, Check], way: str = "treatments"
) -> None:
    """Run a campaign of the first and the second values of all settings of a group."""
    weights.write_safetensors(DENSENET, place.folder / "densenet.safetensors")
    files = {
        "FILE": f"{place.folder}/densenet.safetensors",
        "FOLDER": str(half_for_training(place.folder / "pictures")),
    }
    cache = place.cache if base["data"] == "synthetic" else place.folder / "cache"
    first = {**base, "cache": str(cache), "journal": str(place.journal)}
    first |= {name: check.first for name, check in checks.items()}
    first["data"] = files.get(first["data"], first["data"])
    second = {name: files.get(check.second, check.second) for name, check in checks.items()}
    arguments = (way, "captioning", json.dumps(first), json.dumps(second))
    done = place.call(sys.executable, "-m", "tests.experiments.two_levels", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    levels = [levelled({}, first), levelled(first, second)]
    names = ("first", "second") if way == "treatments" else ("default", "best")
    found = [cell_of(place, name) for name in names]
    wrong = [
        (level, name, getattr(settings, name), cell.seen)
        for level, settings, cell in zip(names, levels, found, strict=True)
        for name, check in checks.items()
        if not check.received(cell, settings)
    ]
    assert wrong == []
    logged = [cell_params(place, name) for name in names]
    same = {name for name in checks if len({params.get(name, "") for params in logged}) == 1}
    assert same <= {"frameworks", "device"}, "what a run logs is what its cell was measured with"


def half_for_training(folder: Path) -> Path:
    """Flickr8k in Karpathy's form: every second picture is for training, with one caption each."""
    rows = []
    for number in range(PICTURES_OF_A_SPLIT):
        picture(folder / "Images" / f"{number}.png", number)
        captions = [{"raw": f"a dog runs {'fast' if number % 3 else 'slowly'}"}]
        rows.append(
            {
                "filename": f"{number}.png",
                "split": ("train", "val")[number % 2],
                "sentences": captions,
            }
        )
    (folder / "dataset_flickr8k.json").write_text(json.dumps({"images": rows}))
    return folder


def levelled(first: Mapping[str, str], own: Mapping[str, str]) -> Any:
    module = studies.load("captioning")
    return settings_.parse(module.settings, module.presets, {**first, **own})


def cell_params(place: Place, treatment: str) -> Mapping[str, str]:
    (run,) = (
        one for one in Store(place.uri).runs("captioning") if one.tags.get("treatment") == treatment
    )
    return run.params


def cell_of(place: Place, treatment: str) -> Cell:
    """The only cell of a treatment, and the last extraction whose features it may have read."""
    (folder,) = place.journal.glob(f"*/cells/block-001-{treatment}/*/")
    table = pyarrow.parquet.read_table(folder / "values.parquet").to_pandas()
    phases = {
        str(phase): (len(rows), int(rows["warmup"].sum())) for phase, rows in table.groupby("phase")
    }
    return Cell(seen(folder), phases, extraction_of(place, treatment))


def extraction_of(place: Place, treatment: str) -> Mapping[str, Any]:
    """What was extracted for a level: the first one's comes first, where it needs any."""
    folders = sorted(
        place.journal.glob("*/cells/extraction-toy/*/"), key=lambda one: one.stat().st_mtime
    )
    is_first = treatment in ("first", "default")
    if len(folders) == 2:
        return seen(folders[0 if is_first else 1])
    return seen(folders[0]) if folders and not is_first else {}


def seen(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(
        json.loads((folder / "environment.json").read_text())["framework"]["seen"]
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_confirmed_cell_has_the_settings_of_its_level(
    place: Place, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    base, checks = GROUPS[group]
    check_levels(place, base, checks, "sweep")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=1) as running:
        yield running


@pytest.mark.slow
@pytest.mark.debian(package="slurm-wlm")
@pytest.mark.parametrize("way", ["treatments", "sweep"])
def test_on_a_cluster_a_cell_has_the_settings_of_its_treatment(
    on_cluster: Place, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """There the device is the node's: the toy framework reports a GPU."""
    for name in ("EVENHAND_TOY_SEEN", "EVENHAND_TOY_GPU"):
        monkeypatch.setenv(name, "1")
    base = {**SYNTHETIC, "executor": "slurm", "partition": "main", "timing": "step"}
    checks = {**CHECKS, "device": replace(CHECKS["device"], second="cuda")}
    check_levels(on_cluster, base, checks, way)


def test_a_sweep_confirms_with_the_settings_that_it_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials and both levels of the confirmation have the threads and memory of their params."""
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    shared = ("sensor_seconds", "others_limit_percent", "figures", "epochs", "batch_size")
    options = {name: QUICK[name] for name in shared} | {
        "experiment": "lenet",
        "search": "threads=3|1,malloc=keep|system",
        "sampler": "grid",
        "trials": "4",
        "frameworks": "toy",
        "steps_per_epoch": "12",
        "inference_requests": "4",
        "blocks": "1",
        "threads": "2",
        "cache": str(place.cache),
        "journal": str(place.journal),
    }
    flags = (f"--{name}={text}" for name, text in options.items())
    done = place.call(sys.executable, "-m", "experiments", "sweep", *flags)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    runs = list(Store(place.uri).runs("lenet"))
    trials = [run for run in runs if run.tags["kind"] == "trial"]
    cells = {run.tags["treatment"]: run for run in runs if run.tags["kind"] == "cell"}
    reports = {
        path.parent.name: seen(path.parent)
        for path in place.journal.glob("*/cells/*/*/environment.json")
    }
    for run in (*trials, *cells.values()):
        report = reports[run.tags["origin"][:8]]
        assert str(report["threads"]) == run.params["threads"]
        assert (report["faults"] < MAPPED_ANEW) == (run.params["malloc"] == "keep")
    combinations = sorted((run.params["threads"], run.params["malloc"]) for run in trials)
    assert combinations == [("1", "keep"), ("1", "system"), ("3", "keep"), ("3", "system")]
    default, best = cells["default"], cells["best"]
    assert (default.params["threads"], default.params["malloc"]) == ("2", "system")
    assert best.params["threads"] in ("1", "3")
    assert default.tags["settings_hash"] != best.tags["settings_hash"]
