"""Processes that train together, on this machine or on several nodes.

Their rendezvous is that of their framework: PyTorch's TCPStore, TensorFlow's TF_CONFIG. This module
adds free ports, equal versions, and an end as soon as one of them fails.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cell.child import Child
from experiments.contract import CellSpec
from models import frameworks
from tracking import provenance
from tracking.errors import EvenhandError

LOOPBACK = "127.0.0.1"
# Packages may lie on a disk that has not been read yet.
START_SECONDS = 120.0
LOOK_SECONDS = 0.1
END_SECONDS = 5.0
BY_SLURM = ("srun: ", "slurmstepd: ")
SIGNALLED = 128  # and the signal's number: what srun ends with for a task that was killed


def node_of(rank: int, workers: int, nodes: int) -> int:
    """Return a worker's node, which its neighbours by rank share."""
    return rank * nodes // workers


def versions(framework: str) -> dict[str, str]:
    """Return the version of each package that workers must have in common."""
    names = (*frameworks.described(framework).distributions, "numpy")
    project = {"evenhand": importlib.metadata.version("evenhand"), "commit": provenance.commit()}
    python = {"python": platform.python_version()}
    return {**python, **provenance.versions_of(names), **project}


@dataclass(frozen=True)
class Rendezvous:
    """Addresses of workers.

    Attributes:
        addresses: `host:port` of each by rank, for its framework.
        probe: Address on the first's machine that accepts connections before any framework does.
    """

    addresses: list[str]
    probe: str


@contextmanager
def reserved(spec: CellSpec, workers: int) -> Iterator[Rendezvous]:
    """Yield addresses whose ports are reserved in the block.

    A reserved socket is bound and does not listen. A server that sets SO_REUSEADDR, as those of
    PyTorch and TensorFlow do, may still listen there. Other nodes get the numbers that are free on
    this one, where they cannot be reserved.
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
        # the kernel completes connections to it, and no process accepts them
        probe = stack.enter_context(socket.create_server((bound, 0), backlog=workers))
        yield Rendezvous(
            [f"{hosts[place]}:{port}" for place, port in zip(places, ports, strict=True)],
            f"{hosts[0]}:{probe.getsockname()[1]}",
        )


class Worker:
    """Process of several that train together, in the process group of its parent.

    Its first line of input is its task, the second says that all are ready to join; the input stays
    open until the end. It sends a line when it is ready to join.
    """

    def __init__(self, spec: CellSpec, rank: int, rendezvous: Rendezvous, **task: Any) -> None:
        workers = len(rendezvous.addresses)
        node = spec.nodes[node_of(rank, workers, len(spec.nodes))] if spec.nodes else None
        command = node.command if node else ()
        self.rank, self._name, self._elsewhere = rank, f"worker {rank}", bool(command)
        self.child = Child(
            [*command, sys.executable, "-P", "-m", "experiments.workloads.distributed.rank"],
            spec.path / f"worker_{rank}_of_{workers}.log",
            own_session=False,
        )
        message = {
            "spec": dataclasses.asdict(spec),
            "rank": rank,
            **vars(rendezvous),
            "versions": versions(spec.framework),
            "node": node.name if node else "",
            "elsewhere": bool(command),
            **task,
        }
        self.child.send(json.dumps(message))

    @property
    def has_ended_well(self) -> bool:
        return self.child.poll() == 0

    def trouble(self) -> str:
        """Return why it does not work any more, or an empty text."""
        code = self.child.poll()
        if code is None:
            stat = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return f"{self._name} is stopped" if stat in "Tt" else ""
        if self._elsewhere and code > SIGNALLED:
            code = SIGNALLED - code
        if code < 0:
            return f"{self._name} was killed by {signal.Signals(-code).name}"
        lines = [line for line in self.child.last_lines() if not line.startswith(BY_SLURM)]
        message = "\n".join(lines).split("\n\n")[-1].strip().splitlines() or ["nothing"]
        return f"{self._name} ended with code {code}: {message[-1][:300]}" if code else ""

    def kill(self) -> None:
        """End the process; srun kills its job step only when asked to end."""
        self.child.close_input()
        if self._elsewhere:
            self.child.stop(END_SECONDS)
        elif self.child.poll() is None:
            self.child.signal(signal.SIGKILL)
        self.child.wait()


@contextmanager
def started(
    spec: CellSpec, rendezvous: Rendezvous, ranks: Sequence[int], **task: Any
) -> Iterator[list[Worker]]:
    """Start workers by rank; the end of the block ends them."""
    workers = list[Worker]()
    try:
        for rank in ranks:
            workers.append(Worker(spec, rank, rendezvous, **task))
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def meet(workers: Sequence[Worker], seconds: float) -> None:
    """Wait until all have imported their framework, then let them join, which takes a moment.

    TensorFlow joins in native code that holds Python's lock: a process that waited in it for one
    that still starts would not notice the end of its parent.

    Raises:
        EvenhandError: If one ends or is late.
    """
    waiting, until = list(workers), time.monotonic() + seconds
    while waiting:
        _require_time(until, waiting, f"were not ready within {seconds:.0f} s", workers)
        waiting = [worker for worker in waiting if not worker.child.receive(LOOK_SECONDS)]
    for worker in workers:
        worker.child.send("join")


def wait_until_ended(workers: Sequence[Worker], seconds: float) -> None:
    """Wait until all have ended well, or raise EvenhandError."""
    until = time.monotonic() + seconds
    while running := [worker for worker in workers if not worker.has_ended_well]:
        _require_time(until, running, f"did not end within {seconds:.0f} s", workers)
        time.sleep(LOOK_SECONDS)


def _require_time(
    until: float, late: Sequence[Worker], what: str, workers: Sequence[Worker]
) -> None:
    """Raise EvenhandError if a worker has failed or the time is over."""
    if why := trouble(workers, 0):
        raise EvenhandError(why)
    if time.monotonic() > until:
        raise EvenhandError(f"workers {', '.join(str(worker.rank) for worker in late)} {what}")


def trouble(workers: Sequence[Worker], seconds: float) -> str:
    """Return what has happened to the workers as soon as it is seen, or an empty text."""
    until = time.monotonic() + seconds
    while True:
        reasons = [reason for worker in workers if (reason := worker.trouble())]
        if reasons or time.monotonic() > until:
            return "; ".join(reasons)
        time.sleep(LOOK_SECONDS)
