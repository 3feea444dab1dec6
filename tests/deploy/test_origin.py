"""Origin of runs: copied tags of another team change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.group import Group
from tracking.journal import Journal
from tracking.records import Metrics, Point, Record, RunClosed, RunKind, RunOpened, Tags
from tracking.store import Store

PLACE = "vision/captioning"
AsUser = Callable[[str], Store]


def records(name: str) -> list[Record]:
    """Return a campaign with a cell, by alice."""
    local = {"user": "alice", "mlflow.user": "alice", "team": "vision"}
    cell, pointer = f"{name}-cell", {"campaign": f"run:{name}"}
    return [
        RunOpened(name, 1_000, PLACE, name, {**local, "kind": RunKind.CAMPAIGN}),
        RunOpened(
            cell,
            2_000,
            PLACE,
            cell,
            {**local, **pointer, "kind": RunKind.CELL},
            {"batch_size": "32"},
        ),
        Metrics(
            cell, tuple(Point("train/loss", 1 / step, step, 2_000 + step) for step in range(1, 101))
        ),
        Tags(cell, {"machine": "m1"}),
        RunClosed(cell, 9_000, "ok"),
        RunClosed(name, 9_500, "ok"),
    ]


def copied(store: Store, place: str, origins: list[str], like: dict[str, str]) -> list[str]:
    """Create runs with the origins and more tags than the true runs."""
    more = {f"more{number}": "x" for number in range(40)}
    experiment = store.experiment_id(place)
    return [
        store._client.create_run(
            experiment, tags={**more, **like, "mlflow.evenhand.origin": origin}, run_name=origin
        ).info.run_id
        for origin in origins
    ]


@pytest.mark.parametrize("when", ["before", "between"])
def test_copied_origin_tags_change_nothing(
    group: Group, as_user: AsUser, tmp_path: Path, when: str
) -> None:
    """Copy them before the true run is made, and between two processes of its campaign."""
    name = f"true-{when}"
    output, stored = records(name), Journal(tmp_path)
    for record in output:
        stored.append(record)
    mallory = as_user("bob")
    like = {"kind": "cell", "user": "alice", "mlflow.user": "alice", "team": "vision"}
    if when == "between":
        as_user("alice").apply(output[:3], tmp_path)
        mallory = as_user("bob")
    false = copied(mallory, "speech/captioning", [name, f"{name}-cell"], like)

    done = group.call("alice", "replay", f"--journal={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    alice = as_user("alice")
    results = {run.name: run for run in alice.runs(PLACE) if run.name.startswith(name)}
    assert {run.status for run in results.values()} == {"FINISHED"}
    cell = results[f"{name}-cell"]
    assert len(alice.points(cell.run_id, "train/loss")) == 100
    assert (cell.tags["machine"], cell.tags["campaign"]) == ("m1", results[name].run_id)
    assert len([run for run in alice.runs(PLACE) if run.tags.get("origin") == name]) == 1
    for run_id in false:
        run = alice.run(run_id)
        assert run
        assert (run.status, dict(run.metrics), "machine" in run.tags) == ("RUNNING", {}, False)
