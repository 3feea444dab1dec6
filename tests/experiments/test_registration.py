"""Campaigns that register their models: wrong calls, verdicts, resumption, a server that is away.

`test_captioning.py` registers the models of real frameworks.
"""

import json
import re

import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion, RegisteredModelTag
from mlflow.prompt.constants import IS_PROMPT_TAG_KEY

from experiments import studies
from experiments.cli.codes import DONE
from experiments.config import settings as settings_
from experiments.run import preparation
from tests.conftest import Place, set_toy_costs
from tests.experiments.datasets.folders import refused
from tests.experiments.small_campaigns import cells, comparison, measure
from tracking.accounts import Account, registered_model
from tracking.errors import ErrorCode

pytestmark = pytest.mark.usefixtures("local_cells")
NAME = "scenes captioner"
SMALL = {
    "frameworks": "toy,toy+twin",
    "register": NAME,
    "save_model": "first",
    "inference_requests": "40",
    "inference_batch_sizes": "1",
    "epochs": "1",
}
# The twin trains and answers in half the time.
COSTS = {"toy": {"step": 0.04, "apply": 0.04}, "toy+twin": {"step": 0.02, "apply": 0.02}}


@pytest.mark.parametrize(
    ("study", "options", "code"),
    [
        ("captioning", {"register": "a/b"}, ErrorCode.INVALID_VALUE),
        ("captioning", {"register": "a", "save_model": "none"}, ErrorCode.CONFLICT),
        ("classification", {"register": "a", "input": "memory,stream"}, ErrorCode.CONFLICT),
        ("grid", {"register": "a"}, ErrorCode.UNKNOWN_NAME),
    ],
)
def test_what_cannot_be_registered_is_refused_at_once(
    study: str, options: dict[str, str], code: ErrorCode
) -> None:
    module = studies.load(study)
    with refused(code, "register"):
        preparation.check_settings(study, settings_.parse(module.settings, module.presets, options))


def test_names_begin_with_the_team_of_an_account() -> None:
    alice = Account("alice", is_admin=False, teams=("vision",))
    assert registered_model(alice, "vision", "captioner") == "vision.captioner"
    assert registered_model(alice, "vision", "vision.captioner") == "vision.captioner"
    assert (
        registered_model(Account("root", is_admin=True, teams=()), "", "captioner") == "captioner"
    )
    assert registered_model(None, "vision", "captioner") == "captioner"


def versions(place: Place) -> dict[int, ModelVersion]:
    client = MlflowClient(place.uri)
    return {
        int(version.version): client.get_model_version(NAME, version.version)
        for version in client.search_model_versions(f"name = '{NAME}'")
    }


def by_framework(place: Place) -> dict[str, ModelVersion]:
    """Return the newest version of each framework."""
    return {version.tags["framework"]: version for _, version in sorted(versions(place).items())}


def aliases(place: Place) -> dict[str, str]:
    """Return the framework of each alias."""
    registered = MlflowClient(place.uri).get_registered_model(NAME)
    stored = versions(place)
    return {
        alias: stored[int(version)].tags["framework"]
        for alias, version in registered.aliases.items()
    }


@pytest.mark.slow
def test_verdict_is_registered_and_a_later_campaign_without_one_takes_the_alias_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(COSTS))
    measure(place, DONE, **SMALL, blocks="6")
    first = {
        cell.data.params["framework"]: cell
        for cell in cells(place)
        if cell.data.tags["block"] == "1"
    }
    registered, rows = by_framework(place), comparison(place)["rows"]
    assert aliases(place) == {"baseline": "toy", "fastest": "toy+twin"}
    for framework, version in registered.items():
        (output,) = first[framework].outputs.model_outputs
        assert version.source == f"models:/{output.model_id}"
        assert version.tags["baseline"] == "toy"
    tags = registered["toy+twin"].tags
    assert tags["verdict/train/examples_per_second/code"] == "different"
    primary = {metric: row for metric, row in rows.items() if row["family"] == "primary"}
    for metric, row in primary.items():
        assert tags[f"verdict/{metric}"] == row["verdict"]
        if row["estimate"] is not None:
            assert float(tags[f"verdict/{metric}/estimate"]) == pytest.approx(row["estimate"], 1e-5)

    before = versions(place)
    done = place.resume(register=NAME)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {number: version.tags for number, version in versions(place).items()} == {
        number: version.tags for number, version in before.items()
    }
    assert aliases(place) == {"baseline": "toy", "fastest": "toy+twin"}

    measure(place, **SMALL, blocks="1")
    assert versions(place).keys() == {1, 2, 3, 4}
    assert aliases(place) == {"baseline": "toy"}
    campaign = by_framework(place)["toy"].tags["campaign"]
    assert campaign != before[1].tags["campaign"]
    newest = MlflowClient(place.uri).get_model_version_by_alias(NAME, "baseline")
    assert newest.tags["campaign"] == campaign


@pytest.mark.slow
def test_finished_campaign_is_registered_by_resuming_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, step=0.001)
    measure(place, **{**SMALL, "register": ""}, blocks="1")
    assert not versions(place)
    done = place.resume(register=NAME)
    assert done.returncode == 3, done.stdout + done.stderr
    assert by_framework(place).keys() == {"toy", "toy+twin"}


@pytest.mark.slow
def test_refused_registration_keeps_the_results(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of that name, of which MLflow makes no version from a model."""
    set_toy_costs(monkeypatch, step=0.001)
    registry = MlflowClient(place.uri)._get_registry_client().store
    registry.create_registered_model(NAME, [RegisteredModelTag(IS_PROMPT_TAG_KEY, "true")])
    output = measure(place, **SMALL, blocks="1")
    assert re.search("refused: ModelRegistered of .*", output)
    assert {cell.info.status for cell in cells(place)} == {"FINISHED"}
    assert next(place.journal.glob("*/report/report.html")).is_file()


@pytest.mark.slow
def test_models_of_no_cell_are_a_warning(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    set_toy_costs(monkeypatch, step=0.001)
    few = {"data": "synthetic", "vocabulary": "100", "length": "6"}
    output = measure(place, **SMALL, **few, blocks="1")
    assert f"! register={NAME}" in output
    assert not versions(place)
