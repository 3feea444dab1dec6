"""Where workers meet before they train: each tells where it is and what it runs, and hears where all others are."""

from __future__ import annotations

import hmac
import importlib.metadata
import json
import os
import platform
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from experiments.cell.contract import CellSpec
from experiments.workloads.distributed import group
from experiments.workloads.distributed.group import Worker
from models import frameworks
from tracking import provenance
from tracking.errors import EvenhandError

LOOPBACK = "127.0.0.1"
# What a worker has to import may lie on a disk that nobody has read yet.
START_SECONDS = 120.0
LOOK_SECONDS = 0.1
HELLO_SECONDS = 2.0
MAX_BYTES = 65_536
_reserved: list[socket.socket] = []


@dataclass(frozen=True)
class Hello:
    """What a worker says. address: `host:port` that is free for its framework. node: its machine's name. versions: by package."""

    rank: int
    address: str
    node: str
    versions: Mapping[str, str]


class Meeting:
    """Held open by the process that starts the workers, until all are there. nodes: where each of them is, known from then on."""

    def __init__(self, spec: CellSpec) -> None:
        elsewhere = spec.settings["rendezvous"] or spec.address
        self._host = elsewhere or LOOPBACK
        self._framework, self._patience_seconds = spec.framework, spec.settings["patience_seconds"]
        self.nodes: list[str] = []
        self._secret = secrets.token_hex(16)
        self._open = ExitStack()
        self._socket = self._open.enter_context(socket.create_server(("" if elsewhere else LOOPBACK, 0)))
        self._socket.settimeout(LOOK_SECONDS)

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def told(self) -> dict[str, Any]:
        """What `join` needs, for workers that are still to be started."""
        where = {"host": self._host, "port": self._socket.getsockname()[1]}
        return {**where, "secret": self._secret, "seconds": self._patience_seconds}

    def addresses(self, workers: int, others: Sequence[Worker]) -> list[str]:
        """Of each worker, once all are there; the first is this process where it is not among the others.

        Raises EvenhandError where one has ended, does not come, or runs other versions than the first.
        """
        links: dict[int, socket.socket] = {}
        hellos = {} if len(others) == workers else {0: hello(self._framework, 0, self._host)}
        until = time.monotonic() + START_SECONDS + self._patience_seconds
        while len(hellos) < workers:
            if why := group.trouble(others, 0):
                raise EvenhandError(why)
            if time.monotonic() > until:
                late = ", ".join(str(rank) for rank in range(workers) if rank not in hellos)
                raise EvenhandError(f"workers {late} did not come within {START_SECONDS + self._patience_seconds:.0f} s")
            if found := self._next():
                links[found[0].rank], hellos[found[0].rank] = found[1], found[0]
        if why := different([hellos[rank] for rank in range(workers)]):
            raise EvenhandError(why)
        self.nodes = [hellos[rank].node for rank in range(workers)]
        found_at = [hellos[rank].address for rank in range(workers)]
        for link in links.values():
            link.sendall(json.dumps(found_at).encode() + b"\n")
        return found_at

    def _next(self) -> tuple[Hello, socket.socket] | None:
        """Whoever comes next, within a moment; strangers are sent away."""
        try:
            link = self._open.enter_context(self._socket.accept()[0])
            link.settimeout(HELLO_SECONDS)
            said = json.loads(link.makefile("rb").readline(MAX_BYTES))
            secret = said.pop("secret")
            return (Hello(**said), link) if hmac.compare_digest(secret, self._secret) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def join(told: Mapping[str, Any], framework: str, rank: int) -> list[str]:
    """Comes to the meeting. Returns where each worker is. Raises EvenhandError where it cannot be reached, or is over."""
    host, port, seconds = told["host"], told["port"], told["seconds"]
    try:
        link = socket.create_connection((host, port), seconds)
    except OSError as error:
        why = str(error) if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise EvenhandError(
            f"does not reach the first at {host}:{port} (rendezvous=…), {seconds:g} s at most: {why}, from {_node()}"
        ) from None
    with link:
        link.settimeout(START_SECONDS + seconds)
        own = hello(framework, rank, link.getsockname()[0])
        link.sendall(json.dumps({**vars(own), "secret": told["secret"]}).encode() + b"\n")
        answer = link.makefile("rb").readline(MAX_BYTES * 16)
    if not answer:
        raise EvenhandError("the first has left before all were there")
    found: list[str] = json.loads(answer)
    return found


def reserve_port() -> int:
    """Reserve a port for this process's framework until the process ends.

    The socket stays bound and never listens: the kernel gives the port to nobody else, and a server
    that sets SO_REUSEADDR, as those of PyTorch and TensorFlow do, may listen there.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    _reserved.append(reserved)
    port: int = reserved.getsockname()[1]
    return port


def hello(framework: str, rank: int, host: str) -> Hello:
    """What this process says, which others reach at this host."""
    port = reserve_port()
    names = (*frameworks.described(framework).distributions, "numpy")
    own = {"evenhand": importlib.metadata.version("evenhand"), "commit": provenance.commit()}
    return Hello(rank, f"{host}:{port}", _node(), {"python": platform.python_version(), **provenance.versions_of(names), **own})


def different(hellos: Sequence[Hello]) -> str:
    """Which versions are not the same on all workers, and where; empty where all are."""
    found = []
    for package in sorted({name for one in hellos for name in one.versions}):
        ranks: dict[str, list[str]] = {}
        for one in hellos:
            ranks.setdefault(one.versions.get(package) or "missing", []).append(f"{one.rank} ({one.node})")
        if len(ranks) > 1:
            found.append(f"{package} " + ", ".join(f"{version} on {', '.join(on)}" for version, on in ranks.items()))
    return f"workers run different versions: {'; '.join(found)}; install the same on all nodes" if found else ""


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or platform.node()
