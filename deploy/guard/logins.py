"""Names and passwords: checked one at a time off the event loop, and slower after guesses.

A log-in that was right is renewed while it is used, without hashing. So the limits below apply
to wrong passwords, and to addresses that the name has not logged in from.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

from anyio import CapacityLimiter, to_thread
from cachetools import TTLCache
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.datastructures import Authorization

from deploy.guard import backend
from deploy.guard.backend import Account
from deploy.guard.connections import network
from deploy.guard.refusal import Reason, Refusal

LOGGER = logging.getLogger("uvicorn.evenhand")  # uvicorn's own writes into the server's log
# Wrong passwords that are free: of a name from an address, from an address, of a name anywhere.
FREE_OF_NAME_AND_ADDRESS, FREE_OF_ADDRESS, FREE_OF_NAME = 5, 20, 100
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, FORGOTTEN_SECONDS = 1.0, 60.0, 900.0
REMEMBERED = 10_000
MAX_WAITING, MAX_WAITING_OF_ADDRESS = 32, 8
LONGEST_NAME = 250
HISTORY_DAYS, DAY_SECONDS = 30, 86_400
# oauth2-proxy names the user in the first one, and the proxy proves by the second who it is.
PROXY_USER_HEADER, PROXY_SECRET_HEADER = b"x-auth-request-email", b"x-evenhand-proxy-secret"
SET_VARIABLES = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


class LoginHistory:
    """Pairs of name and address that logged in within 30 days, as keyed hashes in the database."""

    def __init__(self) -> None:
        self._key = os.environ["MLFLOW_FLASK_SERVER_SECRET_KEY"].encode()
        self._days: TTLCache[str, int] = TTLCache(REMEMBERED, DAY_SECONDS)
        self._limiter = CapacityLimiter(1)

    async def has(self, user: str, client: str) -> bool:
        """Return whether the name logged in from the address, in any worker."""
        pair = self._pair(user, client)
        if pair not in self._days:
            try:
                day = await to_thread.run_sync(backend.last_login, pair, limiter=self._limiter)
            except SQLAlchemyError:
                LOGGER.warning("the history of log-ins cannot be read")
                return False
            if day <= _today() - HISTORY_DAYS:
                return False
            self._days[pair] = day
        return True

    async def add(self, user: str, client: str) -> None:
        """Record a log-in, once a day."""
        pair, today = self._pair(user, client), _today()
        if self._days.get(pair) == today:
            return
        self._days[pair] = today
        try:
            oldest = today - HISTORY_DAYS
            await to_thread.run_sync(backend.add_login, pair, today, oldest)
        except SQLAlchemyError:  # the log-in was right all the same
            LOGGER.warning("the history of log-ins cannot be written")

    def _pair(self, user: str, client: str) -> str:
        return hmac.new(self._key, f"{user}\0{client}".encode(), hashlib.sha256).hexdigest()


def _today() -> int:
    return int(time.time() // DAY_SECONDS)


class Backoff:
    """Waiting times after failures: twice as long after each, forgotten after a while."""

    def __init__(self, free: int, clock: Callable[[], float]) -> None:
        self._free = free
        self._clock = clock
        self._failures: TTLCache[Hashable, tuple[int, float]]
        self._failures = TTLCache(REMEMBERED, FORGOTTEN_SECONDS, clock)

    def wait_seconds(self, key: Hashable) -> float:
        """Return the time until the next try, 0 if it may be made now."""
        return max(0.0, self._failures.get(key, (0, 0.0))[1] - self._clock())

    def add_failure(self, key: Hashable) -> None:
        count, wait = self._failures.get(key, (0, 0.0))[0] + 1, 0.0
        if count >= self._free:
            wait = FIRST_WAIT_SECONDS * 2.0 ** min(count - self._free, 30)
        self._failures[key] = (count, self._clock() + min(wait, LONGEST_WAIT_SECONDS))

    def remove_failure(self, key: Hashable) -> None:
        count = self._failures.get(key, (0, 0.0))[0] - 1
        if count > 0:
            self._failures[key] = (count, 0.0)
        else:
            self._failures.pop(key, None)


class Logins:
    """Check of the accounts of one worker's requests.

    Args:
        proxy_secret: Proves that a proxy has sent a user's name. Its address would not: the
            client's may stand in its place, and other containers share a network. With "" no
            name in a header is believed.
        clock: Source of seconds.
    """

    def __init__(self, proxy_secret: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._proxy_secret = proxy_secret.encode()
        self._of_name_and_address = Backoff(FREE_OF_NAME_AND_ADDRESS, clock)
        self._of_address = Backoff(FREE_OF_ADDRESS, clock)
        self._of_name = Backoff(FREE_OF_NAME, clock)
        self._history = LoginHistory()
        # Strangers wait for each other, and not those who have logged in from their address.
        self._hashing = {is_familiar: CapacityLimiter(1) for is_familiar in (False, True)}
        self._renewing = CapacityLimiter(1)
        self._checks: dict[tuple[str, str], asyncio.Task[Account | None]] = {}
        self._waiting: Counter[str] = Counter()

    def user_of_proxy(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return the user whom the proxy has authenticated and names in a header, or "".

        Raises:
            Refusal: The proxy's header comes twice, or together with a password.
        """
        if not self._proxy_secret:
            return ""
        secret = header(headers, PROXY_SECRET_HEADER).encode("latin-1")
        if not hmac.compare_digest(secret, self._proxy_secret):
            return ""
        user = header(headers, PROXY_USER_HEADER)
        if user and header(headers, b"authorization"):
            raise Refusal(Reason.AMBIGUOUS, "a request has a password or the proxy's log-in")
        return user

    async def account(self, authorization: str, address: str) -> Account:
        """Return the account of a request.

        Raises:
            Refusal: 401 for a wrong password, 429 after many of them, 503 if too many wait.
        """
        user, password = _credentials(authorization)
        client = network(address)
        is_familiar = await self._history.has(user, client)
        limits = self._limits(user, client, is_familiar)
        wait = max(backoff.wait_seconds(key) for backoff, key in limits)
        account = None
        if is_familiar or not wait:
            account = await self._recall(user, password)
        if account is None and wait:
            raise Refusal(Reason.WAIT, f"too many wrong passwords; try again in {wait:.0f} s", wait)
        if account is None:
            account = await self._verify(user, password, client, is_familiar)
        if account is None:
            raise Refusal(Reason.NO_LOGIN, f"name or password is wrong; {SET_VARIABLES}")
        await self._history.add(user, client)
        return account

    def _limits(self, user: str, client: str, is_familiar: bool) -> list[tuple[Backoff, Hashable]]:
        """Return the limits of a try: others' guesses do not count where the name logged in."""
        pair: tuple[Backoff, Hashable] = (self._of_name_and_address, (user, client))
        return [pair] if is_familiar else [pair, (self._of_address, client), (self._of_name, user)]

    async def _recall(self, user: str, password: str) -> Account | None:
        """Return the account of a log-in that was right before and still is, without hashing."""
        if account := backend.cached_account(user, password):
            return account
        if backend.is_remembered(user, password):
            return await to_thread.run_sync(backend.renew, user, password, limiter=self._renewing)
        if check := self._checks.get((user, password)):  # one hashing for equal requests
            return await asyncio.shield(check)
        return None

    async def _verify(
        self, user: str, password: str, client: str, is_familiar: bool
    ) -> Account | None:
        """Check a password. It counts as wrong until it is right: many at once count too."""
        is_full = len(self._checks) >= MAX_WAITING and not is_familiar
        if is_full or self._waiting[client] >= MAX_WAITING_OF_ADDRESS:
            raise Refusal(Reason.BUSY, "too many log-ins at once; try again in a few seconds", 5)
        limits = self._limits(user, client, is_familiar)
        for backoff, key in limits:
            backoff.add_failure(key)
        limiter = self._hashing[is_familiar]
        check = asyncio.ensure_future(
            to_thread.run_sync(backend.verify_password, user, password, limiter=limiter)
        )
        self._checks[user, password] = check
        self._waiting[client] += 1

        def finish(task: asyncio.Task[Account | None]) -> None:
            del self._checks[user, password]
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]
            if task.cancelled() or task.exception() or task.result():  # it was not wrong
                for backoff, key in limits:
                    backoff.remove_failure(key)

        check.add_done_callback(finish)
        return await asyncio.shield(check)


