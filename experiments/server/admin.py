"""The administration of a shared tracking server: teams, users, and who may write which experiment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from experiments import studies
from experiments.campaign.opening import ABOUT_COMPARISONS, describe
from experiments.config.console import Table
from experiments.config.settings import require_writable
from experiments.server import prune
from experiments.server.settings import Admin
from tracking import accounts
from tracking.errors import WrongCall
from tracking.store import Rejected, Store

NAME = re.compile(r"[a-z][a-z0-9_-]{1,39}")


def administer(settings: Admin) -> tuple[list[str], Table | None]:
    """Does one action; what to say of it. Raises WrongCall where it cannot be done."""
    store = Store()
    store.check()
    account = accounts.current(store)
    if account is None:
        raise WrongCall(f"{store.uri} has no accounts; start a server that has: python -m deploy.native start")
    if not account.is_admin:
        raise WrongCall(f"{account.user} is no administrator of {store.uri}; ask one")
    try:
        return ACTIONS[settings.action](store, settings)
    except Rejected as error:
        raise WrongCall(f"{settings.action}: the server refuses: {error}") from None


def experiments_of(team: str) -> list[str]:
    """What a team writes: each study's experiment, its comparisons and its launches."""
    return [f"{team}/{name}" for name in (*studies.available(), accounts.COMPARISONS, accounts.LAUNCHES)]


def _add_team(store: Store, settings: Admin) -> tuple[list[str], None]:
    made = accounts.add_team(store, _name(settings.team, "team"), experiments_of(settings.team))
    for name in studies.available():
        describe(store, f"{made.name}/{name}", studies.load(name))
    store.describe_experiment(f"{made.name}/{accounts.COMPARISONS}", ABOUT_COMPARISONS)
    store.describe_experiment(
        f"{made.name}/{accounts.LAUNCHES}", "Launches\n\nOne run per `mlflow run`; it leads to its campaign."
    )
    return [f"team {made.name} writes {', '.join(experiments_of(made.name))}, and reads everything"], None


def _remove_team(store: Store, settings: Admin) -> tuple[list[str], None]:
    gone = accounts.remove_team(store, _name(settings.team, "team"))
    return [f"team {gone.name} is gone; {', '.join(gone.users) or 'nobody'} was in it; its experiments stay, to be read"], None


def _add_user(store: Store, settings: Admin) -> tuple[list[str], None]:
    user = _name(settings.user, "user")
    if settings.team:
        accounts.named(store, settings.team)  # raises before anything is made
    _require_output(settings)
    password = accounts.add_user(store, user)
    told = [_handed_over(store, settings, password)]
    if settings.team:
        accounts.join(store, user, settings.team)
        told.append(f"{user} is of team {settings.team}")
    return told, None


def _new_password(store: Store, settings: Admin) -> tuple[list[str], None]:
    user = _name(settings.user, "user")
    _require_output(settings)
    return [_handed_over(store, settings, accounts.new_password(store, user))], None


def _remove_user(store: Store, settings: Admin) -> tuple[list[str], None]:
    accounts.remove_user(store, _name(settings.user, "user"))
    return [f"user {settings.user} is gone; the runs stay"], None


def _join(store: Store, settings: Admin) -> tuple[list[str], None]:
    accounts.join(store, _name(settings.user, "user"), _name(settings.team, "team"))
    return [f"{settings.user} is of team {settings.team}"], None


def _leave(store: Store, settings: Admin) -> tuple[list[str], None]:
    accounts.leave(store, _name(settings.user, "user"), _name(settings.team, "team"))
    return [f"{settings.user} has left team {settings.team}"], None


def _grant(store: Store, settings: Admin) -> tuple[list[str], None]:
    (experiment,) = store.experiment_ids([settings.experiment])
    team = accounts.named(store, settings.team)
    accounts.grant(store, team, experiment, settings.permission)
    return [f"team {team.name} may {settings.permission.lower()} {settings.experiment}"], None


def _prune(store: Store, settings: Admin) -> tuple[list[str], Table | None]:
    if settings.experiment:
        store.experiment_ids([settings.experiment])
    places = [settings.experiment] if settings.experiment else sorted(store.experiment_names().values())
    found = prune.prunable(store, places, settings.days)
    if not found:
        return [f"no run that ended {settings.days} days ago or more has files that a report was made of"], None
    if settings.confirm:
        prune.prune(store, found)
        gc = "python -m deploy.native gc, by the server's owner, frees what was deleted in the UI too"
        return [f"the files of {len(found)} runs are gone; their metrics stay. {gc}"], None
    table = Table(title="whose files would go", title_justify="left")
    for name in ("run", "of", "ended, days ago"):
        table.add_column(name)
    for one in found:
        table.add_row(one.run.name, one.campaign.name, str(one.days))
    return [f"{len(found)} runs; their metrics stay. Delete these files: the same again with confirm=true"], table


def _list(store: Store, _: Admin) -> tuple[list[str], Table]:
    table = Table(title=f"teams of {store.uri}", title_justify="left")
    for name in ("team", "users", "experiments it writes"):
        table.add_column(name)
    every = accounts.teams(store)
    names = store.experiment_names()
    for team in every:
        table.add_row(team.name, ", ".join(team.users), ", ".join(sorted(names.get(one, one) for one in team.experiments)))
    placed = {user for team in every for user in team.users}
    alone = [f"{one['username']}{' (administrator)' if one['is_admin'] else ''}" for one in accounts.users(store)]
    return [f"of no team: {', '.join(name for name in alone if name.split()[0] not in placed) or 'nobody'}"], table


def _require_output(settings: Admin) -> None:
    require_writable(Path(settings.output), "output=DIR", mode=0o700)


def _handed_over(store: Store, settings: Admin, password: str) -> str:
    """The password into a file that its owner alone can read: a terminal's output ends in logs."""
    path = Path(settings.output) / f"{settings.user}.env"
    lines = {"MLFLOW_TRACKING_URI": store.uri, "MLFLOW_TRACKING_USERNAME": settings.user, "MLFLOW_TRACKING_PASSWORD": password}
    if settings.team:
        lines["MLFLOW_EXPERIMENT_NAME"] = f"{settings.team}/{accounts.LAUNCHES}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("".join(f"export {name}='{text}'\n" for name, text in lines.items()))
    return f"{settings.user}'s name and password are in {path} (yours alone to read); hand it over, then delete it"


def _name(text: str, setting: str) -> str:
    if not NAME.fullmatch(text):
        raise WrongCall(f"{setting}={text} is no name; write 2 to 40 small letters, digits, - or _, a letter first")
    return text


ACTIONS: dict[str, Callable[[Store, Admin], tuple[list[str], Table | None]]] = {
    "list": _list,
    "add_team": _add_team,
    "remove_team": _remove_team,
    "add_user": _add_user,
    "remove_user": _remove_user,
    "new_password": _new_password,
    "join": _join,
    "leave": _leave,
    "grant": _grant,
    "prune": _prune,
}
