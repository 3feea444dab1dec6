"""Turns: so many searches of one account at a time, in all of the server's workers together."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from deploy.guard.refusal import Refusal

# The file that the workers share: a byte is locked for each turn. A worker that dies gives it back.
FILE = "EVENHAND_TURNS"
AT_ONCE, MAX_WAITING = 2, 32
WAIT_SECONDS, POLL_SECONDS, AGAIN_SECONDS = 30.0, 0.05, 5.0


class Turns:
    """Turns of the accounts, as one worker takes them."""

    def __init__(self, path: str = "") -> None:
        self._file = os.open(path, os.O_RDWR) if path else os.memfd_create("turns")
        self._taken: set[int] = set()
        self._waiting: Counter[int] = Counter()

    @classmethod
    def of_server(cls) -> Turns:
        """Return the turns that this worker shares with the others of its server."""
        return cls(os.environ.get(FILE, ""))

    @asynccontextmanager
    async def turn(self, account: int) -> AsyncIterator[None]:
        """Wait for a turn of an account, and give it back after the block.

        Raises:
            Refusal: 429 where too many wait, or none becomes free in time.
        """
        place = await self._wait(account)
        try:
            yield
        finally:
            self._taken.remove(place)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    async def _wait(self, account: int) -> int:
        if self._waiting[account] >= MAX_WAITING:
            raise _too_many()
        self._waiting[account] += 1
        until = time.monotonic() + WAIT_SECONDS
        try:
            while (place := self._take(account)) is None:
                if time.monotonic() > until:
                    raise _too_many()
                await anyio.sleep(POLL_SECONDS)
            return place
        finally:
            self._waiting[account] -= 1
            if not self._waiting[account]:
                del self._waiting[account]

    def _take(self, account: int) -> int | None:
        """Lock a byte of the account's. The system refuses other processes, `_taken` this one."""
        for place in range(account * AT_ONCE, (account + 1) * AT_ONCE):
            if place in self._taken:
                continue
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError:
                continue
            self._taken.add(place)
            return place
        return None


def _too_many() -> Refusal:
    message = f"an account searches {AT_ONCE} times at once, and others wait; try again later"
    return Refusal(429, message, AGAIN_SECONDS)
