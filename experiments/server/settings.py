"""Settings of the commands that administer a server."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.config.settings import setting


@dataclass(frozen=True)
class Admin:
    """Action on the accounts of a shared server."""

    action: str = setting(
        "list",
        "what is done",
        choices=(
            "list",
            "add_team",
            "remove_team",
            "add_user",
            "remove_user",
            "new_password",
            "join",
            "leave",
            "grant",
        ),
        group="action",
    )
    team: str = setting("", "name of the team", group="action")
    user: str = setting("", "name of the user", group="action")
    experiment: str = setting("", "grant: the experiment, by name", group="action")
    permission: str = setting(
        "EDIT", "grant: the permission", choices=("READ", "EDIT", "MANAGE"), group="action"
    )
    output: str = setting(
        ".evenhand/accounts",
        "folder for the files with names and passwords of new users",
        path=True,
        group="output",
    )
