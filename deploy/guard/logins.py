"""Names and passwords: checked one at a time off the event loop, and slower for those who guess.

A log-in that was right is renewed while it is used, without hashing. So the limits below meet those
who use a wrong password, or come from an address that the name has not logged in from.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable

import anyio
from cachetools import TTLCache

from deploy.guard import inside
from deploy.guard.addresses import network
from deploy.guard.history import LoginHistory
from deploy.guard.inside import Account
from deploy.guard.refusal import Refusal

# Wrong passwords that cost nothing: of one name from one address, from one address, of one name from anywhere.
FREE_OF_NAME_AND_ADDRESS, FREE_OF_ADDRESS, FREE_OF_NAME = 5, 20, 100
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, FORGOTTEN_SECONDS = 1.0, 60.0, 900.0
REMEMBERED = 10_000
WAITING, WAITING_OF_ADDRESS = 32, 8
LONGEST_WORD = 250


class Backoff:
    """How long one must wait after so many failures: twice as long after each. What is not used for a while is forgotten."""

    def __init__(self, free: int, clock: Callable[[], float]) -> None:
        self._free = free
        self._clock = clock
        self._failures: TTLCache[Hashable, tuple[int, float]]
        self._failures = TTLCache(REMEMBERED, FORGOTTEN_SECONDS, clock)

    def wait_seconds(self, key: Hashable) -> float:
        """Seconds until the next try, 0 if it may be made now."""
        return max(0.0, self._failures.get(key, (0, 0.0))[1] - self._clock())

    def failed(self, key: Hashable) -> None:
        count = self._failures.get(key, (0, 0.0))[0] + 1
        over = count - self._free
        wait = (
            min(FIRST_WAIT_SECONDS * 2.0 ** min(over, 30), LONGEST_WAIT_SECONDS)
            if over >= 0
            else 0.0
        )
        self._failures[key] = (count, self._clock() + wait)

    def taken_back(self, key: Hashable) -> None:
        count = self._failures.get(key, (0, 0.0))[0] - 1
        if count > 0:
            self._failures[key] = (count, 0.0)
        else:
            self._failures.pop(key, None)


class Logins:
    """Checks accounts for one worker's requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._of_name_and_address = Backoff(FREE_OF_NAME_AND_ADDRESS, clock)
        self._of_address = Backoff(FREE_OF_ADDRESS, clock)
        self._of_name = Backoff(FREE_OF_NAME, clock)
        self._history = LoginHistory()
        # Strangers wait for each other, and not those who have logged in from their address.
        self._hashing = {is_familiar: anyio.CapacityLimiter(1) for is_familiar in (False, True)}
        self._renewing = anyio.CapacityLimiter(1)
        self._asked: dict[tuple[str, str], asyncio.Task[Account | None]] = {}
        self._waiting: Counter[str] = Counter()

    async def account(self, header: str, address: str) -> Account:
        """Whose name and password a request brings. Raises Refusal: 401, 429 for those who guess, 503 where too many do."""
        user, password = _words(header)
        client = network(address)
        is_familiar = self._history.has(user, client)
        is_pressed = bool(self._asked) or self._wait_seconds(user, client, is_familiar) > 0
        if not is_familiar and (is_pressed or not self._history.is_read):
            await self._history.refresh()
            is_familiar = self._history.has(user, client)
        wait = self._wait_seconds(user, client, is_familiar)
        account = None
        if is_familiar or not wait:
            account = await self._remembered(user, password)
        if account is None and wait:
            raise Refusal(429, f"too many wrong passwords; try again in {wait:.0f} s", wait)
        if account is None:
            account = await self._verify(user, password, client, is_familiar)
        if account is None:
            raise Refusal(
                401,
                "name or password is wrong; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
            )
        await self._history.add(user, client)
        return account

    def _backoffs(
        self,
        user: str,
        client: str,
        is_familiar: bool,
    ) -> list[tuple[Backoff, Hashable]]:
        """Return the limits of a try: others' guesses do not count where the name has logged in."""
        own: tuple[Backoff, Hashable] = (self._of_name_and_address, (user, client))
        return [own] if is_familiar else [own, (self._of_address, client), (self._of_name, user)]

    def _wait_seconds(self, user: str, client: str, is_familiar: bool) -> float:
        backoffs = self._backoffs(user, client, is_familiar)
        return max(backoff.wait_seconds(key) for backoff, key in backoffs)

    async def _remembered(self, user: str, password: str) -> Account | None:
        """Return the account of a log-in that was right before and still is, without hashing."""
        if found := inside.known(user, password):
            return found
        if inside.is_remembered(user, password):
            run = anyio.to_thread.run_sync
            return await run(inside.renewed, user, password, limiter=self._renewing)
        if asked := self._asked.get((user, password)):  # one hashing for all that ask the same
            return await asyncio.shield(asked)
        return None

    async def _verify(
        self,
        user: str,
        password: str,
        client: str,
        is_familiar: bool,
    ) -> Account | None:
        """Counted as wrong until it is known to be right: those who try many at once are counted too."""
        is_full = len(self._asked) >= WAITING and not is_familiar
        if is_full or self._waiting[client] >= WAITING_OF_ADDRESS:
            raise Refusal(503, "too many log-ins at once; try again in a few seconds", 5)
        keys = self._backoffs(user, client, is_familiar)
        for backoff, key in keys:
            backoff.failed(key)
        limiter = self._hashing[is_familiar]
        hashing = anyio.to_thread.run_sync(inside.verified, user, password, limiter=limiter)
        asked = asyncio.ensure_future(hashing)
        self._asked[user, password] = asked
        self._waiting[client] += 1

        def done(task: asyncio.Task[Account | None]) -> None:
            del self._asked[user, password]
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]
            if (
                task.cancelled() or task.exception() or task.result()
            ):  # nobody said that it is wrong
                for backoff, key in keys:
                    backoff.taken_back(key)

        asked.add_done_callback(done)
        return await asyncio.shield(asked)


def _words(header: str) -> tuple[str, str]:
    """Name and password of a Basic header. Raises Refusal."""
    scheme, _, coded = header.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError
        user, found, password = (
            base64.b64decode(coded.strip(), validate=True).decode().partition(":")
        )
    except (ValueError, binascii.Error):  # a wrong encoding is a ValueError too
        raise Refusal(
            401, "no name and password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        ) from None
    if not (
        found
        and user
        and password
        and f"{user}{password}".isprintable()
        and len(user) <= LONGEST_WORD
    ):
        raise Refusal(
            401, "no name and password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    return user, password


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """The only value of a header, empty if it is not there. Raises Refusal for one that comes twice."""
    found = [text for key, text in headers if key.lower() == name]
    if len(found) > 1:
        raise Refusal(400, f"header {name.decode()} comes twice")
    return found[0].decode("latin-1") if found else ""
