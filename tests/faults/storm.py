"""Random faults while campaigns run, and their repair."""

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

# Shares of the kills with SIGKILL, and of other faults for each kill.
KILLS = {"child": 0.4, "parent": 0.3, "server": 0.1, "server's worker": 0.1, "database": 0.1}
OTHERS = {"connections cut": 0.15, "answer lost": 0.3, "disk full": 0.05}
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
    """Faults until so many processes were killed; at its end everything is repaired."""

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
        self._rng, self._writers, self._disk = random.Random(seed), writers, disk
        self._server, self._database, self._proxy = server, database, proxy
        self._repairs: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def rage(self, kills: int) -> None:
        """Break things. Raises the error of a repair."""
        while sum(self.broken[kind] for kind in KILLS) < kills:
            time.sleep(self._rng.expovariate(1 / PAUSE_SECONDS))
            (kind,) = self._rng.choices(list(KILLS), list(KILLS.values()))
            self.broken[kind] += self._kill(kind)
            for fault, share in OTHERS.items():
                if self._rng.random() < share:
                    self.broken[fault] += self._disturb(fault)
            if self._errors:
                raise self._errors[0]
        for repair in self._repairs:
            repair.join()
        self._proxy.lose_answer("^$")
        self.broken["answer lost"] = self._proxy.lost

    def _kill(self, kind: str) -> bool:
        """Return True if there was a process to be killed."""
        if kind in ("child", "parent"):
            processes = [getattr(writer, kind)() for writer in self._writers]
            return self._kill_any([process for process in processes if process])
        if any(repair.is_alive() for repair in self._repairs):
            return False
        if kind == "server's worker":
            return self._kill_any(self._server.workers())
        broken = self._server if kind == "server" else self._database
        broken.kill()
        self._repair_later(broken.start)
        return True

    def _kill_any(self, processes: Sequence[psutil.Process]) -> bool:
        try:
            self._rng.choice(processes).kill()
        except (IndexError, psutil.NoSuchProcess):
            return False
        return True

    def _disturb(self, fault: str) -> bool:
        if fault == "connections cut":
            return self._proxy.cut() > 0
        if fault == "answer lost":
            self._proxy.lose_answer(rf"^P[A-Z]+ /api/2.0/mlflow[a-z-]*/{self._rng.choice(ANSWERS)}")
            return False  # the proxy counts when it happens
        ballast = self._disk / "ballast"
        if ballast.exists():
            return False
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65_536))
        self._repair_later(ballast.unlink)
        return True

    def _repair_later(self, repair: Callable[[], None]) -> None:
        seconds = self._rng.uniform(0, AWAY_SECONDS)

        def run() -> None:
            time.sleep(seconds)
            try:
                repair()
            except BaseException as error:
                self._errors.append(error)

        self._repairs.append(threading.Thread(target=run, daemon=True))
        self._repairs[-1].start()
