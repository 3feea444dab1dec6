"""The other workers of a cell: processes that its own starts, whose end or silence it can tell."""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from experiments.cell.contract import CellSpec
from experiments.workloads.distributed.training import Place

LOOK_SECONDS = 0.1


def addresses(workers: int) -> list[str]:
    """As many free ports of this machine, each of them another."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(workers)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def places(settings: Mapping[str, Any], workers: int) -> list[Place]:
    """Of so many workers: one a process, or all in one."""
    if settings["strategy"] == "one_process":
        return [Place(0, addresses(1), workers)]
    found = addresses(workers)
    return [Place(rank, found) for rank in range(workers)]


class Worker:
    """`python -m experiments.workloads.distributed.rank` as a child, in the process group of its parent, and dying with it."""

    def __init__(self, spec: CellSpec, place: Place, **told: Any) -> None:
        self.rank = place.rank
        self._log = spec.path / f"worker_{place.rank}_of_{place.workers}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "experiments.workloads.distributed.rank"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.write(json.dumps({"spec": dataclasses.asdict(spec), "place": dataclasses.asdict(place), **told}))

    def trouble(self) -> str:
        """Why it does not work any more, in words; empty while it does, and after it ended well."""
        code = self._process.poll()
        if code is None:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return f"worker {self.rank} is stopped" if stat in "Tt" else ""
        if code < 0:
            return f"worker {self.rank} was killed by {signal.Signals(-code).name}"
        said = self._log.read_text(errors="replace").split("\n\n")[-1].strip().splitlines() or ["nothing"]
        return f"worker {self.rank} ended with code {code}: {said[-1][:300]}" if code else ""

    def wait(self, seconds: float) -> bool:
        """Whether it has ended well within so many seconds."""
        try:
            return self._process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def trouble(workers: list[Worker], seconds: float) -> str:
    """What has happened to the others, once any of it can be seen; empty where nothing can within so many seconds."""
    until = time.monotonic() + seconds
    while True:
        found = [text for one in workers if (text := one.trouble())]
        if found or time.monotonic() > until:
            return "; ".join(found)
        time.sleep(LOOK_SECONDS)
