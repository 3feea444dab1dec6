"""`parity` as a user asks it, and a campaign's own question before it measures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.config.console import Display
from experiments.contract import Prepared, Treatment
from experiments.run import parity_cache, preflight
from experiments.run.plan import Plan
from experiments.run.preparation import PreparedCampaign
from experiments.studies import captioning, classification
from models.parity import QUANTITIES, RULES, ParityRequest, Row, Side
from tests.conftest import Place
from tracking import provenance


def parity(place: Place, **given: str) -> tuple[int, str]:
    options = [f"--{name}={value}" for name, value in given.items()]
    done = place.call(sys.executable, "-m", "experiments", "parity", *options)
    return done.returncode, done.stdout + done.stderr


def test_a_pair_is_proven_and_kept(place: Place) -> None:
    code, told = parity(place, models="vgg16_cifar", frameworks="pytorch,keras-torch")
    assert code == 0, told
    assert told.count(" equal\n".strip()) >= 2  # parameters and verdict
    run = mlflow.MlflowClient(place.uri).search_runs(["1"])[0]
    assert run.data.tags["kind"] == "parity"
    assert run.data.tags["parity"] == "equal"
    assert 0 <= run.data.metrics["parity/vgg16_cifar/keras-torch/forward"] < 1e-12
    assert run.data.metrics["parity/vgg16_cifar/keras-torch/mask"] == 0
    assert (
        0 < run.data.metrics["parity/vgg16_cifar/keras-torch/dropout"] < 0.01
    )  # two draws of a million
    assert len(run.data.metrics) == len(QUANTITIES)
    assert run.data.params["optimizer"] == "adam,sgd"
    files = {one.path for one in mlflow.MlflowClient(place.uri).list_artifacts(run.info.run_id)}
    assert files == {"parity.md", "parity.json"}
    certificate = Path(
        mlflow.artifacts.download_artifacts(f"{run.info.artifact_uri}/parity.md")
    ).read_text()
    for what in (
        "after 5 optimizer steps",
        "running means and variances",
        "the share that each of them drops",
    ):
        assert what in certificate


def test_several_models_are_proven_at_once(place: Place) -> None:
    code, told = parity(place, models="lenet,caption_decoder", frameworks="toy,toy+twin")
    assert code == 0, told
    run = mlflow.MlflowClient(place.uri).search_runs(["1"])[0]
    # the toy has neither running statistics nor dropout
    measured = ("count", "forward", "loss", "gradient", "step")
    models = ("lenet", "caption_decoder")
    assert run.data.metrics.keys() == {
        f"parity/{model}/toy.twin/{one}" for model in models for one in measured
    }


def test_a_difference_is_told_and_fails(place: Place) -> None:
    code, told = parity(place, models="lenet", frameworks="toy,toy+stock", optimizer="adam-stock")
    assert code == 1
    assert "lenet of toy+stock is not equal to that of toy: step of " in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"models": "lenett"}, "no model 'lenett'"),
        ({"frameworks": "pytorch,tensorflo"}, "did you mean tensorflow"),
        ({"frameworks": "pytorch"}, "one side only"),
        ({"optimizer": "sgdd"}, "optimizer=sgdd is not known"),
        ({"device": "cuda"}, "device=cuda"),
    ],
)
def test_wrong_calls(given: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "device" in given and provenance.gpus():
        pytest.skip("there is a GPU here")
    assert main(["parity", *(f"--{name}={value}" for name, value in given.items())]) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_campaign_refuses_what_is_not_equal_or_marks_it(place: Place) -> None:
    frameworks, small = "toy,toy+stock", {"vocabulary": "60", "length": "8"}
    refused = place.run(
        data="synthetic", **small, frameworks=frameworks, optimizer="adam-stock", blocks="1"
    )
    assert refused.returncode == 2
    assert "caption_decoder of toy+stock is not equal to that of toy: step of " in refused.stderr
    assert "allow_unequal=true" in refused.stderr
    assert not mlflow.MlflowClient(place.uri).search_experiments(
        filter_string="name = 'captioning'"
    )
    marked = place.run(
        data="synthetic",
        **small,
        frameworks=frameworks,
        optimizer="adam-stock",
        blocks="1",
        allow_unequal="true",
    )
    assert marked.returncode == 3, marked.stdout + marked.stderr  # one block: no verdict
    assert "! UNEQUAL: caption_decoder of toy+stock" in marked.stdout
    report = next(place.journal.glob("*/report/report.html")).read_text()
    assert report.index("UNEQUAL: caption_decoder") < report.index("Verdicts")
    cells = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")
    assert {cell.data.tags["parity"] for cell in cells} == {"unequal"}
    assert (
        json.loads(next(place.journal.glob("*/parity.json")).read_text())[0]["model"]
        == "caption_decoder"
    )


def test_a_campaign_asks_about_the_rules_it_trains_by() -> None:
    settings = classification.Settings(
        optimizer="sgd", momentum=0.9, weight_decay=1e-4, learning_rate=1e-9
    )
    adam = {"optimizer": "adam", "momentum": 0.0, "weight_decay": 0.0}
    both = [Treatment("a", "pytorch"), Treatment("b", "pytorch", settings=adam)]
    found = preflight.training_rules(settings, [*both, *both])
    assert [(one.name, one.momentum, one.weight_decay) for one in found] == [
        ("sgd", 0.9, 1e-4),
        ("adam", 0.0, 0.0),
    ]
    assert min(one.learning_rate for one in found) > 1e-4  # at 1e-9 no difference would show
    assert (
        preflight.training_rules(captioning.Settings(), [Treatment("a", "pytorch")])
        == RULES["adam"]
    )


@pytest.mark.usefixtures("toy_installed")
def test_what_was_judged_by_this_code_is_not_judged_again(tmp_path: Path) -> None:
    calls: list[str] = []

    def ask() -> list[Row]:
        return parity_cache.rows(
            ParityRequest("lenet"),
            ["toy", "toy+twin"],
            tmp_path,
            lambda *told: calls.append(str(told)),
        )

    began = time.perf_counter()
    first = ask()
    judged_seconds, judged_calls = time.perf_counter() - began, len(calls)
    began = time.perf_counter()
    assert ask() == first
    assert len(calls) == judged_calls > 0
    assert (
        time.perf_counter() - began < judged_seconds / 5
    )  # reading a file against two processes that compute
    kept = next(tmp_path.glob("parity/lenet-*.json"))
    kept.write_text(kept.read_text()[:40])  # a power loss
    assert ask() == first
    assert len(calls) > judged_calls


def test_what_compared_less_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row("lenet", "b", "a", quantity, "x", 0.0, 0.0) for quantity in QUANTITIES]
    answers = iter([rows[:5], rows])
    monkeypatch.setattr(parity_cache, "gate", lambda *_, **__: next(answers))
    found = [
        parity_cache.rows(ParityRequest("lenet"), ["a", "b"], tmp_path, lambda *_: None)
        for _ in range(3)
    ]
    assert found == [rows[:5], rows, rows]


def test_other_code_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    equal = [Row("lenet", "b", "a", quantity, "x", 0.0, 0.0) for quantity in QUANTITIES]
    different = [
        replace(row, error=1.0, limit=1e-8) if row.quantity == "step" else row for row in equal
    ]
    answers = iter([equal, different])
    monkeypatch.setattr(parity_cache, "gate", lambda *_, **__: next(answers))
    assert parity_cache.rows(ParityRequest("lenet"), ["a", "b"], tmp_path, lambda *_: None) == equal
    assert parity_cache.rows(ParityRequest("lenet"), ["a", "b"], tmp_path, lambda *_: None) == equal
    monkeypatch.setattr(parity_cache, "_code", lambda: "changed")
    found = parity_cache.rows(ParityRequest("lenet"), ["a", "b"], tmp_path, lambda *_: None)
    assert parity_cache.differences(found) == [
        "lenet of b is not equal to that of a: step of x differs by 1e+00 (limit 1e-08)"
    ]


class RecordingGate:
    """Judge every network equal, and record on which device it was requested."""

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(
        self, request: ParityRequest, sides: list[Side], environment: Mapping[str, str], **_: object
    ) -> list[Row]:
        self.devices.append(request.device)
        self.environments.append(environment)
        names = [str(side) for side in sides[1:]]
        return [
            Row(request.model, name, str(sides[0]), quantity, "x", 0.0, 0.0, device=request.device)
            for name in names
            for quantity in QUANTITIES
        ]


@pytest.fixture
def recording_gate(monkeypatch: pytest.MonkeyPatch) -> RecordingGate:
    gate = RecordingGate()
    monkeypatch.setattr(parity_cache, "gate", gate)
    return gate


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "gpus", lambda: ["NVIDIA H100 (driver 580)"])


def prove(settings: classification.Settings) -> Prepared:
    treatments = tuple(Treatment(name, name) for name in settings.frameworks)
    plan = Plan("", "framework", "", treatments)
    with Display() as display:
        return preflight.prove(PreparedCampaign("classification", settings, plan), display).data


@pytest.mark.parametrize(
    ("device", "expected"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")]
)
@pytest.mark.usefixtures("one_gpu")
def test_a_campaign_proves_equality_on_the_device_it_measures(
    device: str, expected: str, tmp_path: Path, recording_gate: RecordingGate
) -> None:
    prepared = prove(classification.Settings(device=device, cache=str(tmp_path)))
    assert recording_gate.devices == [expected]
    (variables,) = recording_gate.environments
    assert variables.get("XLA_PYTHON_CLIENT_PREALLOCATE") == (
        "false" if expected == "cuda" else None
    )
    assert (variables.get("CUDA_VISIBLE_DEVICES") == "") == (expected == "cpu"), "as its cells"
    assert prepared.tags["parity.device"] == expected
    assert {row["device"] for row in json.loads(prepared.files["parity.json"])} == {expected}


def test_a_clusters_launch_without_a_gpu_proves_on_its_cpu(
    tmp_path: Path, recording_gate: RecordingGate
) -> None:
    prepared = prove(classification.Settings(executor="slurm", gres="gpu:1", cache=str(tmp_path)))
    assert recording_gate.devices == ["cpu"]
    assert prepared.warnings == ("equality was proven on the CPU: this machine has no device cuda",)


def test_a_proof_on_one_device_is_none_on_another(
    tmp_path: Path, recording_gate: RecordingGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [["card A"]]
    monkeypatch.setattr(provenance, "gpus", lambda: cards[-1])

    def judge(device: str) -> None:
        parity_cache.rows(
            ParityRequest("lenet", device=device), ["a", "b"], tmp_path, lambda *_: None
        )

    for device in ("cpu", "cuda", "cpu", "cuda"):
        judge(device)
    assert recording_gate.devices == ["cpu", "cuda"]
    cards.append(["card B"])  # other code of the framework's libraries may run on it
    judge("cpu")
    judge("cuda")
    assert recording_gate.devices == ["cpu", "cuda", "cuda"]


def test_a_difference_names_the_gpu() -> None:
    row = Row("lenet", "b", "a", "loss", "mean", 1.0, 1e-10)
    on_both = [row, replace(row, device="cuda")]
    assert [line.split(":")[0] for line in parity_cache.differences(on_both)] == [
        "lenet of b is not equal to that of a",
        "lenet of b is not equal to that of a on cuda",
    ]
