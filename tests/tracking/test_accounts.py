"""Teams of a server with accounts."""

from __future__ import annotations

from typing import Any, cast

from tracking import accounts
from tracking.accounts import Team
from tracking.store import Store


class Answers:
    """Store of one team, which a user joins after the users were listed."""

    uri = "http://server"

    def call(self, method: str, endpoint: str, **_: Any) -> dict[str, Any]:
        permission = {"resource_type": "experiment", "resource_pattern": "5"}
        role = {"id": 7, "name": "vision", "permissions": [permission]}
        return {
            "users": [{"id": 2, "username": "bob"}, {"id": 1, "username": "alice"}],
            "assignments": [{"user_id": number} for number in (2, 3, 1)],
            "roles": [role, {"id": 8, "name": "__user_1__", "permissions": []}],
        }


def test_teams_leave_out_a_member_that_is_newer_than_the_list_of_users() -> None:
    (team,) = accounts.teams(cast(Store, Answers()))
    assert team == Team("vision", 7, team.experiments, ("alice", "bob"))
    assert set(team.experiments) == {"5"}