async def proxy_account(user: str) -> tuple[Account, bytes]:
    """Return the account of a user of the proxy, and the header by which MLflow accepts it.

    Raises:
        Refusal: There is no account of this name.
    """
    entry = None
    if user.isprintable() and len(user) <= LONGEST_NAME:
        entry = await to_thread.run_sync(backend.proxy_account, user)
    if entry:
        return entry
    shown = ascii(user)[1:-1][:LONGEST_NAME]
    text = (
        f"{shown} has no account on this server; an administrator adds it: "
        f"evenhand admin --action=add_user --user={shown} --team=TEAM"
    )
    raise Refusal(Reason.UNKNOWN_USER, text)


def _credentials(authorization: str) -> tuple[str, str]:
    """Return name and password of a Basic header, as MLflow reads it.

    Raises:
        Refusal: It has none.
    """
    words = Authorization.from_header(authorization) if authorization.isascii() else None
    user, password = (words.username, words.password) if words else (None, None)
    if not (user and password and f"{user}{password}".isprintable() and len(user) <= LONGEST_NAME):
        raise Refusal(Reason.NO_LOGIN, f"no name and password; {SET_VARIABLES}")
    return user, password


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Return the value of a header, or "". Raises Refusal for one that comes twice."""
    values = [text for key, text in headers if key.lower() == name]
    if len(values) > 1:
        raise Refusal(Reason.INVALID, f"header {name.decode()} comes twice")
    return values[0].decode("latin-1") if values else ""
