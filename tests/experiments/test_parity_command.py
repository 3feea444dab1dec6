"""Command `parity`, and the parity check of a campaign before it measures."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from experiments.cli.codes import DONE, FAILED, WRONG_CALL
from experiments.cli.main import main
from experiments.cli.parity import TITLE, key_of
from experiments.config.console import Display
from experiments.contract import Prepared, Treatment
from experiments.run import parity_cache, preflight
from experiments.run.plan import Plan
from experiments.run.prepared import PreparedCampaign
from experiments.studies import classification
from models import frameworks
from models.parity import QUANTITIES, ParityRequest, Row, Side
from tests.conftest import Place
from tests.experiments.small_campaigns import measure
from tests.experiments.test_blocks import TOYS
from tracking import mlflow_defaults, provenance
from tracking.limits import key_trouble


def parity(place: Place, code: int, **options: str) -> str:
    words = [f"--{name}={value}" for name, value in options.items()]
    done = place.call(sys.executable, "-m", "experiments", "parity", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_results_of_every_framework_have_a_key() -> None:
    for name in frameworks.available():
        row = Row("lenet", name, "pytorch", "forward", "outputs", 0.0, 0.0)
        assert key_trouble(key_of(row)) == ""


def test_check_that_refuses_prints_no_table(place: Place) -> None:
    output = parity(place, FAILED, models="vgg16_cifar", frameworks="toy,toy+twin")
    assert "vgg16_cifar" in output
    assert TITLE not in output


def test_lines_of_mlflow_go_to_a_file(place: Place) -> None:
    """It makes the tables of a new store, which it reports line by line."""
    new = replace(place, uri=f"sqlite:///{place.folder}/new.db")
    assert "mlflow.store" not in parity(new, DONE, models="lenet", frameworks="toy,toy+twin")
    assert "mlflow.store.db" in (place.folder / mlflow_defaults.LOG).read_text()


def test_several_models_are_proven_at_once(place: Place) -> None:
    models = ("lenet", "caption_decoder")
    parity(place, DONE, models=",".join(models), frameworks="toy,toy+twin")
    client = mlflow.MlflowClient(place.uri)
    (run,) = client.search_runs(["1"])
    assert (run.data.tags["kind"], run.data.tags["parity"]) == ("parity", "equal")
    assert run.data.params["optimizer"] == "adam,sgd"
    # the toy has neither running statistics nor dropout
    measured = ("count", "forward", "loss", "gradient", "step")
    keys = {f"parity/{model}/toy.twin/{name}" for model in models for name in measured}
    assert run.data.metrics.keys() == keys
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"parity.md", "parity.json"}
    uri = f"{run.info.artifact_uri}/parity.md"
    table = Path(mlflow.artifacts.download_artifacts(uri)).read_text()
    rows = [line.split()[1:6:2] for line in table.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row[0] in models] == [[m, "toy+twin", "toy"] for m in models]
    assert all(QUANTITIES[name].what in table for name in measured)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"models": "lenett"}, "lenett"),
        ({"frameworks": "pytorch,tensorflo"}, "did you mean tensorflow"),
        ({"frameworks": "pytorch"}, "frameworks=pytorch"),
        ({"optimizer": "sgdd"}, "optimizer=sgdd"),
        ({"device": "cuda"}, "device=cuda"),
    ],
)
def test_wrong_call_is_one_line(
    options: dict[str, str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "device" in options and provenance.gpus():
        pytest.skip("there is a GPU")
    words = [f"--{name}={value}" for name, value in options.items()]
    assert main(["parity", *words]) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


@pytest.mark.usefixtures("local_cells")
def test_unequal_models_are_refused_or_marked(place: Place) -> None:
    stock = {"frameworks": "toy,toy+stock", "optimizer": "adam-stock"}
    options = {**TOYS, **stock, "blocks": "1"}
    refused = place.run(**options)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "allow_unequal=true" in refused.stderr
    client = mlflow.MlflowClient(place.uri)
    assert not client.search_experiments(filter_string="name = 'captioning'")
    measure(place, **options, allow_unequal="true")
    report = next(place.journal.glob("*/report/report.html")).read_text()
    assert report.index("UNEQUAL") < report.index("Verdicts")
    cells = client.search_runs(["1"], "tags.kind = 'cell'")
    assert {cell.data.tags["parity"] for cell in cells} == {"unequal"}
    rows = json.loads(next(place.journal.glob("*/parity.json")).read_text())
    assert rows[0]["model"] == "caption_decoder"
    # the command fails
    output = parity(place, FAILED, models="lenet", **stock)
    assert "toy+stock" in output
    assert "Traceback" not in output


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Mapping[str, str]]]:
    """Return device and environment of each proof; every network is judged equal."""
    calls: list[tuple[str, Mapping[str, str]]] = []

    def gate(
        requests: list[ParityRequest],
        sides: list[Side],
        environment: Mapping[str, str],
        **_: object,
    ) -> list[Row]:
        (request,) = requests
        calls.append((request.device, environment))
        values = ("x", 0.0, 0.0)
        return [
            Row(request.model, str(side), str(sides[0]), name, *values, device=request.device)
            for side in sides[1:]
            for name in QUANTITIES
        ]

    monkeypatch.setattr(parity_cache, "gate", gate)
    return calls


def prove(settings: classification.Settings) -> Prepared:
    treatments = tuple(Treatment(name, name) for name in settings.frameworks)
    plan = Plan("", "framework", "", treatments)
    with Display() as display:
        return preflight.prove(PreparedCampaign("classification", settings, plan), display).data


@pytest.mark.parametrize(
    ("device", "expected"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")]
)
def test_campaign_proves_equality_on_the_measured_device(
    device: str,
    expected: str,
    tmp_path: Path,
    proofs: list[tuple[str, Mapping[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provenance, "gpus", lambda: ["NVIDIA H100 (driver 580)"])
    prepared = prove(classification.Settings(device=device, cache=str(tmp_path)))
    ((proven_on, variables),) = proofs
    assert proven_on == prepared.tags["parity.device"] == expected
    preallocates = "false" if expected == "cuda" else None
    assert variables.get("XLA_PYTHON_CLIENT_PREALLOCATE") == preallocates
    assert (variables.get("CUDA_VISIBLE_DEVICES") == "") == (expected == "cpu"), "as its cells"
    assert {row["device"] for row in json.loads(prepared.files["parity.json"])} == {expected}


def test_launch_without_a_gpu_proves_on_its_cpu(
    tmp_path: Path, proofs: list[tuple[str, Mapping[str, str]]]
) -> None:
    prepared = prove(classification.Settings(executor="slurm", gres="gpu:1", cache=str(tmp_path)))
    assert [device for device, _ in proofs] == ["cpu"]
    assert len(prepared.warnings) == 1


def test_other_code_and_other_devices_are_judged_again(
    tmp_path: Path,
    proofs: list[tuple[str, Mapping[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge(*devices: str) -> list[str]:
        """Return the devices on which rows are judged, and not read from the cache."""
        proofs.clear()
        for device in devices:
            request = ParityRequest("lenet", device=device)
            rows = parity_cache.rows([request], ["a", "b"], tmp_path, lambda *_: None)
            assert [row.quantity for row in rows] == list(QUANTITIES)
        return [device for device, _ in proofs]

    monkeypatch.setattr(provenance, "gpus", lambda: ["card A"])
    assert judge("cpu", "cuda", "cpu", "cuda") == ["cpu", "cuda"]
    monkeypatch.setattr(provenance, "gpus", lambda: ["card B"])  # libraries may run other code
    assert judge("cpu", "cuda") == ["cuda"]
    monkeypatch.setattr(parity_cache.models, "code_digest", lambda: "changed")
    assert judge("cpu") == ["cpu"]
