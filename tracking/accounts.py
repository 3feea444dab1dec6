"""Accounts, teams and permissions of a tracking server with passwords.

A team is a role of MLflow's: everybody reads everything, a team's members write its experiments,
named `team/…`. What they make there is the team's. *Default*, where MLflow puts launches unless
told otherwise, can be read only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracking.errors import WrongCall
from tracking.store import Rejected, Store

ROLES, USERS = "/api/3.0/mlflow/roles", "/api/2.0/mlflow/users"
WORKSPACE = "default"
# MLflow's own roles, one a user, that hold what is granted to one person.
PERSONAL = "__user_"
DEFAULT = "Default"
# Where a team's `mlflow run` opens its own runs.
LAUNCHES = "launches"
# Where comparisons are: beside the cells that they compare they would crowd the charts.
COMPARISONS = "comparisons"


@dataclass(frozen=True)
class Account:
    """The user behind this process's name and password. teams: in order of their names."""

    user: str
    is_admin: bool
    teams: tuple[str, ...]


@dataclass(frozen=True)
class Team:
    """A team, its role, the ids of its experiments and its users."""

    name: str
    role: int
    experiments: Collection[str]
    users: tuple[str, ...]


def current(store: Store) -> Account | None:
    """Return this process's account; None on a server without accounts, and on a file."""
    if not store.uri.startswith("http"):
        return None
    try:
        user = call(store, "GET", f"{USERS}/current")["user"]
    except Rejected:  # no such address: the server asks nobody who he is
        return None
    roles = call(store, "GET", "/api/3.0/mlflow/users/roles/list", username=user["username"])[
        "roles"
    ]
    names = (role["name"] for role in roles)
    teams = tuple(sorted(name for name in names if not name.startswith(PERSONAL)))
    return Account(user["username"], user["is_admin"], teams)


def team_of(account: Account | None, claimed: str) -> str:
    """Return the team that runs belong to. Raises WrongCall for a claim that is not true."""
    if account is None or (account.is_admin and not account.teams):
        return claimed
    teams = ", ".join(account.teams)
    if claimed and claimed not in account.teams:
        reason = f"{account.user} is not of that team (of {teams or 'none'})"
        raise WrongCall(f"team={claimed}: {reason}; leave team out")
    if not claimed and len(account.teams) > 1:
        right = f"say for which one: team={account.teams[0]}"
        raise WrongCall(f"{account.user} is of several teams, {teams}; {right}")
    return claimed or "".join(account.teams)


def tags(account: Account | None) -> dict[str, str]:
    """Return the tags that state whose runs these are, as the server knows it."""
    return {"user": account.user, "mlflow.user": account.user} if account else {}


def place(account: Account | None, team: str, name: str) -> str:
    """Return the experiment of that name in which an account writes: its team's own."""
    return f"{team}/{name}" if account and team else name


def launches(account: Account | None, team: str) -> str:
    """Return the experiment in which `mlflow run` opens an account's runs."""
    return place(account, team, LAUNCHES) if account and team else DEFAULT


def holds_launches(experiment: str) -> bool:
    """Return whether runs of an experiment stand for launches, not for what they measure."""
    return experiment == DEFAULT or experiment.rpartition("/")[2] == LAUNCHES


def teams(store: Store) -> list[Team]:
    """Return every team, by name. Raises Rejected for anybody but an administrator."""
    users_by_id = {user["id"]: user["username"] for user in users(store)}
    found = []
    for role in sorted(_roles(store), key=lambda role: role["name"]):
        if not role["name"].startswith(PERSONAL):
            members = call(store, "GET", f"{ROLES}/users/list", role_id=str(role["id"]))[
                "assignments"
            ]
            names = sorted(users_by_id[member["user_id"]] for member in members)
            found.append(Team(role["name"], role["id"], _experiments(role), tuple(names)))
    return found


def users(store: Store) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(store, "GET", f"{USERS}/list")["users"]
    return sorted(found, key=lambda user: user["username"])


def named(store: Store, name: str) -> Team:
    """Return the team of that name. Raises WrongCall naming those there are."""
    every = teams(store)
    for team in every:
        if team.name == name:
            return team
    have = ", ".join(team.name for team in every) or "none"
    raise WrongCall(f"no team {name} on {store.uri}; have {have}")


def add_team(store: Store, name: str, experiments: Sequence[str]) -> None:
    """Make a team that may write the experiments of these names; again, add those that are new.

    Raises:
        WrongCall: One of them is somebody else's, so that no name is taken in advance.
    """
    team = next((team for team in teams(store) if team.name == name), None)
    for experiment in sorted(set(experiments) & set(store.experiment_names().values())):
        _take_back(store, experiment, team.users if team else ())
    if team is None:
        call(store, "POST", f"{ROLES}/create", name=name, workspace=WORKSPACE)
        team = named(store, name)
    for experiment_id in map(store.experiment_id, experiments):
        if experiment_id not in team.experiments:
            grant(store, team, experiment_id, "EDIT")


def grant(store: Store, team: Team, experiment_id: str, permission: str) -> None:
    what = {
        "resource_type": "experiment",
        "resource_pattern": experiment_id,
        "permission": permission,
    }
    call(store, "POST", f"{ROLES}/permissions/add", role_id=team.role, **what)


def call(store: Store, method: str, endpoint: str, **values: Any) -> dict[str, Any]:
    """Return the answer of the server's own interface for accounts."""
    sent = {"params": values} if method == "GET" else {"json": values}
    text = store.call(method, endpoint, **sent)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def _take_back(store: Store, experiment: str, members: Collection[str]) -> None:
    """Leave a team's members what they may do as members. Raises WrongCall for anybody else's."""
    (experiment_id,) = store.experiment_ids([experiment])
    roles = {role["name"]: role for role in _roles(store)}
    personal = {
        user["username"]: f"{PERSONAL}{user['id']}__"
        for user in users(store)
        if not user["is_admin"]
    }
    owners = [
        user
        for user, role in personal.items()
        if experiment_id in _experiments(roles.get(role, {}))
    ]
    for user in owners:
        if user not in members:
            right = f"rename it, or make {user} leave it"
            raise WrongCall(f"experiment {experiment} is {user}'s, who is not of the team; {right}")
    for user in owners:
        what = {"resource_type": "experiment", "resource_id": experiment_id}
        call(store, "POST", "/api/3.0/mlflow/users/permissions/revoke", username=user, **what)


def _roles(store: Store) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(store, "GET", f"{ROLES}/list", workspace=WORKSPACE)["roles"]
    return found


def _experiments(role: Mapping[str, Any]) -> list[str]:
    """Return the ids of experiments on which a role has a permission."""
    permissions = role.get("permissions", ())
    return [one["resource_pattern"] for one in permissions if one["resource_type"] == "experiment"]
