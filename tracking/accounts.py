"""Who is asking, and who may write where: the accounts, teams and permissions of a tracking server with passwords.

A team is a role of MLflow's: everybody reads everything, a team's members write its own experiments, named `team/…`. What they
make there is the team's, not its maker's. *Default*, where MLflow puts launches unless told otherwise, is to be read.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracking.errors import WrongCall
from tracking.store import Rejected, Store

WORKSPACE = "default"
# MLflow's own roles, one a user, that hold what is granted to one person.
PERSONAL = "__user_"
EDIT = "EDIT"
DEFAULT, DEFAULT_ID = "Default", "0"
# Where a team's `mlflow run` opens its own runs.
LAUNCHES = "launches"
# Where comparisons are: beside the cells that they compare they would crowd the charts.
COMPARISONS = "comparisons"
SECRET_BYTES = 18


@dataclass(frozen=True)
class Account:
    """The user behind this process's name and password. teams: in order of their names."""

    user: str
    is_admin: bool
    teams: tuple[str, ...]


@dataclass(frozen=True)
class Team:
    """A team; experiments: id → permission."""

    name: str
    role: int
    experiments: Mapping[str, str]
    users: tuple[str, ...]


def current(store: Store) -> Account | None:
    """None on a server without accounts, and on a file."""
    if not store.uri.startswith("http"):
        return None
    try:
        user = _call(store, "GET", "/api/2.0/mlflow/users/current")["user"]
    except Rejected:  # no such address: the server asks nobody who he is
        return None
    roles = _call(store, "GET", "/api/3.0/mlflow/users/roles/list", username=user["username"])["roles"]
    teams = sorted(role["name"] for role in roles if not role["name"].startswith(PERSONAL))
    return Account(user["username"], user["is_admin"], tuple(teams))


def team_of(account: Account | None, claimed: str) -> str:
    """The team that runs belong to: the account's, whatever is claimed. Raises WrongCall for a claim that is not true."""
    if account is None or (account.is_admin and not account.teams):
        return claimed
    if claimed and claimed not in account.teams:
        have = ", ".join(account.teams) or "none"
        raise WrongCall(f"team={claimed}: {account.user} is not of that team (of {have}); leave team out")
    if not claimed and len(account.teams) > 1:
        raise WrongCall(
            f"{account.user} is of several teams, {', '.join(account.teams)}; say for which one: team={account.teams[0]}"
        )
    return claimed or "".join(account.teams)


def tags(account: Account | None) -> dict[str, str]:
    """Whose runs these are, as the server knows it."""
    return {"user": account.user, "mlflow.user": account.user} if account else {}


def place(account: Account | None, team: str, name: str) -> str:
    """The experiment of that name in which an account writes: its team's own."""
    return f"{team}/{name}" if account and team else name


def launches(account: Account | None, team: str) -> str:
    """The experiment in which `mlflow run` opens an account's runs."""
    return place(account, team, LAUNCHES) if account and team else DEFAULT


def holds_launches(experiment: str) -> bool:
    """Whether runs of an experiment stand for launches: nobody has chosen it for what they measure."""
    return experiment == DEFAULT or experiment.rpartition("/")[2] == LAUNCHES


def teams(store: Store) -> list[Team]:
    """Every team, by name. Raises Rejected for anybody but an administrator."""
    roles = _call(store, "GET", "/api/3.0/mlflow/roles/list", workspace=WORKSPACE)["roles"]
    return [_team(store, role) for role in sorted(roles, key=lambda role: role["name"]) if not role["name"].startswith(PERSONAL)]


def _team(store: Store, role: Mapping[str, Any]) -> Team:
    members = _call(store, "GET", "/api/3.0/mlflow/roles/users/list", role_id=str(role["id"]))["assignments"]
    names = {user["id"]: user["username"] for user in users(store)}
    experiments = {
        one["resource_pattern"]: one["permission"] for one in role["permissions"] if one["resource_type"] == "experiment"
    }
    return Team(role["name"], role["id"], experiments, tuple(sorted(names[one["user_id"]] for one in members)))


def users(store: Store) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _call(store, "GET", "/api/2.0/mlflow/users/list")["users"]
    return sorted(found, key=lambda user: user["username"])


