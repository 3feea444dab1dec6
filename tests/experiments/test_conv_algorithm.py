"""Study of convolutions: its cells, a campaign, its tables, its wrong calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import ablations
from experiments.comparison.runs.query import table
from experiments.config import devices
from experiments.config.settings import parse
from experiments.contract import Treatment
from experiments.run.plan import of_study
from experiments.studies import conv_algorithm
from models.contract import ModelError
from models.frameworks.devices import onednn
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs
from tests.experiments.small_campaigns import cells, run
from tracking.errors import ErrorCode, UsageError


def settings_of(**options: str) -> conv_algorithm.Settings:
    return parse(conv_algorithm.Settings, conv_algorithm.STUDY.presets, options)


@pytest.mark.parametrize(
    ("device", "algorithms"),
    [("cpu", ["plain", "onednn"]), ("cuda", ["fixed", "heuristic", "profiled"])],
)
def test_algorithms_are_those_of_the_device(
    device: str, algorithms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.provenance, "gpus", lambda: ["a GPU"] * (device == "cuda"))
    settings = settings_of(models="resnet18,deepspeech2", batch_sizes="8,16", frameworks="pytorch")
    plan = of_study(conv_algorithm.STUDY, settings)
    assert plan.baseline == algorithms[0]
    points: dict[str, list[str]] = {}
    for cell in plan.treatments:
        points.setdefault(cell.group, []).append(cell.settings["conv_algorithm"])
    names = [f"resnet18 · batch {rows} · fixed" for rows in (8, 16)]
    names += [f"deepspeech2 · batch {rows} · fixed" for rows in (8, 16)]
    names += [f"deepspeech2 · batch {rows} · varying" for rows in (8, 16)]
    assert points == {f"pytorch · {name}": algorithms for name in names}


def test_algorithms_are_measured(place: Place) -> None:
    sizes = {"size": "tiny", "models": "lenet", "batch_sizes": "4", "shapes": "fixed"}
    steps = {"steps": "3", "warmup_steps": "1"}
    run(place, "conv_algorithm", frameworks="pytorch", device="cpu", **sizes, **steps)
    measured = {cell.data.params["conv_algorithm"]: cell.data.metrics for cell in cells(place)}
    assert measured.keys() == {"plain", "onednn"}
    assert all(metrics["train/examples_per_second"] > 0 for metrics in measured.values())


def test_published_epochs_stand_next_to_ours() -> None:
    """On a GPU, as if: a later epoch takes 0.8 of the time of fixed, the first one 0.9."""
    point = {"model": "deepspeech2", "batch_size": "20", "lengths": "varying"}
    pairs = []
    for run_ in runs(
        ("fixed", "profiled"), 6, spread=0.01, params={**point, "framework": "pytorch"}
    ):
        step = run_.metrics["train/step_seconds"]
        later = 0.8 if run_.tags["framework"] == "profiled" else 1.0
        epochs = {
            "train/epoch_seconds": 100 * step * later,
            "train/first_epoch_seconds": 100 * step * (later + 1) / 2,
        }
        pairs.append(replace(run_, metrics={**run_.metrics, **epochs}))
    comparison = compare(
        table(pairs),
        factor="tags.framework",
        baseline="fixed",
        strata=tuple(f"params.{name}" for name in ("framework", *point)),
        outcomes=[ablations.THROUGHPUT, "train/first_epoch_seconds", "train/epoch_seconds"],
    )
    planned = [
        Treatment(name, "pytorch", "measure", {**point, "batch_size": 20, "conv_algorithm": name})
        for name in ("fixed", "profiled")
    ]
    speeds, times = ablations.convolutions(
        comparison, planned, {}, conv_algorithm.EPOCHS, "", size="tiny"
    )
    assert speeds.rows[0][5] == "1"
    profiled = times.rows[1]
    assert float(str(profiled[5]).rstrip("×")) == pytest.approx(0.9, rel=0.03)
    assert profiled[7] == f"{2816 / 3082:.3f}×"
    assert float(str(profiled[8]).rstrip("×")) == pytest.approx(0.8, rel=0.03)
    assert profiled[10] == f"{1940 / 3082:.3f}×"


def test_algorithm_of_a_cpu_is_refused_on_a_gpu() -> None:
    assert [onednn(name, "cpu") for name in ("onednn", "plain", "profiled")] == [True, False, None]
    assert onednn("fixed", "cuda") is None
    with pytest.raises(ModelError, match="plain"):
        onednn("plain", "cuda")


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"frameworks": "pytorch,keras-jax"}, ErrorCode.UNSUPPORTED, "keras-jax"),
        ({"algorithms": "profiled"}, ErrorCode.UNSUPPORTED, "plain, onednn"),
        ({"models": "vgg16", "shapes": "varying"}, ErrorCode.CONFLICT, "shapes=fixed"),
    ],
)
def test_cells_that_cannot_be_are_refused(
    options: dict[str, str], code: ErrorCode, named: str
) -> None:
    with pytest.raises(UsageError, match=named) as error:
        conv_algorithm.treatments(settings_of(device="cpu", **options))
    assert error.value.code is code
