"""Processes that train together, here or on other nodes: their addresses, start, trouble and end.

They meet in what their framework brings: PyTorch's TCPStore, TensorFlow's TF_CONFIG. Here is what
those lack: free ports, equal versions, and an end as soon as one of them fails.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from experiments.contract import CellSpec
from models import frameworks
from tracking import provenance
from tracking.errors import EvenhandError

LOOPBACK = "127.0.0.1"
# What a worker has to import may lie on a disk that nobody has read yet.
START_SECONDS = 120.0
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


def versions(framework: str) -> dict[str, str]:
    """Return the version of each package that workers must have in common."""
    names = (*frameworks.described(framework).distributions, "numpy")
    project = {"evenhand": importlib.metadata.version("evenhand"), "commit": provenance.commit()}
    python = {"python": platform.python_version()}
    return {**python, **provenance.versions_of(names), **project}


@dataclass(frozen=True)
class Rendezvous:
    """Where workers meet. addresses: `host:port` of each by rank, for its framework.

    probe: an address of the first's machine that answers for certain, before any framework does.
    """

    addresses: list[str]
    probe: str


@contextmanager
def reserved(spec: CellSpec, workers: int) -> Iterator[Rendezvous]:
    """Yield addresses whose ports no other process gets in the block.

    A reserved socket is bound and does not listen. A server that sets SO_REUSEADDR, as those of
    PyTorch and TensorFlow do, may listen there all the same. Other nodes get the numbers that are
    free on this one: nobody here can reserve them there.
    """
    hosts = [node.address for node in spec.nodes] or [LOOPBACK]
    hosts[0] = spec.settings["rendezvous"] or hosts[0]
    bound = LOOPBACK if hosts == [LOOPBACK] else ""
    with ExitStack() as stack:
        ports = []
        for _ in range(workers):
            port = stack.enter_context(socket.socket())
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("", 0))
            ports.append(port.getsockname()[1])
        places = [node_of(rank, workers, len(hosts)) for rank in range(workers)]
        # the kernel completes connections to it, and nobody accepts them
        probe = stack.enter_context(socket.create_server((bound, 0), backlog=workers))
        yield Rendezvous(
            [f"{hosts[place]}:{port}" for place, port in zip(places, ports, strict=True)],
            f"{hosts[0]}:{probe.getsockname()[1]}",
        )


class Worker:
    """A process of several that train together, in the process group of its parent.

    It is told what to do, and later when to join the others, by lines of JSON on its standard
    input, which stays open as long as it is to live. On its standard output it writes a line when
    it is ready to join.
    """

    def __init__(self, spec: CellSpec, rank: int, meeting: Rendezvous, **told: Any) -> None:
        workers = len(meeting.addresses)
        node = spec.nodes[node_of(rank, workers, len(spec.nodes))] if spec.nodes else None
        command = node.command if node else ()
        self.rank, self._name, self._elsewhere = rank, f"worker {rank}", bool(command)
        self._log = spec.path / f"worker_{rank}_of_{workers}.log"
        with self._log.open("w") as file:
            self._process = subprocess.Popen(
                [*command, sys.executable, "-P", "-m", "experiments.workloads.distributed.rank"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self.pid = self._process.pid
        message = {
            "spec": dataclasses.asdict(spec),
            "rank": rank,
            **vars(meeting),
            "versions": versions(spec.framework),
            "node": node.name if node else "",
            "elsewhere": bool(command),
            **told,
        }
        self.tell(message)

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def tell(self, message: object) -> None:
        """Write a line of JSON; one that has died is told by its exit."""
        with suppress(BrokenPipeError):
            self._input.write(json.dumps(message) + "\n")
            self._input.flush()

    @property
    def has_ended_well(self) -> bool:
        return self._process.poll() == 0

    def trouble(self) -> str:
        """Why it does not work any more, in words; empty while it does, and after it ended well."""
        code = self._process.poll()
        if code is None:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return f"{self._name} is stopped" if stat in "Tt" else ""
        if self._elsewhere and code > SIGNALLED:
            code = SIGNALLED - code
        if code < 0:
            return f"{self._name} was killed by {signal.Signals(-code).name}"
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if not line.startswith(BY_SLURM)]
        said = "\n".join(lines).split("\n\n")[-1].strip().splitlines() or ["nothing"]
        return f"{self._name} ended with code {code}: {said[-1][:300]}" if code else ""

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
        self.output.close()


@contextmanager
def started(spec: CellSpec, meeting: Rendezvous, ranks: Sequence[int], **told: Any) -> Iterator[list[Worker]]:
    """Start these of the workers; they are gone after the block, however it ends."""
    workers = list[Worker]()
    try:
        for rank in ranks:
            workers.append(Worker(spec, rank, meeting, **told))
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def meet(workers: Sequence[Worker], seconds: float) -> None:
    """Wait until all have imported their framework, then let them join, which takes a moment.

    Raises EvenhandError where one ends or is late. TensorFlow joins in native code that holds
    Python's lock: who waited there for one that still starts would not see its parent's end.
    """
    waiting = {worker.output: worker for worker in workers}
    until = time.monotonic() + seconds
    while waiting:
        if why := trouble(workers, 0):
            raise EvenhandError(why)
        if time.monotonic() > until:
            late = ", ".join(str(worker.rank) for worker in waiting.values())
            raise EvenhandError(f"workers {late} were not ready within {seconds:.0f} s")
        for output in select.select(list(waiting), [], [], LOOK_SECONDS)[0]:
            if output.readline():
                del waiting[output]
            else:
                time.sleep(LOOK_SECONDS)  # it is about to end
    for worker in workers:
        worker.tell("join")


def wait_until_ended(workers: Sequence[Worker], seconds: float) -> None:
    """Wait until all have ended well. Raises EvenhandError where one does not."""
    until = time.monotonic() + seconds
    while not all(worker.has_ended_well for worker in workers):
        if why := trouble(workers, 0):
            raise EvenhandError(why)
        if time.monotonic() > until:
            late = ", ".join(str(worker.rank) for worker in workers if not worker.has_ended_well)
            raise EvenhandError(f"workers {late} did not end within {seconds:.0f} s")
        time.sleep(LOOK_SECONDS)


def trouble(workers: Sequence[Worker], seconds: float) -> str:
    """What has happened to the others, once any of it can be seen; empty where nothing can within so many seconds."""
    until = time.monotonic() + seconds
    while True:
        found = [text for one in workers if (text := one.trouble())]
        if found or time.monotonic() > until:
            return "; ".join(found)
        time.sleep(LOOK_SECONDS)
