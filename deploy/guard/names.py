"""What experiments, models, teams and users may be called, and whose a name is: one grammar, in ASCII."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from deploy.guard.refusal import Refusal

LONGEST = 250
TEAM = re.compile(r"[a-z][a-z0-9_-]{1,39}")
USER = re.compile(r"[A-Za-z][A-Za-z0-9._@-]{1,63}")
# Words with single spaces between them; parts of an experiment's name are set apart by a slash.
WORDS = r"[A-Za-z0-9][A-Za-z0-9._+=-]*(?: [A-Za-z0-9._+=-]+)*"
EXPERIMENT = re.compile(rf"{WORDS}(?:/{WORDS})*")
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+=-]*(?:[. ][A-Za-z0-9][A-Za-z0-9_+=-]*)*")


def check_team(name: object) -> None:
    """Raises Refusal unless the text can be a team's name."""
    _check(name, TEAM, "a team's name is 2 to 40 of a-z, 0-9, - and _, a letter first")


def check_user(name: object) -> None:
    """Raises Refusal unless the text can be a user's name."""
    _check(name, USER, "a user's name is 2 to 64 of A-Z, a-z, 0-9, . _ - and @, a letter first")


def check_experiment(name: object, teams: Collection[str] | None) -> str:
    """The team whose experiment a name says it is. teams: the account's, None for an administrator. Raises Refusal."""
    text = _check(name, EXPERIMENT, "an experiment's name is letters, digits, . _ + = - and single spaces, with / between parts")
    return _owner(text, "/", "experiment", teams)


def check_model(name: object, teams: Collection[str] | None) -> str:
    """The team whose registered model a name says it is; MLflow allows no slash there. Raises Refusal."""
    text = _check(name, MODEL, "a model's name is letters, digits, _ + = - and, each between two of them, single dots and spaces")
    return _owner(text, ".", "model", teams)


def _check(name: object, grammar: re.Pattern[str], told: str) -> str:
    if not isinstance(name, str) or len(name) > LONGEST or not grammar.fullmatch(unicodedata.normalize("NFKC", name)):
        raise Refusal(400, f"{ascii(name)[:100]} is no name: {told}")
    if name != unicodedata.normalize("NFKC", name):
        raise Refusal(400, f"{ascii(name)[:100]} only looks like {unicodedata.normalize('NFKC', name)}: write plain letters")
    return name


def _owner(name: str, between: str, what: str, teams: Collection[str] | None) -> str:
    team, found, _ = name.partition(between)
    if teams is None:
        return team if found else ""
    if not teams:
        raise Refusal(403, f"an account without a team makes no {what}; ask an administrator to add it to one")
    if not found or team not in teams:
        own = f"{sorted(teams)[0]}{between}{name.rpartition(between)[2]}"
        raise Refusal(403, f"{what} {name} is not of your team ({', '.join(sorted(teams))}); call it {own}")
    return team
