"""Names of experiments, models, teams and users, and the team that owns a name. ASCII only."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from deploy.guard.refusal import Reason, Refusal

LONGEST = 250


@dataclass(frozen=True)
class Grammar:
    """Names of one kind; `separator` stands behind the team in names that belong to one."""

    kind: str
    pattern: str
    text: str
    separator: str = ""


TEAM = Grammar("team", r"[a-z][a-z0-9_-]{1,39}", "2 to 40 of a-z, 0-9, - and _, a letter first")
USER = Grammar(
    "user",
    r"[A-Za-z][A-Za-z0-9._@-]{1,63}",
    "2 to 64 of A-Z, a-z, 0-9, . _ - and @, a letter first",
)
# Words with single spaces between them; parts of an experiment's name are set apart by a slash.
WORDS = r"[A-Za-z0-9][A-Za-z0-9._+=-]*(?: [A-Za-z0-9._+=-]+)*"
EXPERIMENT = Grammar(
    "experiment",
    rf"{WORDS}(?:/{WORDS})*",
    "letters, digits, . _ + = - and single spaces, with / between parts",
    "/",
)
# MLflow allows no slash in the names of models.
MODEL = Grammar(
    "model",
    r"[A-Za-z0-9][A-Za-z0-9_+=-]*(?:[. ][A-Za-z0-9][A-Za-z0-9_+=-]*)*",
    "letters, digits, _ + = - and, each between two of them, single dots and spaces",
    ".",
)


def check(name: object, grammar: Grammar) -> str:
    """Return a name of this kind. Raises Refusal for anything else."""
    is_bounded = isinstance(name, str) and len(name) <= LONGEST
    if not is_bounded or not re.fullmatch(grammar.pattern, str(name)):
        raise Refusal(
            Reason.INVALID,
            f"{ascii(name)[:100]} is no name: a name of a {grammar.kind} is {grammar.text}",
        )
    return str(name)


def team_of(name: str, grammar: Grammar) -> str:
    """Return the team whose prefix a name has, or ""."""
    team, has_team, _ = name.partition(grammar.separator)
    return team if has_team else ""


def check_owned(name: object, grammar: Grammar, teams: Collection[str] | None) -> None:
    """Check that an account may have an experiment or a model of this name.

    Args:
        name: Name in a request.
        grammar: Kind of the name.
        teams: Those of the account, None for an administrator.

    Raises:
        Refusal: The name is none, or not of the account's teams.
    """
    text = check(name, grammar)
    if teams is None:
        return
    if not teams:
        raise Refusal(
            Reason.DENIED,
            f"an account without a team makes no {grammar.kind}; "
            "ask an administrator to add it to one",
        )
    if team_of(text, grammar) not in teams:
        right = sorted(teams)[0] + grammar.separator + text.rpartition(grammar.separator)[2]
        raise Refusal(
            Reason.DENIED,
            f"{grammar.kind} {text} "
            f"is not of your team ({', '.join(sorted(teams))})"
            f"; call it {right}",
        )