def add_team(store: Store, name: str, experiments: Sequence[str]) -> Team:
    """A team that may write the experiments of these names, made where they are missing. A second time adds what is new.

    Raises WrongCall where one of them is already another's, so that nobody finds a name taken and keeps it.
    """
    found = next((team for team in teams(store) if team.name == name), None)
    members, taken = found.users if found else (), set(experiments) & set(store.experiment_names().values())
    for experiment in sorted(taken):
        take_back(store, experiment, members)
    if found is None:
        _call(store, "POST", "/api/3.0/mlflow/roles/create", name=name, workspace=WORKSPACE)
        found = named(store, name)
    for experiment_id in map(store.experiment_id, experiments):
        if experiment_id not in found.experiments:
            grant(store, found, experiment_id, EDIT)
    if DEFAULT_ID in found.experiments:
        _revoke(store, found.role, DEFAULT_ID)
    return named(store, name)


def take_back(store: Store, experiment: str, members: Collection[str]) -> None:
    """What members of a team may do with its experiment they may do as members. Raises WrongCall for anybody else's."""
    (experiment_id,) = store.experiment_ids([experiment])
    owners = [one for one in _owners(store, experiment_id) if not one[1]["is_admin"]]
    for _, user in owners:
        if user["username"] not in members:
            who = user["username"]
            raise WrongCall(f"experiment {experiment} is {who}'s, who is not of the team; rename it, or make {who} leave it")
    for role, _ in owners:
        _revoke(store, role, experiment_id)


def _owners(store: Store, experiment_id: str) -> list[tuple[int, dict[str, Any]]]:
    """Personal role and user of everybody who has a permission of his own on an experiment."""
    roles = _call(store, "GET", "/api/3.0/mlflow/roles/list", workspace=WORKSPACE)["roles"]
    every = {f"{PERSONAL}{user['id']}__": user for user in users(store)}
    return [(role["id"], every[role["name"]]) for role in roles if role["name"] in every and _permits(role, experiment_id)]


def _permits(role: Mapping[str, Any], experiment_id: str) -> bool:
    wanted = ("experiment", experiment_id)
    return any((one["resource_type"], one["resource_pattern"]) == wanted for one in role["permissions"])


def _revoke(store: Store, role: int, experiment_id: str) -> None:
    """Removes a role's permission on an experiment."""
    held = _call(store, "GET", "/api/3.0/mlflow/roles/permissions/list", role_id=str(role))["role_permissions"]
    for one in held:
        if (one["resource_type"], one["resource_pattern"]) == ("experiment", experiment_id):
            _call(store, "DELETE", "/api/3.0/mlflow/roles/permissions/remove", role_permission_id=one["id"])


def remove_team(store: Store, name: str) -> Team:
    """Removes a team; its experiments and runs stay."""
    found = named(store, name)
    _call(store, "DELETE", "/api/3.0/mlflow/roles/delete", role_id=found.role)
    return found


def grant(store: Store, team: Team, experiment: str, permission: str) -> None:
    """A permission of a team on an experiment, by its id."""
    what = {"resource_type": "experiment", "resource_pattern": experiment, "permission": permission}
    _call(store, "POST", "/api/3.0/mlflow/roles/permissions/add", role_id=team.role, **what)


def add_user(store: Store, name: str) -> str:
    """Returns the password, which is drawn here and known to nobody else."""
    password = secrets.token_urlsafe(SECRET_BYTES)
    _call(store, "POST", "/api/2.0/mlflow/users/create", username=name, password=password)
    return password


def new_password(store: Store, name: str) -> str:
    """Returns it; the old one ends, at the latest when the server's cache of a minute does."""
    password = secrets.token_urlsafe(SECRET_BYTES)
    _call(store, "PATCH", "/api/2.0/mlflow/users/update-password", username=name, password=password)
    return password


def remove_user(store: Store, name: str) -> None:
    """Removes a user; the user's runs stay."""
    _call(store, "DELETE", "/api/2.0/mlflow/users/delete", username=name)


def join(store: Store, user: str, team: str) -> None:
    found = named(store, team)
    if user not in found.users:
        _call(store, "POST", "/api/3.0/mlflow/roles/assign", username=user, role_id=found.role)


def leave(store: Store, user: str, team: str) -> None:
    _call(store, "DELETE", "/api/3.0/mlflow/roles/unassign", username=user, role_id=named(store, team).role)


def named(store: Store, name: str) -> Team:
    """The team of that name. Raises WrongCall naming those there are."""
    every = teams(store)
    for team in every:
        if team.name == name:
            return team
    raise WrongCall(f"no team {name} on {store.uri}; have {', '.join(team.name for team in every) or 'none'}")


def _call(store: Store, method: str, endpoint: str, **values: Any) -> dict[str, Any]:
    """The answer of the server's own interface for accounts."""
    sent = {"params": values} if method == "GET" else {"json": values}
    text = store.call(method, endpoint, **sent)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found
