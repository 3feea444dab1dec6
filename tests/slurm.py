"""Slurm on loopback: slurmctld and several slurmd that share this machine's files."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import debian

CONF = """ClusterName=evenhand
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/none
# A requeued job waits as long as its credential lives: two minutes by default.
AuthInfo=cred_expire=5
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/prolog
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmdTimeout=6
SlurmctldTimeout=30
InactiveLimit=0
KillWait=3
MinJobAge=600
MaxJobCount=10000
MaxArraySize=2001
JobRequeue=1
PartitionName=main Nodes={nodes} Default=YES MaxTime=01:00:00 State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=500\n"


@dataclass
class Slurm:
    """Running cluster with the partition `main`; `ports` of the controller and of each node."""

    folder: Path
    nodes: tuple[str, ...]
    ports: list[int]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": debian.SEARCHED, "SLURM_CONF": f"{self.folder}/slurm.conf"}

    def ask(self, *command: str) -> str:
        """Return what one of its commands prints. Raises CalledProcessError."""
        options = {"capture_output": True, "text": True, "timeout": 60, "check": True}
        output: str = subprocess.run(command, env=self.environment, **options).stdout
        return output.strip()

    def states(self) -> dict[str, str]:
        try:
            rows = self.ask("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        except subprocess.CalledProcessError:
            return {}
        return dict(row.split() for row in rows)

    def jobs(self) -> dict[str, str]:
        """Return jobs that have not ended, and their states and nodes."""
        rows = self.ask("squeue", "--noheader", "--array", "--format=%i %T %N").splitlines()
        return dict(row.strip().split(maxsplit=1) for row in rows)

    def start_controller(self, *options: str) -> None:
        """Start it from its saved state, unless the options are others."""
        self._begin("slurmctld", "-f", f"{self.folder}/slurm.conf", *options)

    def start_node(self, name: str, without: Path | None = None) -> None:
        """Start a node, whose processes inherit its name; `without`: an empty folder there."""
        words = ["slurmd", "-f", f"{self.folder}/slurm.conf", "-N", name]
        if without:
            words[0] = debian.path_of("slurmd") or ""
            mount = f'mount -t tmpfs none "{without}" && exec "$@"'
            words = ["unshare", "--mount", "sh", "-c", mount, "sh", *words]
        self._begin(*words, SLURMD_NODENAME=name)

    @contextmanager
    def without(self, folder: Path) -> Iterator[None]:
        """Give all nodes an empty folder there, until the end."""
        for name in self.nodes:
            self.kill_node(name)
            self.start_node(name, without=folder)
        try:
            yield
        finally:
            for name in self.nodes:
                self.kill_node(name)
                self.start_node(name)
            self._wait_for_nodes()

    def export(self, node: str, name: str, text: str) -> None:
        """Set a variable of all that starts on a node from now on; an empty text removes it."""
        (self.folder / f"prolog-{node}").write_text(f"export {name}={text}\n" if text else "")

    def kill_controller(self) -> None:
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid_file = self.folder / "slurmctld.pid"
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
            pid_file.unlink()

    def kill_node(self, name: str) -> None:
        """Kill the daemon and all that runs on the node, as a power loss would."""
        _kill_all(SLURM_CONF=f"{self.folder}/slurm.conf", SLURMD_NODENAME=name)

    def start(self) -> None:
        folder, host = self.folder, platform.node().partition(".")[0]
        for name in ("state", "log", *(f"spool-{node}" for node in self.nodes)):
            (folder / name).mkdir()
        ports = zip(self.nodes, self.ports[1:], strict=True)
        nodes = [NODE.format(name=name, host=host, port=port) for name, port in ports]
        values = {"host": host, "user": getpass.getuser(), "folder": folder, "port": self.ports[0]}
        conf = CONF.format(**values, nodes=",".join(self.nodes)).split("PartitionName")
        (folder / "slurm.conf").write_text(f"{conf[0]}{''.join(nodes)}PartitionName{conf[1]}")
        prolog = f"#!/bin/sh\ncat {folder}/prolog-$SLURMD_NODENAME 2>/dev/null || true\n"
        (folder / "prolog").write_text(prolog)
        (folder / "prolog").chmod(0o755)
        self.start_controller("-c")
        for name in self.nodes:
            self.start_node(name)
        self._wait_for_nodes()

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + 60
        while set(self.states().values()) != {"idle"}:
            log = self.folder / "log" / "slurmctld.log"
            assert time.monotonic() < deadline, log.read_text()[-2_000:]
            time.sleep(0.1)

    def _begin(self, *command: str, **more: str) -> None:
        program = shutil.which(command[0], path=debian.SEARCHED)
        assert program
        environment = {**self.environment, **more}
        done = subprocess.run(
            [program, *command[1:]], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def running(nodes: int = 2) -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    with ExitStack() as stack:
        probes = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(nodes + 1)
        ]
        ports = [probe.getsockname()[1] for probe in probes]
    cluster = Slurm(folder, names, ports)
    try:
        cluster.start()
        yield cluster
    finally:
        _kill_all(SLURM_CONF=f"{folder}/slurm.conf")
        shutil.rmtree(folder, ignore_errors=True)


def _kill_all(**variables: str) -> None:
    """Kill every process with these variables, Slurm's first: it would report the others."""
    processes = [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if variables.items() <= (process.info["environ"] or {}).items()
    ]
    for process in sorted(processes, key=lambda each: "slurm" not in str(each.info["cmdline"])):
        with suppress(psutil.NoSuchProcess):
            process.kill()
