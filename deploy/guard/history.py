"""Successful log-ins: which name from which address, for all workers and after a restart."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time

import anyio
from sqlalchemy.exc import SQLAlchemyError

from deploy.guard import inside

LOGGER = logging.getLogger("uvicorn.evenhand")
DAYS, DAY_SECONDS = 30, 86_400
# Between two readings of what the other workers have added.
READ_SECONDS = 0.1


class LoginHistory:
    """Pairs of name and address that logged in within 30 days, as keyed hashes in the database."""

    def __init__(self) -> None:
        self._key = os.environ["MLFLOW_FLASK_SERVER_SECRET_KEY"].encode()
        self._days: dict[str, int] = {}
        self._lock = anyio.Lock()
        self._read_at = float("-inf")

    def has(self, user: str, client: str) -> bool:
        """Return whether the name logged in from the address, as far as this worker has read."""
        return self._days.get(self._pair(user, client), 0) > _today() - DAYS

    @property
    def is_read(self) -> bool:
        """Return whether this worker has read the history at least once."""
        return self._read_at > float("-inf")

    async def refresh(self) -> None:
        """Read what other workers added. Who comes during a reading waits for the next one."""
        arrived = time.monotonic()
        async with self._lock:
            if self._read_at > arrived:
                return
            await anyio.sleep(max(0.0, self._read_at + READ_SECONDS - arrived))
            self._read_at = time.monotonic()
            try:
                self._days |= await anyio.to_thread.run_sync(inside.logins_after, _today() - DAYS)
            except SQLAlchemyError:  # what this worker has read before still holds
                LOGGER.warning("the history of log-ins cannot be read")

    async def add(self, user: str, client: str) -> None:
        """Record a log-in, once a day."""
        pair, today = self._pair(user, client), _today()
        if self._days.get(pair) == today:
            return
        self._days[pair] = today
        try:
            await anyio.to_thread.run_sync(inside.add_login, pair, today, today - DAYS)
        except SQLAlchemyError:  # the log-in was right all the same
            LOGGER.warning("the history of log-ins cannot be written")

    def _pair(self, user: str, client: str) -> str:
        return hmac.new(self._key, f"{user}\0{client}".encode(), hashlib.sha256).hexdigest()


def _today() -> int:
    return int(time.time() // DAY_SECONDS)
