"""Everything that can break, broken at random while campaigns run, and mended again."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.conftest import Server
from tests.faults.proxy import Proxy
from tests.faults.writers import Writer
from tests.tracking.postgres import Postgres

# How often each is killed with SIGKILL, and how often something else goes wrong beside a kill.
KILLS = {"child": 0.4, "parent": 0.3, "server": 0.1, "server's worker": 0.1, "database": 0.1}
BESIDE = {"connections cut": 0.15, "answer lost": 0.3, "disk full": 0.05}
ANSWERS = (
    "runs/create",
    "runs/log-batch",
    "runs/update",
    "logged-models",
    "runs/log-inputs",
    "artifacts/",
    "experiments/",
)
PAUSE_SECONDS = 2.5
AWAY_SECONDS = 4.0


class Storm:
    """`rage` breaks things until so many processes were killed; at its end everything that was broken is mended."""

    def __init__(
        self,
        seed: int,
        writers: Sequence[Writer],
        server: Server,
        database: Postgres,
        proxy: Proxy,
        disk: Path,
    ) -> None:
        self.broken: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._writers, self._server, self._database, self._proxy, self._disk = (
            writers,
            server,
            database,
            proxy,
            disk,
        )
        self._repairs: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    @property
    def kills(self) -> int:
        return sum(self.broken[kind] for kind in KILLS)

    def rage(self, kills: int, tell: Callable[[], None]) -> None:
        """Raises what a repair raised. tell is called after every kill."""
        while self.kills < kills:
            time.sleep(self._rng.expovariate(1 / PAUSE_SECONDS))
            kind = self._rng.choices(list(KILLS), list(KILLS.values()))[0]
            if self._kill(kind):
                self.broken[kind] += 1
                tell()
            for trouble, share in BESIDE.items():
                if self._rng.random() < share and self._trouble(trouble):
                    self.broken[trouble] += 1
            if self._failed:
                raise self._failed[0]
        for repair in self._repairs:
            repair.join()
        self._proxy.lose_answer("^$")
        self.broken["answer lost"] = self._proxy.lost

    def _kill(self, kind: str) -> bool:
        """Whether there was one to be killed."""
        if kind in ("child", "parent"):
            found = [one for writer in self._writers if (one := getattr(writer, kind)())]
            return bool(found) and _kill(self._rng.choice(found))
        if self._mending:
            return False
        if kind == "server's worker":
            return _kill(self._rng.choice(self._server.workers()))
        broken = self._server if kind == "server" else self._database
        broken.kill()
        self._later(broken.start)
        return True

    def _trouble(self, kind: str) -> bool:
        if kind == "connections cut":
            return self._proxy.cut() > 0
        if kind == "answer lost":
            self._proxy.lose_answer(rf"^P[A-Z]+ /api/2.0/mlflow[a-z-]*/{self._rng.choice(ANSWERS)}")
            return False  # the proxy counts when it happens
        ballast = self._disk / "ballast"
        if ballast.exists():
            return False
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65_536))
        self._later(ballast.unlink)
        return True

    @property
    def _mending(self) -> bool:
        return any(repair.is_alive() for repair in self._repairs)

    def _later(self, mend: Callable[[], None]) -> None:
        away = self._rng.uniform(0, AWAY_SECONDS)

        def repair() -> None:
            time.sleep(away)
            try:
                mend()
            except BaseException as error:
                self._failed.append(error)

        self._repairs.append(threading.Thread(target=repair, daemon=True))
        self._repairs[-1].start()


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
