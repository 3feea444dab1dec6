"""The study of convolutions: its cells, a real campaign, its tables, its wrong calls."""

from __future__ import annotations

import sys
from dataclasses import replace

import mlflow
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import ablations
from experiments.comparison.runs.query import table
from experiments.config import devices
from experiments.config.settings import parse
from experiments.contract import Treatment
from experiments.run.plan import of_study
from experiments.studies import conv_algorithm
from models.contract import ErrorCode, ModelError
from models.frameworks.devices import onednn
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs
from tracking.errors import UsageError

QUICK = {
    "size": "tiny",
    "models": "deepspeech2",
    "batch_sizes": "4",
    "steps": "3",
    "warmup_steps": "1",
    "threads": "1",
}


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", ("plain", "onednn")), ("cuda", ("fixed", "heuristic", "profiled"))],
)
def test_the_device_says_what_is_compared(
    device: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver alone is pretended: there need not be a GPU."""
    monkeypatch.setattr(devices.provenance, "gpus", lambda: ["a GPU"] if device == "cuda" else [])
    given = {"models": "resnet18,deepspeech2", "batch_sizes": "8,16", "frameworks": "pytorch"}
    plan = of_study(
        conv_algorithm.STUDY, parse(conv_algorithm.Settings, conv_algorithm.STUDY.presets, given)
    )
    assert plan.baseline == expected[0]
    points: dict[str, list[str]] = {}
    for one in plan.treatments:
        points.setdefault(one.group, []).append(one.settings["conv_algorithm"])
    assert points == {
        f"pytorch · {name}": list(expected)
        for name in (
            *(f"resnet18 · batch {rows} · fixed" for rows in (8, 16)),
            *(
                f"deepspeech2 · batch {rows} · {lengths}"
                for rows in (8, 16)
                for lengths in ("fixed", "varying")
            ),
        )
    }


def test_algorithms_are_measured(place: Place) -> None:
    settings = QUICK | {
        "models": "lenet",
        "shapes": "fixed",
        "frameworks": "pytorch",
        "device": "cpu",
        "blocks": "1",
        "others_limit_percent": "100",
        "figures": "false",
        "cache": str(place.cache),
        "journal": str(place.journal),
    }
    words = [f"--{name}={value}" for name, value in settings.items()]
    called = place.call(sys.executable, "-m", "experiments", "conv_algorithm", *words)
    assert called.returncode == 3, called.stdout + called.stderr  # one block: no verdict
    cells = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")
    assert {run.data.params["conv_algorithm"] for run in cells} == {"plain", "onednn"}
    report = next(place.journal.glob("*/report/report.md")).read_text()
    assert "| lenet | pytorch | 4 | fixed | plain | 1 |" in report
    assert "| lenet | pytorch | 4 | fixed | onednn | — | 1 block: no comparison" in report


def test_published_epochs_stand_beside_ours() -> None:
    """On a GPU, as if: a later epoch takes 0.8 of the time of fixed, the first one 0.9."""
    params = {
        "model": "deepspeech2",
        "batch_size": "20",
        "lengths": "varying",
        "framework": "pytorch",
    }
    found = []
    for one in runs(("fixed", "profiled"), 6, spread=0.01, params=params):
        step = one.metrics["train/step_seconds"]
        later = 0.8 if one.tags["framework"] == "profiled" else 1.0
        epochs = {
            "train/epoch_seconds": 100 * step * later,
            "train/first_epoch_seconds": 100 * step * (later + 1) / 2,
        }
        found.append(replace(one, metrics={**one.metrics, **epochs}))
    strata = tuple(f"params.{name}" for name in ("framework", "model", "batch_size", "lengths"))
    metrics = [ablations.THROUGHPUT, "train/first_epoch_seconds", "train/epoch_seconds"]
    comparison = compare(
        table(found), factor="tags.framework", baseline="fixed", strata=strata, outcomes=metrics
    )
    settings = conv_algorithm.Settings()
    own = {"model": "deepspeech2", "batch_size": 20, "lengths": "varying"}
    planned = [
        Treatment(name, "pytorch", "measure", {**own, "conv_algorithm": name})
        for name in ("fixed", "profiled")
    ]
    speeds, times = ablations.convolutions(
        comparison, planned, {}, conv_algorithm.EPOCHS, settings.size, size="tiny"
    )
    assert speeds.rows[0][5] == "1"
    profiled = times.rows[1]
    assert float(str(profiled[5]).rstrip("×")) == pytest.approx(0.9, rel=0.03)
    assert profiled[7] == f"{2816 / 3082:.3f}×"
    assert float(str(profiled[8]).rstrip("×")) == pytest.approx(0.8, rel=0.03)
    assert profiled[10] == f"{1940 / 3082:.3f}×"


def test_what_is_a_cpus_is_refused_on_a_gpu() -> None:
    assert [onednn(name, "cpu") for name in ("onednn", "plain", "profiled")] == [True, False, None]
    assert onednn("fixed", "cuda") is None
    with pytest.raises(ModelError, match="conv_algorithm 'plain'") as refused:
        onednn("plain", "cuda")
    assert refused.value.code is ErrorCode.UNSUPPORTED


def test_jax_has_nothing_to_choose_on_a_cpu() -> None:
    given = {"frameworks": "pytorch,keras-jax", "device": "cpu"}
    settings = parse(conv_algorithm.Settings, conv_algorithm.STUDY.presets, given)
    with pytest.raises(
        UsageError, match="frameworks=keras-jax: JAX's kernels on a CPU are not oneDNN's"
    ):
        conv_algorithm.treatments(settings)
