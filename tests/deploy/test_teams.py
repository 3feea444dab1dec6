"""Teams on one server: each reads everything and writes its own; accounts name the owners."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import LoggedModelOutput

from tests import debian
from tests.conftest import QUICK
from tests.deploy.group import Group, Team, mlflow_server
from tests.tracking.postgres import Postgres
from tracking.journal import Journal
from tracking.records import (
    Metrics,
    ModelRegistered,
    Point,
    Record,
    RunClosed,
    RunKind,
    RunOpened,
)
from tracking.store import Store

AsUser = Callable[[str], Store]


def campaign(
    team: str, user: str, machine: str, faster: float, seed: int, blocks: int = 6
) -> list[Record]:
    """Return a drawn campaign of both frameworks."""
    rng, owner, place = np.random.default_rng(seed), f"{team}-{machine}", f"{team}/captioning"
    tags = {"team": team, "user": user, "mlflow.user": user, "machine": machine, "commit": "c"}
    tags |= {"model": "drawn", "dataset": "drawn", "environment": "e"}
    of_campaign = {**tags, "kind": RunKind.CAMPAIGN}
    rates = {"pytorch": 900.0, "tensorflow": 900.0 * faster}
    records: list[Record] = [RunOpened(owner, 1_000, place, f"campaign of {owner}", of_campaign)]
    tags |= {"kind": RunKind.CELL, "campaign": f"run:{owner}"}
    for block in range(1, blocks + 1):
        drift = float(rng.normal(0, 0.05))
        for order, (framework, rate) in enumerate(rates.items()):
            run, time_ms = f"{owner}-{block}-{framework}", 1_000 * (block * 10 + order)
            local = {"framework": framework, "block": str(block), "order_in_block": str(order)}
            value = rate * float(np.exp(drift + rng.normal(0, 0.005)))
            name = f"{framework} · block {block}"
            records += [
                RunOpened(run, time_ms, place, name, {**tags, **local}, {"batch_size": "32"}),
                Metrics(run, (Point("train/examples_per_second", value, 0, time_ms),)),
                RunClosed(run, time_ms + 500, "ok"),
            ]
    return [*records, RunClosed(owner, 200_000, "ok")]


def test_campaign_is_stored_in_its_team(group: Group, tmp_path: Path) -> None:
    small = {"data": "synthetic", "vocabulary": "100", "length": "6", "epochs": "1"}
    small |= {"blocks": "1", "frameworks": "toy", "bleu_images": "1", "beams": "1"}
    small |= {"journal": str(tmp_path / "journal"), "cache": str(tmp_path / "cache")}
    options = [f"--{name}={text}" for name, text in {**QUICK, **small}.items()]
    done = group.call("alice", "captioning", *options, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    experiment = group.experiment("vision/captioning")["experiment_id"]
    chosen = "tags.kind = 'cell' and params.vocabulary = '100'"
    query = {"experiment_ids": [experiment], "filter": chosen}
    (run,) = group.post("bob", "runs/search", **query)["runs"]
    tags = {item["key"]: item["value"] for item in run["data"]["tags"]}
    assert (tags["team"], tags["user"], tags["mlflow.user"]) == ("vision", "alice", "alice")

    claimed = group.call("alice", "captioning", *options, "--team=speech", cwd=tmp_path)
    assert (claimed.returncode, len(claimed.stderr.splitlines())) == (2, 1), claimed.stderr
    assert "team=speech" in claimed.stderr
    journal = "".join(
        path.read_text(errors="replace") for path in (tmp_path / "journal").rglob("*.json*")
    )
    assert group.password("alice") not in journal + done.stdout + done.stderr


def test_only_owners_read_secrets(group: Group) -> None:
    for path in (group.folder / "auth.ini", group.accounts / "alice.env"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    everybody_sees = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True)
    log = (group.folder / "server.log").read_text()
    for user in ("admin", "alice", "bob", "carol"):
        assert group.password(user) not in everybody_sees.stdout + log


def test_teams_are_compared(group: Group, as_user: AsUser, tmp_path: Path) -> None:
    for seed, (team, user) in enumerate({"vision": "alice", "text": "carol"}.items()):
        assert as_user(user).apply(campaign(team, user, "m1", 1.2, seed), tmp_path) == []

    def compare(*options: str) -> list[dict[str, object]]:
        common = ["--experiment=vision/captioning,text/captioning", "--figures=false"]
        common += ["--filter=tags.model = 'drawn'", "--format=json", f"--output={tmp_path}"]
        done = group.call("carol", "compare", *common, *options)
        assert done.returncode in (0, 3), done.stderr
        rows: list[dict[str, object]] = json.loads(done.stdout)["rows"]
        return rows

    rows = compare("--strata=machine,team", "--outcomes=train/examples_per_second")
    assert {row["stratum"] for row in rows} == {f"machine=m1, team={t}" for t in ("vision", "text")}
    assert {row["verdict"] for row in rows} == {"faster"}
    assert [row["estimate"] for row in rows] == pytest.approx([1.2, 1.2], rel=0.02)
    rows = compare("--factor=team", "--strata=machine,framework", "--baseline=text")
    assert {(row["a"], row["b"], row["n_blocks"]) for row in rows} == {("text", "vision", 6)}
    # The report goes where carol's team may write.
    experiment = group.experiment("text/comparisons")
    notes = {tag["key"]: tag["value"] for tag in experiment["tags"]}
    assert "Newest result" in notes["mlflow.note.content"]
    runs = group.post("carol", "runs/search", experiment_ids=[experiment["experiment_id"]])["runs"]
    tags = [(tag["key"], tag["value"]) for run in runs for tag in run["data"]["tags"]]
    assert {value for key, value in tags if key in ("user", "team")} == {"carol", "text"}


def test_records_in_another_team_are_refused(as_user: AsUser, tmp_path: Path) -> None:
    refused = as_user("bob").apply(campaign("vision", "bob", "m9", 1.0, 9, blocks=1), tmp_path)
    opened = [line for line in refused if line.startswith("RunOpened")]
    assert opened
    assert all("PERMISSION_DENIED" in line for line in opened), opened


@pytest.mark.parametrize("when", ["before", "between"])
def test_copied_origin_tags_change_nothing(
    group: Group, as_user: AsUser, tmp_path: Path, when: str
) -> None:
    """Copy them before the true run is made, and between two processes of its campaign."""
    records, stored = campaign("vision", "alice", when, 1.0, 1, blocks=2), Journal(tmp_path)
    for record in records:
        stored.append(record)
    if when == "between":
        as_user("alice").apply(records[:3], tmp_path)
    mallory, more = as_user("bob"), {f"more{number}": "x" for number in range(40)}
    experiment = mallory.experiment_id("speech/captioning")
    false = []
    for record in records[:2]:
        assert isinstance(record, RunOpened)
        tags = {**more, **record.tags, "mlflow.evenhand.origin": record.run}
        false.append(mallory._client.create_run(experiment, tags=tags).info.run_id)
    done = group.call("alice", "replay", f"--journal={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    alice = as_user("alice")
    runs = [run for run in alice.runs("vision/captioning") if run.tags.get("machine") == when]
    assert len(runs) == 5
    assert {run.status for run in runs} == {"FINISHED"}
    (owner,) = (run.run_id for run in runs if run.tags["kind"] == "campaign")
    cells = [run for run in runs if run.tags["kind"] == "cell"]
    assert {(run.tags["campaign"], len(run.metrics)) for run in cells} == {(owner, 1)}
    for run_id in false:
        run = alice.run(run_id)
        assert run
        assert (run.status, dict(run.metrics)) == ("RUNNING", {})


@pytest.mark.parametrize(
    ("user", "options", "value"),
    [
        ("admin", ["--action=add_team", "--team=Vision Team"], "team=Vision Team"),
        ("admin", ["--action=add_user", "--user=alice"], "alice"),
        ("admin", ["--action=join", "--user=alice", "--team=nobody"], "nobody"),
        ("admin", ["--action=add_user", "--user=erin", "--team=nobody"], "nobody"),
        ("admin", ["--action=join", "--user=mallory", "--team=vision"], "mallory"),
        ("admin", ["--action=grant", "--team=vision", "--experiment=nowhere"], "nowhere"),
        ("admin", ["--action=burn"], "action=burn"),
        ("bob", ["--action=add_team", "--team=mine"], "bob"),
    ],
)
def test_wrong_action_is_one_line(group: Group, user: str, options: list[str], value: str) -> None:
    done = group.call(user, "admin", f"--output={group.accounts}", *options)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert value in done.stderr
    assert not (group.accounts / "erin.env").exists()


@pytest.mark.slow
def test_life_of_a_user(group: Group) -> None:
    assert group.admin(action="add_user", user="dave").returncode == 0
    old = group.password("dave")
    assert group.admin(action="new_password", user="dave").returncode == 0
    assert group.password("dave") != old
    assert group.admin(action="join", user="dave", team="text").returncode == 0
    assert "dave" in group.admin(action="list").stdout
    assert group.admin(action="leave", user="dave", team="text").returncode == 0
    assert group.admin(action="remove_user", user="dave").returncode == 0


def test_models_are_registered_under_the_names_of_the_own_team(
    as_user: AsUser, tmp_path: Path
) -> None:
    def logged(user: str, team: str) -> tuple[Store, ModelRegistered]:
        """Log a model without files in a run of a team's, to be registered under alice's name."""
        store, run, place = as_user(user), f"{team}-registers", f"{team}/captioning"
        assert store.apply([RunOpened(run, 1_000, place, "registers")], tmp_path) == []
        run_id, experiment = store.run_id(run), store.experiment_id(place)
        model = store._client.create_logged_model(experiment, "model", source_run_id=run_id)
        store._client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        return store, ModelRegistered(run, "vision.registers", {"framework": "toy"}, ("baseline",))

    alice, hers = logged("alice", "vision")
    assert alice.apply([hers], tmp_path) == []
    bob, his = logged("bob", "speech")
    (refused,) = bob.apply([his], tmp_path)
    assert refused.startswith("ModelRegistered of speech-registers: ")
    assert bob.apply([replace(his, name="speech.registers")], tmp_path) == []
    assert bob.apply([replace(hers, removed_aliases=("baseline",))], tmp_path)
    registered = bob._client.get_registered_model("vision.registers")
    assert registered.aliases == {"baseline": "1"}


def test_dump_and_copy_are_a_server_again(
    group: Group, hers: Team, postgres: Postgres, tmp_path: Path
) -> None:
    """Back up a running server as docs/server.md says, and start another one from it."""
    point = {"key": "val/loss", "value": 1.5, "timestamp": 1, "step": 0}
    group.post("alice", "runs/log-metric", run_id=hers.run, **point)
    second = postgres.database("again")
    uris = [uri.replace("+psycopg2", "") for uri in (postgres.uri("teams"), second)]
    for program, *words in (
        ("pg_dump", "--format=custom", f"--file={tmp_path}/evenhand.dump", uris[0]),
        ("pg_restore", "--no-owner", f"--dbname={uris[1]}", f"{tmp_path}/evenhand.dump"),
    ):
        subprocess.run([debian.POSTGRESQL[-1] / program, *words], check=True)
    shutil.copytree(group.folder / "artifacts", tmp_path / "artifacts")
    with mlflow_server(tmp_path, "--workers", "1", "--backend-store-uri", second) as restored:
        shutil.copy(group.accounts / "alice.env", restored.accounts)
        run = restored.ask("alice", "GET", f"runs/get?run_id={hers.run}").json()["run"]
        assert 1.5 in [metric["value"] for metric in run["data"]["metrics"]]
        assert restored.ask("alice", "GET", hers.file).content == b"kept"
        restored.check(("alice", "POST", "experiments/create", {"name": "speech/mine"}, 403))
