"""Processes that train together, on this machine or on several nodes.

Their rendezvous is that of their framework: PyTorch's TCPStore, TensorFlow's TF_CONFIG. This module
adds free ports, equal versions, and an end as soon as one of them fails.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil

from experiments.cell.child import Child
from experiments.contract import CellSpec
from experiments.studies.distributed import Settings
from models import frameworks
from tracking import provenance
from tracking.errors import ErrorCode, EvenhandError

LOOPBACK = "127.0.0.1"
# Packages may lie on a disk that has not been read yet.
START_SECONDS = 120.0
LOOK_SECONDS = 0.1
END_SECONDS = 5.0
BY_SLURM = ("srun: ", "slurmstepd: ")
# `host:port` of each worker by rank, and of the probe.
Rendezvous = tuple[list[str], str]
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
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


@contextmanager
def reserved(spec: CellSpec[Settings], workers: int) -> Iterator[Rendezvous]:
    """Yield the addresses of workers, whose ports are reserved in the block, and a probe.

    A reserved socket is bound and does not listen. A server that sets SO_REUSEADDR, as those of
    PyTorch and TensorFlow do, may still listen there. Other nodes get the numbers that are free on
    this one, where they cannot be reserved. The probe is an address on the first worker's machine
    that accepts connections before any framework does.
    """
    hosts = [node.address for node in spec.nodes] or [LOOPBACK]
    hosts[0] = spec.settings.rendezvous or hosts[0]
    interface = LOOPBACK if hosts == [LOOPBACK] else ""
    with ExitStack() as stack:
        addresses = []
        for rank in range(workers):
            port = stack.enter_context(socket.socket())
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("", 0))
            host = hosts[node_of(rank, workers, len(hosts))]
            addresses.append(f"{host}:{port.getsockname()[1]}")
        # the kernel completes connections to it, and no process accepts them
        probe = stack.enter_context(socket.create_server((interface, 0), backlog=workers))
        yield addresses, f"{hosts[0]}:{probe.getsockname()[1]}"


class Worker:
    """Process of several that train together, in the process group of its parent.

    Its first line of input is its task, the second says that all are ready to join; the input stays
    open until the end. It sends a line when it is ready to join.
    """

    def __init__(
        self, spec: CellSpec[Settings], rank: int, rendezvous: Rendezvous, **task: Any
    ) -> None:
        addresses, probe = rendezvous
        workers = len(addresses)
        node = spec.nodes[node_of(rank, workers, len(spec.nodes))] if spec.nodes else None
        command = node.command if node else ()
        self.rank, self.is_ready, self._is_remote = rank, False, bool(command)
        self.child = Child(
            [*command, sys.executable, "-P", "-m", "experiments.workloads.distributed.rank"],
            spec.path / f"worker_{rank}_of_{workers}.log",
            own_session=False,
        )
        message = {
            "spec": spec.to_values(),
            "rank": rank,
            "addresses": addresses,
            "probe": probe,
            "versions": versions(spec.framework),
            "node": node.name if node else "",
            "elsewhere": self._is_remote,
            **task,
        }
        self.child.send(json.dumps(message))

    def look(self) -> bool:
        """Return whether the process is ready to join, or has ended well.

        Raises:
            EvenhandError: If it has failed, or is stopped.
        """
        self.is_ready |= bool(self.child.receive(0))
        code = self.child.poll()
        if code is None:
            if psutil.Process(self.child.pid).status() in STOPPED:
                raise EvenhandError(ErrorCode.CHILD_FAILED, f"worker {self.rank} is stopped")
            return self.is_ready
        if self._is_remote and code > SIGNALLED:
            code = SIGNALLED - code
        if code < 0:
            name = signal.Signals(-code).name
            raise EvenhandError(ErrorCode.CHILD_FAILED, f"worker {self.rank} was killed by {name}")
        if code:
            lines = [line for line in self.child.last_lines() if not line.startswith(BY_SLURM)]
            message = "\n".join(lines).rpartition("\n\n")[2].strip().splitlines() or [""]
            raise EvenhandError(
                ErrorCode.CHILD_FAILED,
                f"worker {self.rank} ended with code {code}: {message[-1][:300]}",
            )
        return True

    def kill(self) -> None:
        """End the process; srun kills its job step only when asked to end."""
        self.child.close_input()
        if self._is_remote:
            self.child.stop(END_SECONDS)
        elif self.child.poll() is None:
            self.child.signal(signal.SIGKILL)
        self.child.wait()


@contextmanager
def started(
    spec: CellSpec[Settings], rendezvous: Rendezvous, ranks: Sequence[int], **task: Any
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
    _wait(workers, Worker.look, seconds, "ready to join")
    for worker in workers:
        worker.child.send("join")


def wait_until_ended(workers: Sequence[Worker], seconds: float) -> None:
    """Wait until all have ended well, or raise EvenhandError."""
    _wait(
        workers,
        lambda worker: worker.look() and worker.child.poll() is not None,
        seconds,
        "at their end",
    )


def _wait(
    workers: Sequence[Worker], is_done: Callable[[Worker], bool], seconds: float, state: str
) -> None:
    until = time.monotonic() + seconds
    while late := [worker.rank for worker in workers if not is_done(worker)]:
        if time.monotonic() > until:
            raise EvenhandError(
                ErrorCode.CHILD_FAILED, f"workers {late} were not {state} within {seconds:.0f} s"
            )
        time.sleep(LOOK_SECONDS)
