"""Records of registered models into a store: versions, tags and aliases, each exactly once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from tracking import limits
from tracking.records import ModelRegistered, ModelSaved, Record, RunClosed, RunOpened
from tracking.store import Store

NAME = "vision.captioner"
VERDICT = {"framework": "tensorflow", "verdict/train/step_seconds": "faster"}
FIRST = ModelRegistered("r1", NAME, {"framework": "pytorch"}, ("baseline",))
MODEL = ModelSaved("r1", "net", "data", {"flavor": "toy", "data": "data"})
SECOND = ModelRegistered("r2", NAME, VERDICT, ("fastest",))


@pytest.fixture
def logged(store: Store, tmp_path: Path) -> list[Record]:
    """Return the records of two runs with models, and of one without, which the store has."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.json").write_text("{}")
    records: list[Record] = [RunOpened(name, 1, "captioning", name) for name in ("r1", "r2", "r3")]
    records += [replace(MODEL, run=name) for name in ("r1", "r2")]
    records += [RunClosed(name, 2, "ok") for name in ("r1", "r2", "r3")]
    assert store.apply(records, tmp_path) == []
    return records


def versions(store: Store) -> dict[str, ModelVersion]:
    client = MlflowClient(store.uri)
    newest_last = sorted(
        client.search_model_versions(f"name = '{NAME}'"), key=lambda version: int(version.version)
    )
    return {
        version.version: client.get_model_version(NAME, version.version) for version in newest_last
    }


def test_versions_are_made_once(store: Store, logged: list[Record], tmp_path: Path) -> None:
    assert store.apply([FIRST, SECOND], tmp_path) == []
    again = Store(store.uri)  # a replay of the whole journal
    assert again.apply([*logged, FIRST, SECOND], tmp_path) == []
    stored, client = versions(store), MlflowClient(store.uri)
    assert {number: version.tags for number, version in stored.items()} == {
        1: FIRST.tags,
        2: SECOND.tags,
    }
    assert client.get_registered_model(NAME).aliases == {"baseline": 1, "fastest": 2}
    for run, version in zip(("r1", "r2"), stored.values(), strict=True):
        (output,) = client.get_run(store.run_id(run)).outputs.model_outputs
        assert version.source == f"models:/{output.model_id}"
        assert version.run_id == store.run_id(run)
        link = client.get_logged_model(output.model_id).tags["mlflow.modelVersions"]
        assert json.loads(link) == [{"name": NAME, "version": version.version}]


def test_a_later_verdict_replaces_tags_and_aliases(
    store: Store, logged: list[Record], tmp_path: Path
) -> None:
    store.apply([FIRST, SECOND], tmp_path)
    client = MlflowClient(store.uri)
    client.set_model_version_tag(NAME, "2", "approved", "by me")
    client.set_registered_model_alias(NAME, "mine", "2")
    open_ = {"framework": "tensorflow", "verdict/train/examples_per_second": "inconclusive"}
    later = [
        replace(FIRST, removed_aliases=("fastest",)),
        replace(SECOND, tags=open_, aliases=(), removed_aliases=("fastest",)),
    ]
    assert store.apply(later, tmp_path) == []
    assert versions(store)[2].tags == {**open_, "approved": "by me"}
    assert client.get_registered_model(NAME).aliases == {"baseline": 1, "mine": 2}


def test_what_cannot_be_registered_is_refused_and_the_rest_arrives(
    store: Store, logged: list[Record], tmp_path: Path
) -> None:
    without_model = replace(FIRST, run="r3")
    names = ["", "a/b", "a:b", "a'b", ".a", "a..b", "x" * 251]
    records = [without_model, *(replace(FIRST, name=name) for name in names), SECOND]
    refused = store.apply(records, tmp_path)
    assert len(refused) == 1 + len(names)
    assert refused[0].startswith("ModelRegistered of r")
    assert [version.tags for version in versions(store).values()] == [VERDICT]


def test_names_are_those_of_the_guard() -> None:
    from deploy.guard import names
    from deploy.guard.refusal import Refusal

    examples = ["captioner", "vision.captioner", "a b", "A+b=c", "a-1", "a..b", ".a", "a.", "a  b"]
    examples += ["", "a/b", "é", "x" * 250, "x" * 251, "_a", "a._b"]
    for name in examples:
        try:
            is_name = bool(names.check(name, names.MODEL))
        except Refusal:
            is_name = False
        assert limits.is_registered_model(name) == is_name, name
