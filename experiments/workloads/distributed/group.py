"""The other workers of a cell: processes that its own starts, here or on other nodes, whose end or silence it can tell."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from experiments.cell.contract import CellSpec

LOOK_SECONDS = 0.1
END_SECONDS = 5.0
BY_SLURM = ("srun: ", "slurmstepd: ")
SIGNALLED = 128  # and the signal's number: what srun ends with for a task that was killed


def node_of(rank: int, workers: int, nodes: int) -> int:
    """Which node a worker runs on: neighbours by rank share one, and all nodes have as many, or one less."""
    return rank * nodes // workers


def processes(settings: Mapping[str, Any], workers: int) -> tuple[int, int]:
    """Of so many workers: processes, and workers in each. One a process, or all in one."""
    return (1, workers) if settings["strategy"] == "one_process" else (workers, 1)


class Worker:
    """A process of several that train together, in the process group of its parent. meeting: see `Meeting.told`.

    It is told a line of JSON on its standard input, which stays open as long as it is to live.
    """

    def __init__(self, spec: CellSpec, rank: int, workers: int, meeting: Mapping[str, Any], **told: Any) -> None:
        by = spec.nodes[node_of(rank, workers, len(spec.nodes))] if spec.nodes else ()
        self.rank, self.name, self._elsewhere = rank, f"worker {rank}", bool(by)
        self._log = spec.path / f"worker_{rank}_of_{workers}.log"
        with self._log.open("w") as file:
            self._process = subprocess.Popen(
                [*by, sys.executable, "-P", "-m", "experiments.workloads.distributed.rank"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                text=True,
            )
        asked = {"spec": dataclasses.asdict(spec), "rank": rank, "meeting": meeting, "elsewhere": bool(by), **told}
        with suppress(BrokenPipeError):  # one that has died at once is told by its exit
            self._input.write(json.dumps(asked) + "\n")
            self._input.flush()

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def trouble(self) -> str:
        """Why it does not work any more, in words; empty while it does, and after it ended well."""
        code = self._process.poll()
        if code is None:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return f"{self.name} is stopped" if stat in "Tt" else ""
        if self._elsewhere and code > SIGNALLED:
            code = SIGNALLED - code
        if code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if not line.startswith(BY_SLURM)]
        said = "\n".join(lines).split("\n\n")[-1].strip().splitlines() or ["nothing"]
        return f"{self.name} ended with code {code}: {said[-1][:300]}" if code else ""

    def wait(self, seconds: float) -> bool:
        """Whether it has ended well within so many seconds."""
        try:
            return self._process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        """Ends it for certain. srun, asked to end, kills what it runs; were it killed, that would see its input end at least."""
        with suppress(BrokenPipeError):
            self._input.close()
        if self._elsewhere:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        self._process.kill()
        self._process.wait()


def trouble(workers: Sequence[Worker], seconds: float) -> str:
    """What has happened to the others, once any of it can be seen; empty where nothing can within so many seconds."""
    until = time.monotonic() + seconds
    while True:
        found = [text for one in workers if (text := one.trouble())]
        if found or time.monotonic() > until:
            return "; ".join(found)
        time.sleep(LOOK_SECONDS)
