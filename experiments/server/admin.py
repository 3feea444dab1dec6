"""Administration of a shared tracking server: teams, users, and permissions."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from experiments import studies
from experiments.config.console import Table
from experiments.config.settings import require_writable
from experiments.run.mlflow_run import ABOUT_COMPARISONS, describe
from experiments.server.settings import Admin
from tracking import accounts, links
from tracking.accounts import ROLES, USERS
from tracking.errors import ErrorCode, UsageError
from tracking.reader import Rejected
from tracking.store import Store

# The server's guard has the same rules.
NAMES = {
    "team": (r"[a-z][a-z0-9_-]{1,39}", "2 to 40 small letters, digits, - or _"),
    "user": (r"[A-Za-z][A-Za-z0-9._@-]{1,63}", "2 to 64 letters, digits, . _ - or @"),
}
SECRET_BYTES = 18
ABOUT_LAUNCHES = "Launches\n\nOne run per `mlflow run`; it leads to its campaign."
Lines = tuple[list[str], Table | None]


def administer(settings: Admin) -> Lines:
    """Run one action. Return the lines and the table to print."""
    store = Store()
    store.check()
    account = accounts.current(store)
    if account is None or not account.is_admin:
        raise UsageError(
            ErrorCode.DENIED,
            f"{account.user if account else 'this call'} is no administrator of {store.uri}; "
            f"it needs one of a server with accounts (mlflow server --app-name evenhand)",
        )
    try:
        return ACTIONS[settings.action](store, settings)
    except Rejected as error:
        raise UsageError(
            ErrorCode.DENIED, f"{settings.action}: the server refuses: {error}"
        ) from None


def _add_team(store: Store, settings: Admin) -> Lines:
    """Create a team that writes each study's experiment, its comparisons and its launches."""
    team = _name(settings.team, "team")
    names = (*studies.available(), accounts.COMPARISONS, accounts.LAUNCHES)
    experiments = [f"{team}/{name}" for name in names]
    accounts.add_team(store, team, experiments)
    for name in studies.available():
        describe(store, f"{team}/{name}", studies.load(name))
    links.describe_experiment(store, f"{team}/{accounts.COMPARISONS}", ABOUT_COMPARISONS)
    links.describe_experiment(store, f"{team}/{accounts.LAUNCHES}", ABOUT_LAUNCHES)
    return [f"team {team} writes {', '.join(experiments)}, and reads everything"], None


def _remove_team(store: Store, settings: Admin) -> Lines:
    team = accounts.find_team(store, settings.team)
    store.call("DELETE", f"{ROLES}/delete", role_id=team.role)
    users = ", ".join(team.users) or "nobody"
    return [f"team {team.name} is gone; {users} was in it; its experiments stay, to be read"], None


def _add_user(store: Store, settings: Admin) -> Lines:
    if settings.team:
        accounts.find_team(store, settings.team)  # raises before anything is made
    lines = [_password(store, settings, "POST", f"{USERS}/create")]
    if settings.team:
        lines += _join(store, settings)[0]
    return lines, None


def _new_password(store: Store, settings: Admin) -> Lines:
    return [_password(store, settings, "PATCH", f"{USERS}/update-password")], None


def _remove_user(store: Store, settings: Admin) -> Lines:
    store.call("DELETE", f"{USERS}/delete", username=_name(settings.user, "user"))
    return [f"user {settings.user} is gone; the runs stay"], None


def _join(store: Store, settings: Admin) -> Lines:
    user, team = _name(settings.user, "user"), accounts.find_team(store, settings.team)
    if user not in team.users:
        store.call("POST", f"{ROLES}/assign", username=user, role_id=team.role)
    return [f"{user} is of team {team.name}"], None


def _leave(store: Store, settings: Admin) -> Lines:
    user, team = _name(settings.user, "user"), accounts.find_team(store, settings.team)
    store.call("DELETE", f"{ROLES}/unassign", username=user, role_id=team.role)
    return [f"{user} has left team {team.name}"], None


def _grant(store: Store, settings: Admin) -> Lines:
    (experiment_id,) = store.experiment_ids([settings.experiment])
    team = accounts.find_team(store, settings.team)
    accounts.grant(store, team, experiment_id, settings.permission)
    return [f"team {team.name} may {settings.permission.lower()} {settings.experiment}"], None


def _list(store: Store, _: Admin) -> Lines:
    table = Table("team", "users", "experiments it writes", title=f"teams of {store.uri}")
    teams, names = accounts.teams(store), store.experiment_names()
    for team in teams:
        written = sorted(
            name
            for experiment, name in names.items()
            if name.startswith(f"{team.name}/") or experiment in team.experiments
        )
        table.add_row(team.name, ", ".join(team.users), ", ".join(written))
    placed = {user for team in teams for user in team.users}
    others = [
        f"{user['username']}{' (administrator)' * user['is_admin']}"
        for user in accounts.users(store)
        if user["username"] not in placed
    ]
    return [f"without a team: {', '.join(others) or 'nobody'}"], table


def _password(store: Store, settings: Admin, method: str, endpoint: str) -> str:
    """Set a random password and write it into a file: a terminal's output ends in logs."""
    user, password = _name(settings.user, "user"), secrets.token_urlsafe(SECRET_BYTES)
    folder = Path(settings.output)
    require_writable(folder, "output=DIR", mode=0o700)
    store.call(method, endpoint, username=user, password=password)
    lines = {
        "MLFLOW_TRACKING_URI": store.uri,
        "MLFLOW_TRACKING_USERNAME": user,
        "MLFLOW_TRACKING_PASSWORD": password,
    }
    if settings.team:
        lines["MLFLOW_EXPERIMENT_NAME"] = f"{settings.team}/{accounts.LAUNCHES}"
    path = folder / f"{user}.env"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("".join(f"export {name}='{text}'\n" for name, text in lines.items()))
    hint = "only you can read it; hand it over, then delete it"
    return f"{user}'s name and password are in {path} ({hint})"


def _name(text: str, setting: str) -> str:
    pattern, right = NAMES[setting]
    if not re.fullmatch(pattern, text):
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"{setting}={text} is no name; write {right}, a letter first",
        )
    return text


ACTIONS: dict[str, Callable[[Store, Admin], Lines]] = {
    "list": _list,
    "add_team": _add_team,
    "remove_team": _remove_team,
    "add_user": _add_user,
    "remove_user": _remove_user,
    "new_password": _new_password,
    "join": _join,
    "leave": _leave,
    "grant": _grant,
}
