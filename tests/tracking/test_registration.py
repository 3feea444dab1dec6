"""Records of registered models into a store: versions, tags and aliases, each exactly once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from mlflow import MlflowClient

from tracking import limits
from tracking.records import ModelRegistered, ModelSaved, Record, RunClosed, RunOpened
from tracking.store import Store

NAME = "vision.captioner"
VERDICT = {"framework": "tensorflow", "verdict/train/step_seconds": "faster"}
FIRST = ModelRegistered("r1", NAME, {"framework": "pytorch"}, ("baseline",))
MODEL = ModelSaved("r1", "net", "data", {"flavor": "toy", "data": "data"})
SECOND = ModelRegistered("r2", NAME, VERDICT, ("fastest",))


def versions(client: MlflowClient) -> dict[int, dict[str, str]]:
    """Return the tags of versions by number."""
    registered = client.search_model_versions(f"name = '{NAME}'")
    return {
        version.version: client.get_model_version(NAME, version.version).tags
        for version in sorted(registered, key=lambda version: int(version.version))
    }


def test_versions_are_made_once_and_follow_later_verdicts(store: Store, tmp_path: Path) -> None:
    """Register models of two runs; a third run has none, and other names are not allowed."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.json").write_text("{}")
    logged: list[Record] = [RunOpened(name, 1, "captioning", name) for name in ("r1", "r2", "r3")]
    logged += [replace(MODEL, run=name) for name in ("r1", "r2")]
    logged += [RunClosed(name, 2, "ok") for name in ("r1", "r2", "r3")]
    names = ["", "a/b", "a:b", "a'b", ".a", "a..b", "x" * 251]
    wrong = [replace(FIRST, run="r3"), *(replace(FIRST, name=name) for name in names)]
    refused = store.apply([*logged, *wrong, FIRST, SECOND], tmp_path)
    assert len(refused) == len(wrong)
    assert refused[0].startswith("ModelRegistered of r")
    # a replay of the whole journal
    assert Store(store.uri).apply([*logged, FIRST, SECOND], tmp_path) == []
    client = MlflowClient(store.uri)
    assert versions(client) == {1: FIRST.tags, 2: SECOND.tags}
    assert client.get_registered_model(NAME).aliases == {"baseline": 1, "fastest": 2}
    for run, number in (("r1", 1), ("r2", 2)):
        version = client.get_model_version(NAME, str(number))
        (output,) = client.get_run(store.run_id(run)).outputs.model_outputs
        assert (version.source, version.run_id) == (f"models:/{output.model_id}", store.run_id(run))
        link = client.get_logged_model(output.model_id).tags["mlflow.modelVersions"]
        assert json.loads(link) == [{"name": NAME, "version": version.version}]

    client.set_model_version_tag(NAME, "2", "approved", "by me")
    client.set_registered_model_alias(NAME, "mine", "2")
    open_ = {"framework": "tensorflow", "verdict/train/examples_per_second": "inconclusive"}
    later = [
        replace(FIRST, removed_aliases=("fastest",)),
        replace(SECOND, tags=open_, aliases=(), removed_aliases=("fastest",)),
    ]
    assert store.apply(later, tmp_path) == []
    assert versions(client)[2] == {**open_, "approved": "by me"}
    assert client.get_registered_model(NAME).aliases == {"baseline": 1, "mine": 2}


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
