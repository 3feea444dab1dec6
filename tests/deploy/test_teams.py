"""Teams on one server: everybody reads everything, each writes its own; whose a run is, the account says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import QUICK
from tests.deploy.group import Group
from tracking.records import Metrics, Point, Record, RunClosed, RunKind, RunOpened
from tracking.store import Store


def campaign(team: str, user: str, machine: str, faster: float, seed: int) -> list[Record]:
    """Six blocks of both frameworks, drawn, not measured: of this machine, by this team."""
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
            own = {
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
                    {**tags, **own},
                    {"batch_size": "32"},
                ),
                Metrics(run, (Point("train/examples_per_second", value, 0, time_ms),)),
                RunClosed(run, time_ms + 500, "ok"),
            ]
    return [*records, RunClosed(owner, 200_000, "ok")]


def test_a_campaign_goes_where_its_account_may_write_and_says_whose_it_is(
    group: Group, tmp_path: Path
) -> None:
    small = {
        "data": "synthetic",
        "vocabulary": "100",
        "length": "6",
        "epochs": "1",
        "blocks": "1",
        "frameworks": "toy",
    }
    small |= {
        "bleu_images": "1",
        "beams": "1",
        "journal": str(tmp_path / "journal"),
        "cache": str(tmp_path / "cache"),
    }
    settings = {**QUICK, **small}
    options = [f"--{name}={text}" for name, text in settings.items()]
    done = group.call("alice", "captioning", *options, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    found = group.ask(
        "bob",
        "GET",
        "/api/2.0/mlflow/experiments/get-by-name",
        params={"experiment_name": "vision/captioning"},
    )
    wanted = {
        "experiment_ids": [found.json()["experiment"]["experiment_id"]],
        "filter": "tags.kind = 'cell' and params.vocabulary = '100'",
    }
    (run,) = group.ask("bob", "POST", "/api/2.0/mlflow/runs/search", json=wanted).json()["runs"]
    tags = {one["key"]: one["value"] for one in run["data"]["tags"]}
    assert (tags["team"], tags["user"], tags["mlflow.user"]) == ("vision", "alice", "alice")

    claimed = group.call("alice", "captioning", *options, "--team=speech", cwd=tmp_path)
    assert claimed.returncode == 2
    assert "team=speech: alice is not of that team (of vision); leave team out" in claimed.stderr
    journal = "".join(
        path.read_text(errors="replace") for path in (tmp_path / "journal").rglob("*.json*")
    )
    assert group.password("alice") not in journal + done.stdout + done.stderr


def test_three_teams_on_two_machines_are_compared_on_one_server(
    group: Group, as_user: Callable[[str], Store], tmp_path: Path
) -> None:
    for at, (team, user) in enumerate(
        {"vision": "alice", "speech": "bob", "text": "carol"}.items()
    ):
        store = as_user(user)
        for machine in ("m1", "m2"):
            assert (
                store.apply(
                    campaign(team, user, machine, 1.2 if machine == "m1" else 1.25, seed=at),
                    tmp_path,
                )
                == []
            )
    places = ",".join(f"{team}/captioning" for team in ("vision", "speech", "text"))
    common = (
        f"--experiment={places}",
        "--filter=tags.model = 'drawn'",
        "--format=json",
        "--figures=false",
        f"--output={tmp_path}",
    )

    by_framework = group.call(
        "carol", "compare", *common, "--strata=machine,team", "--outcomes=train/examples_per_second"
    )
    assert by_framework.returncode == 0, by_framework.stderr
    rows = json.loads(by_framework.stdout)["rows"]
    assert {row["stratum"] for row in rows} == {
        f"machine={m}, team={t}" for m in ("m1", "m2") for t in ("vision", "speech", "text")
    }
    assert {row["verdict"] for row in rows} == {"faster"}
    for row in rows:
        assert row["estimate"] == pytest.approx(1.2 if "m1" in row["stratum"] else 1.25, rel=0.02)

    by_team = group.call(
        "carol",
        "compare",
        *common,
        "--factor=team",
        "--strata=machine,framework",
        "--baseline=text",
    )
    assert by_team.returncode in (0, 3), by_team.stderr
    told = json.loads(by_team.stdout)
    assert {(row["a"], row["b"]) for row in told["rows"]} == {
        ("text", "vision"),
        ("text", "speech"),
    }
    assert {row["n_blocks"] for row in told["rows"]} == {6}
    # the report went where carol's team may write
    wanted = {"experiment_name": "text/comparisons"}
    place = group.ask(
        "carol", "GET", "/api/2.0/mlflow/experiments/get-by-name", params=wanted
    ).json()["experiment"]
    assert (
        "Newest result"
        in {tag["key"]: tag["value"] for tag in place["tags"]}["mlflow.note.content"]
    )
    sought = {"experiment_ids": [place["experiment_id"]]}
    runs = group.ask("carol", "POST", "/api/2.0/mlflow/runs/search", json=sought).json()["runs"]
    assert {
        tag["value"]
        for run in runs
        for tag in run["data"]["tags"]
        if tag["key"] in ("user", "team")
    } == {"carol", "text"}


def test_another_teams_experiment_is_read_and_not_written(
    as_user: Callable[[str], Store], tmp_path: Path
) -> None:
    refused = as_user("bob").apply(campaign("vision", "bob", "m9", 1.0, seed=9), tmp_path)
    assert refused
    assert all(re.search("403|[Pp]ermission|not on this server", line) for line in refused)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"action": "add_team", "team": "Vision Team"}, "team=Vision Team is no name"),
        ({"action": "add_user", "user": "alice"}, "the server refuses"),
        ({"action": "join", "user": "alice", "team": "nobody"}, "no team nobody on"),
        ({"action": "add_user", "user": "erin", "team": "nobody"}, "no team nobody on"),
        ({"action": "join", "user": "mallory", "team": "vision"}, "the server refuses"),
        ({"action": "grant", "team": "vision", "experiment": "nowhere"}, "no experiment 'nowhere'"),
        ({"action": "burn"}, "action=burn is not known; choose list, add_team"),
    ],
)
def test_a_wrong_action_is_told_in_one_line(group: Group, given: dict[str, str], said: str) -> None:
    done = group.admin(**given)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (group.accounts / "erin.env").exists()


def test_only_an_administrator_administers(group: Group) -> None:
    done = group.call("bob", "admin", "--action=add_team", "--team=mine")
    assert done.returncode == 2
    assert "bob is no administrator" in done.stderr
    assert "vision" in group.admin(action="list").stdout


@pytest.mark.slow
def test_a_user_gets_a_new_password_joins_leaves_and_goes(group: Group) -> None:
    assert group.admin(action="add_user", user="dave").returncode == 0
    old = group.password("dave")
    assert group.admin(action="new_password", user="dave").returncode == 0
    assert group.password("dave") != old
    assert group.admin(action="join", user="dave", team="text").returncode == 0
    assert "dave" in group.admin(action="list").stdout
    assert group.admin(action="leave", user="dave", team="text").returncode == 0
    assert group.admin(action="remove_user", user="dave").returncode == 0
