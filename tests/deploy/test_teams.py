"""Teams on one server: each reads everything and writes its own; accounts name the owners."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import LoggedModelOutput

from tests.conftest import QUICK
from tests.deploy.group import API, Group
from tracking.records import Metrics, ModelRegistered, Point, Record, RunClosed, RunKind, RunOpened
from tracking.store import Store


def campaign(team: str, user: str, machine: str, faster: float, seed: int) -> list[Record]:
    """Return a drawn campaign of six blocks of both frameworks."""
    rng, records = np.random.default_rng(seed), list[Record]()
    owner = f"{team}-{machine}"
    tags = {
        "team": team,
        "user": user,
        "machine": machine,
        "model": "drawn",
        "dataset": "drawn",
        "environment": "e",
        "commit": "c",
    }
    place = f"{team}/captioning"
    records.append(
        RunOpened(owner, 1_000, place, f"campaign of {owner}", {**tags, "kind": RunKind.CAMPAIGN})
    )
    for block in range(1, 7):
        drift = float(rng.normal(0, 0.05))
        for at, (framework, rate) in enumerate(
            {"pytorch": 900.0, "tensorflow": 900.0 * faster}.items()
        ):
            run = f"{owner}-{block}-{framework}"
            local = {
                "kind": RunKind.CELL,
                "campaign": f"run:{owner}",
                "framework": framework,
                "block": str(block),
                "order_in_block": str(at),
            }
            time_ms = 1_000 * (block * 10 + at)
            value = rate * float(np.exp(drift + rng.normal(0, 0.005)))
            records += [
                RunOpened(
                    run,
                    time_ms,
                    place,
                    f"{framework} · block {block}",
                    {**tags, **local},
                    {"batch_size": "32"},
                ),
                Metrics(run, (Point("train/examples_per_second", value, 0, time_ms),)),
                RunClosed(run, time_ms + 500, "ok"),
            ]
    return [*records, RunClosed(owner, 200_000, "ok")]


def test_campaign_is_stored_in_its_team(group: Group, tmp_path: Path) -> None:
    small = {"data": "synthetic", "vocabulary": "100", "length": "6", "epochs": "1"}
    small |= {"blocks": "1", "frameworks": "toy", "bleu_images": "1", "beams": "1"}
    small |= {"journal": str(tmp_path / "journal"), "cache": str(tmp_path / "cache")}
    settings = {**QUICK, **small}
    options = [f"--{name}={text}" for name, text in settings.items()]
    done = group.call("alice", "captioning", *options, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    named = {"experiment_name": "vision/captioning"}
    answer = group.ask("bob", "GET", f"{API}/experiments/get-by-name", params=named)
    query = {
        "experiment_ids": [answer.json()["experiment"]["experiment_id"]],
        "filter": "tags.kind = 'cell' and params.vocabulary = '100'",
    }
    (run,) = group.ask("bob", "POST", f"{API}/runs/search", json=query).json()["runs"]
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


def test_teams_are_compared(group: Group, as_user: Callable[[str], Store], tmp_path: Path) -> None:
    ratio, users = 1.2, {"vision": "alice", "text": "carol"}
    for seed, (team, user) in enumerate(users.items()):
        assert as_user(user).apply(campaign(team, user, "m1", ratio, seed), tmp_path) == []
    places = ",".join(f"{team}/captioning" for team in users)
    options = [f"--experiment={places}", "--filter=tags.model = 'drawn'", "--format=json"]
    options += ["--figures=false", f"--output={tmp_path}"]

    strata = ("--strata=machine,team", "--outcomes=train/examples_per_second")
    by_framework = group.call("carol", "compare", *options, *strata)
    assert by_framework.returncode == 0, by_framework.stderr
    rows = {row["stratum"]: row for row in json.loads(by_framework.stdout)["rows"]}
    assert rows.keys() == {f"machine=m1, team={team}" for team in users}
    for row in rows.values():
        assert row["verdict"] == "faster"
        assert row["estimate"] == pytest.approx(ratio, rel=0.02)

    factor = ("--factor=team", "--strata=machine,framework", "--baseline=text")
    by_team = group.call("carol", "compare", *options, *factor)
    assert by_team.returncode in (0, 3), by_team.stderr
    rows = json.loads(by_team.stdout)["rows"]
    assert {(row["a"], row["b"], row["n_blocks"]) for row in rows} == {("text", "vision", 6)}
    # The report goes where carol's team may write.
    query = {"experiment_name": "text/comparisons"}
    place = group.ask("carol", "GET", f"{API}/experiments/get-by-name", params=query)
    experiment = place.json()["experiment"]
    notes = {tag["key"]: tag["value"] for tag in experiment["tags"]}
    assert "Newest result" in notes["mlflow.note.content"]
    query = {"experiment_ids": [experiment["experiment_id"]]}
    runs = group.ask("carol", "POST", f"{API}/runs/search", json=query).json()["runs"]
    tags = [(tag["key"], tag["value"]) for run in runs for tag in run["data"]["tags"]]
    assert {value for key, value in tags if key in ("user", "team")} == {"carol", "text"}


def test_records_in_another_team_are_refused(
    as_user: Callable[[str], Store], tmp_path: Path
) -> None:
    refused = as_user("bob").apply(campaign("vision", "bob", "m9", 1.0, seed=9), tmp_path)
    opened = [line for line in refused if line.startswith("RunOpened")]
    assert opened
    assert all("PERMISSION_DENIED" in line for line in opened), opened


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ({"action": "add_team", "team": "Vision Team"}, "team=Vision Team"),
        ({"action": "add_user", "user": "alice"}, "alice"),
        ({"action": "join", "user": "alice", "team": "nobody"}, "nobody"),
        ({"action": "add_user", "user": "erin", "team": "nobody"}, "nobody"),
        ({"action": "join", "user": "mallory", "team": "vision"}, "mallory"),
        ({"action": "grant", "team": "vision", "experiment": "nowhere"}, "nowhere"),
        ({"action": "burn"}, "action=burn"),
    ],
)
def test_wrong_action_is_one_line(group: Group, values: dict[str, str], value: str) -> None:
    done = group.admin(**values)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert value in done.stderr
    assert not (group.accounts / "erin.env").exists()


def test_administration_needs_an_administrator(group: Group) -> None:
    done = group.call("bob", "admin", "--action=add_team", "--team=mine")
    assert done.returncode == 2
    assert "bob" in done.stderr
    assert "vision" in group.admin(action="list").stdout


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
    as_user: Callable[[str], Store], tmp_path: Path
) -> None:
    def log_model(store: Store, team: str) -> str:
        """Log a model without files in a run of a team's; return the journal's id of the run."""
        opened = RunOpened(f"{team}-registers", 1_000, f"{team}/captioning", "registers")
        assert store.apply([opened], tmp_path) == []
        run_id, client = store.run_id(opened.run), store._client
        model = client.create_logged_model(
            store.experiment_id(opened.experiment), "model", source_run_id=run_id
        )
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        return opened.run

    tags = {"framework": "toy", "verdict/train/loss": "faster"}
    alice = as_user("alice")
    hers = ModelRegistered(log_model(alice, "vision"), "vision.registers", tags, ("baseline",))
    for _ in range(2):  # the second time as a replay
        assert alice.apply([hers], tmp_path) == []
    bob = as_user("bob")
    his = ModelRegistered(log_model(bob, "speech"), "vision.registers", tags, ("fastest",))
    (refused,) = bob.apply([his], tmp_path)
    assert refused.startswith("ModelRegistered of speech-registers: ")
    assert bob.apply([replace(his, name="speech.registers")], tmp_path) == []
    assert bob.apply([replace(hers, removed_aliases=("baseline",))], tmp_path)
    registered = bob._client.get_registered_model("vision.registers")
    assert registered.aliases == {"baseline": "1"}
    assert bob._client.get_model_version("vision.registers", "1").tags == tags
