"""A run is its journal's by the experiment that its team alone writes: whoever copies its tags changes nothing."""

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
    """A campaign with a cell, by alice."""
    own = {"user": "alice", "mlflow.user": "alice", "team": "vision"}
    cell, pointer = f"{name}-cell", {"campaign": f"run:{name}"}
    return [
        RunOpened(name, 1_000, PLACE, name, {**own, "kind": RunKind.CAMPAIGN}),
        RunOpened(
            cell, 2_000, PLACE, cell, {**own, **pointer, "kind": RunKind.CELL}, {"batch_size": "32"}
        ),
        Metrics(
            cell, tuple(Point("train/loss", 1 / step, step, 2_000 + step) for step in range(1, 101))
        ),
        Tags(cell, {"machine": "m1"}),
        RunClosed(cell, 9_000, "ok"),
        RunClosed(name, 9_500, "ok"),
    ]


def copied(store: Store, place: str, origins: list[str], like: dict[str, str]) -> list[str]:
    """Runs that claim to be others, and say more of themselves, as the true ones will."""
    more = {f"more{number}": "x" for number in range(40)}
    experiment = store.experiment_id(place)
    return [
        store._client.create_run(
            experiment, tags={**more, **like, "mlflow.evenhand.origin": origin}, run_name=origin
        ).info.run_id
        for origin in origins
    ]


@pytest.mark.parametrize("when", ["before", "between"])
def test_another_teams_copy_of_the_tags_changes_nothing(
    group: Group, as_user: AsUser, tmp_path: Path, when: str
) -> None:
    """Before the true run is made; and between two processes of its campaign, the second of which has to find it again."""
    name = f"true-{when}"
    told, kept = records(name), Journal(tmp_path)
    for record in told:
        kept.append(record)
    mallory = as_user("bob")
    like = {"kind": "cell", "user": "alice", "mlflow.user": "alice", "team": "vision"}
    if when == "between":
        as_user("alice").apply(told[:3], tmp_path)
        mallory = as_user("bob")
    false = copied(mallory, "speech/captioning", [name, f"{name}-cell"], like)

    done = group.call("alice", "replay", f"--journal={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    alice = as_user("alice")
    found = {run.name: run for run in alice.runs(PLACE) if run.name.startswith(name)}
    assert {run.status for run in found.values()} == {"FINISHED"}
    cell = found[f"{name}-cell"]
    assert len(alice.points(cell.run_id, "train/loss")) == 100
    assert (cell.tags["machine"], cell.tags["campaign"]) == ("m1", found[name].run_id)
    assert len([run for run in alice.runs(PLACE) if run.tags.get("origin") == name]) == 1
    for run_id in false:
        run = alice.run(run_id)
        assert run
        assert (run.status, dict(run.metrics), "machine" in run.tags) == ("RUNNING", {}, False)


def test_a_team_mate_and_an_administrator_send_the_same_journal_again(
    group: Group, as_user: AsUser, tmp_path: Path
) -> None:
    told, kept = records("shared"), Journal(tmp_path)
    for record in told:
        kept.append(record)
    assert as_user("alice").apply(told[:4], tmp_path) == []
    assert group.admin(action="add_user", user="anton", team="vision").returncode == 0
    for user in ("anton", "admin"):
        done = group.call(user, "replay", f"--journal={tmp_path}")
        assert done.returncode == 0, done.stdout + done.stderr
    found = [run for run in as_user("carol").runs(PLACE) if run.name.startswith("shared")]
    assert sorted((run.name, run.status) for run in found) == [
        ("shared", "FINISHED"),
        ("shared-cell", "FINISHED"),
    ]


def test_a_run_with_values_is_never_ended_for_another(as_user: AsUser, tmp_path: Path) -> None:
    """A member of the team can write anything of the team's; by mistake nothing of it is ended or deleted."""
    told = records("twice")
    alice = as_user("alice")
    assert alice.apply(told[:4], tmp_path) == []
    (copy,) = copied(alice, PLACE, ["twice-cell"], {"mlflow.user": "alice"})
    alice._client.log_metric(copy, "other", 1.0)
    assert alice.apply(told[4:], tmp_path) == []
    run = alice.run(copy)
    assert run
    assert (run.status, "outcome" in run.tags) == ("RUNNING", False)
    assert alice._client.get_run(copy).info.lifecycle_stage == "active"
