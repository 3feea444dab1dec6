"""Accounts, teams and permissions of a tracking server with passwords.

A team is one of MLflow's roles: all users read all experiments, a team's members write those named
`team/…`, and those that it has a grant on. *Default*, where MLflow puts launches unless another
experiment is named, is read-only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracking.errors import ErrorCode, UsageError, suggestion
from tracking.reader import Rejected
from tracking.store import Store

ROLES, USERS = "/api/3.0/mlflow/roles", "/api/2.0/mlflow/users"
WORKSPACE = "default"
# MLflow's role of each user, which holds what is granted to one person.
PERSONAL = "__user_"
DEFAULT = "Default"
# Experiment in which a team's `mlflow run` opens its runs.
LAUNCHES = "launches"
# Experiment of comparisons: among the cells that they compare they would crowd the charts.
COMPARISONS = "comparisons"


@dataclass(frozen=True)
class Account:
    """User behind this process's name and password. `teams`: in the order of their names."""

    user: str
    is_admin: bool
    teams: tuple[str, ...]


@dataclass(frozen=True)
class Team:
    """Team with the ids of its role and of the experiments that it has a grant on, and users."""

    name: str
    role: int
    experiments: Collection[str]
    users: tuple[str, ...]


def current(store: Store) -> Account | None:
    """Return this process's account; None for a server without accounts, and for a file."""
    if not store.uri.startswith("http"):
        return None
    try:
        user = store.call("GET", f"{USERS}/current")["user"]
    except Rejected:  # the server has no such address
        return None
    endpoint = "/api/3.0/mlflow/users/roles/list"
    roles = store.call("GET", endpoint, username=user["username"])["roles"]
    names = sorted(role["name"] for role in roles)
    teams = tuple(name for name in names if not name.startswith(PERSONAL))
    return Account(user["username"], user["is_admin"], teams)


def team_of(account: Account | None, claimed: str) -> str:
    """Return the team that runs belong to. Raises UsageError for a team of others."""
    if account is None or (account.is_admin and not account.teams):
        return claimed
    teams = ", ".join(account.teams)
    if claimed and claimed not in account.teams:
        raise UsageError(
            ErrorCode.DENIED,
            f"team={claimed}: {account.user} is not of that team (of {teams or 'none'}); leave "
            "team out",
        )
    if not claimed and len(account.teams) > 1:
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"{account.user} is of several teams, {teams}; choose one: team={account.teams[0]}",
        )
    return claimed or "".join(account.teams)


def tags(account: Account | None) -> dict[str, str]:
    return {"user": account.user, "mlflow.user": account.user} if account else {}


def experiment_path(account: Account | None, team: str, name: str) -> str:
    """Return the experiment of that name in which an account writes.

    Args:
        account: Who is logged in; None on a server without accounts.
        team: Team of the account that the work is for; empty if it is of none.
        name: Name of the experiment without a team.

    Returns:
        `team/name`, on which the team has permissions, or only the name.
    """
    return f"{team}/{name}" if account and team else name


def registered_model(account: Account | None, team: str, name: str) -> str:
    """Return the registered model of that name that an account may write: `team.name`, or `name`.

    Args:
        account: Who is logged in; None on a server without accounts.
        team: Team of the account that the work is for; empty if it is of none.
        name: Name with or without the team.
    """
    is_complete = not (account and team) or name.startswith(f"{team}.")
    return name if is_complete else f"{team}.{name}"


def launches(account: Account | None, team: str) -> str:
    """Return the experiment in which `mlflow run` opens an account's runs."""
    return f"{team}/{LAUNCHES}" if account and team else DEFAULT


def teams(store: Store) -> list[Team]:
    """Return the teams, by name. Raises Rejected for anybody but an administrator."""
    names = {user["id"]: user["username"] for user in users(store)}
    teams = []
    for role in sorted(_roles(store), key=lambda role: role["name"]):
        if role["name"].startswith(PERSONAL):
            continue
        answer = store.call("GET", f"{ROLES}/users/list", role_id=str(role["id"]))
        ids = {member["user_id"] for member in answer["assignments"]}
        members = sorted(names[user_id] for user_id in ids & names.keys())  # others are newer
        teams.append(Team(role["name"], role["id"], _experiments(role), tuple(members)))
    return teams


def users(store: Store) -> list[dict[str, Any]]:
    answer = store.call("GET", f"{USERS}/list")
    return sorted(answer["users"], key=lambda user: user["username"])


def find_team(store: Store, name: str) -> Team:
    existing = teams(store)
    for team in existing:
        if team.name == name:
            return team
    teams_ = suggestion(name, [team.name for team in existing])
    raise UsageError(ErrorCode.UNKNOWN_NAME, f"no team {name} on {store.uri}{teams_}")


def add_team(store: Store, name: str, experiments: Sequence[str]) -> None:
    """Create a team with these experiments, or add them to an existing team.

    Its members write them by their names. The grant limits that: they delete no runs in them.

    Raises:
        UsageError: One of them belongs to a user outside the team, who took its name in advance.
    """
    team = next((team for team in teams(store) if team.name == name), None)
    for experiment in sorted(set(experiments) & set(store.experiment_names().values())):
        _revoke(store, experiment, team.users if team else ())
    if team is None:
        store.call("POST", f"{ROLES}/create", name=name, workspace=WORKSPACE)
    experiment_ids = [store.experiment_id(experiment) for experiment in experiments]
    team = find_team(store, name)  # a new experiment ends older grants on its id
    for experiment_id in experiment_ids:
        if experiment_id not in team.experiments:
            grant(store, team, experiment_id, "EDIT")


def grant(store: Store, team: Team, experiment_id: str, permission: str) -> None:
    store.call(
        "POST",
        f"{ROLES}/permissions/add",
        role_id=team.role,
        resource_type="experiment",
        resource_pattern=experiment_id,
        permission=permission,
    )


def _revoke(store: Store, experiment: str, members: Collection[str]) -> None:
    """Revoke personal permissions of a team's members. Raises UsageError for those of others."""
    (experiment_id,) = store.experiment_ids([experiment])
    roles = {role["name"]: role for role in _roles(store)}
    owners = [
        user["username"]
        for user in users(store)
        if not user["is_admin"]
        and experiment_id in _experiments(roles.get(f"{PERSONAL}{user['id']}__", {}))
    ]
    if others := [user for user in owners if user not in members]:
        raise UsageError(
            ErrorCode.DENIED,
            f"experiment {experiment} is {others[0]}'s, who is not of the team; rename it, or "
            f"make {others[0]} leave it",
        )
    for user in owners:
        store.call(
            "POST",
            "/api/3.0/mlflow/users/permissions/revoke",
            username=user,
            resource_type="experiment",
            resource_id=experiment_id,
        )


def _roles(store: Store) -> list[dict[str, Any]]:
    roles: list[dict[str, Any]] = store.call("GET", f"{ROLES}/list", workspace=WORKSPACE)["roles"]
    return roles


def _experiments(role: Mapping[str, Any]) -> list[str]:
    """Return the ids of experiments on which a role has a permission."""
    return [
        permission["resource_pattern"]
        for permission in role.get("permissions", ())
        if permission["resource_type"] == "experiment"
    ]
