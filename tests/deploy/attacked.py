"""Ten minutes of guesses against the log-ins of one worker, on a clock of their own.

Run by test_login.py with a database of MLflow's accounts; prints what users and guesses met.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from base64 import b64encode
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path

from cachetools import TTLCache
from werkzeug import security

folder = Path(sys.argv[1])
(folder / "auth.ini").write_text(
    f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder}/store.db\n"
    "admin_username = admin\nadmin_password = right-password-of-admin\n"
)
os.environ["MLFLOW_BACKEND_STORE_URI"] = f"sqlite:///{folder}/store.db"
os.environ["MLFLOW_AUTH_CONFIG_PATH"] = str(folder / "auth.ini")
os.environ["MLFLOW_FLASK_SERVER_SECRET_KEY"] = "a key of this test"

# Hundreds of passwords are checked, and none is to be kept safe.
security.DEFAULT_PBKDF2_ITERATIONS = 1
security.generate_password_hash.__defaults__ = ("pbkdf2", 16)

from deploy.guard import backend  # noqa: E402
from deploy.guard.logins import Logins  # noqa: E402
from deploy.guard.refusal import Refusal  # noqa: E402

HOME, STEP, GUESSES = "192.0.2.1", 20, 12
now = 0.0


def clock() -> float:
    return now


async def status(logins: Logins, user: str, password: str, address: str) -> int:
    words = b64encode(f"{user}:{password}".encode()).decode()
    try:
        await logins.account(f"Basic {words}", address)
    except Refusal as refusal:
        return refusal.status
    return 200


async def attack(
    logins: Logins, users: tuple[str, ...], seconds: float
) -> dict[str, dict[int, int]]:
    """Let each user ask every 20 s among guesses, each of which comes from another address."""
    global now
    results = defaultdict[str, Counter[int]](Counter)
    addresses = (f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in count())
    end = now + seconds
    while now < end:
        now += STEP
        for user in users:
            guesses = [status(logins, user, f"guess {n}", next(addresses)) for n in range(GUESSES)]
            results[f"guesses for {user}"].update(await asyncio.gather(*guesses))
            results[user][await status(logins, user, f"right-password-of-{user}", HOME)] += 1
    return results


async def main() -> dict[str, object]:
    global now
    logins = Logins("", clock)
    for user in ("alice", "admin"):
        assert await status(logins, user, f"right-password-of-{user}", HOME) == 200
    first = await attack(logins, ("alice", "admin"), 600)
    elsewhere = await status(logins, "alice", "right-password-of-alice", "198.51.100.7")

    # As after a restart, and as in another worker: nothing is remembered but the history.
    backend._remembered.clear()
    backend.auth._USER_AUTH_CACHE.clear()
    second = await attack(Logins("", clock), ("alice",), 200)

    # What is withdrawn is noticed within a minute, though it is in use.
    assert await status(logins, "alice", "right-password-of-alice", HOME) == 200
    backend.auth.store.update_user("alice", password="another-password-of-alice")
    before = await status(logins, "alice", "right-password-of-alice", HOME)
    now += 61
    after = await status(logins, "alice", "right-password-of-alice", HOME)
    changed = await status(logins, "alice", "another-password-of-alice", HOME)
    backend.auth.store.delete_user("alice")
    now += 61
    removed = await status(logins, "alice", "another-password-of-alice", HOME)

    # A network of IPv6 is one address, and another network is another.
    now += 10_000
    addresses = [*(f"2001:db8::{number:x}" for number in range(1, 25)), "2001:db8:0:1::1"]
    network = [await status(logins, f"n{n}", "guess", item) for n, item in enumerate(addresses)]
    results = {"first": first, "second": second, "elsewhere": elsewhere}
    return {**results, "withdrawn": [before, after, changed, removed], "network": network}


backend.prepare(str(folder))
backend.auth.store.create_user("alice", "right-password-of-alice")
backend.auth._USER_AUTH_CACHE = TTLCache(10_000, 60, clock)
backend._remembered = TTLCache(10_000, 86_400, clock)
print("answers " + json.dumps(asyncio.run(main())))
