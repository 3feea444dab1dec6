"""A child process that runs one cell: started, listened to, and ended for certain."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.config import devices, interpreters, memory
from experiments.contract import CellSpec
from tracking import clock
from tracking.records import Record, RunClosed, RunOutcome, from_line

ROOT = Path(__file__).resolve().parents[2]
GRACE_SECONDS = 5.0
DRAIN_SECONDS = 0.02
LINES_OF_AN_ERROR = 40
# What native code that does not check its allocations dies of.
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)


class Child:
    """`python -m experiments.cell` in a session of its own, so that Ctrl-C reaches the parent alone."""

    def __init__(self, spec: CellSpec, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._kills_before = memory.kernel_kills()
        inherited, own = _inherited(spec), dict(spec.environment)
        self.gpus = devices.gpus_of_cell(spec.device, _workers(spec), inherited)
        named = self.gpus if len(spec.nodes) < 2 else ()  # other nodes' GPUs have other names
        placed = devices.variables_of_cell(spec.device, named, own)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = devices.changed(inherited, placed) | {"PYTHONPATH": path}
        # what is varied is checked in the cell by what it comes to: a number of a GPU is its UUID there
        spec = dataclasses.replace(spec, environment=own | {k: placed[k] for k in own if k in placed})
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                # -P: not from the working folder, whose `models` may be the user's
                [interpreters.executable(spec.framework, spec.settings.get("pythons", ())), "-P", "-m", "experiments.cell"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        self._run = spec.run
        self._limit_bytes = memory.size(spec.settings.get("memory_limit", "none"))
        self._most_bytes = 0
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        self._write(dataclasses.asdict(spec))
        if not spec.in_turns:
            self._close_input()
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._buffer = b""
        self.open = True

    def listen(self, timeout_seconds: float) -> list[Record | dict[str, Any]]:
        """What the child has said meanwhile: records, and messages as dictionaries. `open` turns False at its end."""
        if self._limit_bytes:
            self._most_bytes = max(self._most_bytes, memory.allocated(self.pid))
        if not self._selector.select(timeout_seconds):
            return []
        data = self._pipe.read()
        if data == b"":
            self.open = False
        *lines, self._buffer = (self._buffer + (data or b"")).split(b"\n")
        return [_understood(line.decode()) for line in lines]

    def hold(self) -> None:
        """Halts the process with its threads and workers: what waits for its turn shall not spin, nor read ahead."""
        self._signal(signal.SIGSTOP)

    def go(self, steps: int) -> None:
        """Gives it the token, for so many steps at least."""
        self._signal(signal.SIGCONT)
        self._write({"steps": steps})

    def stop(self) -> None:
        """Ask the process to end, wait, then kill it. What it writes meanwhile is kept for `listen`."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._signal(number)
                self._signal(signal.SIGCONT)  # one that is held hears of nothing else
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline:
                self._drain()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(DRAIN_SECONDS)
                    return

    def _drain(self) -> None:
        """Read what is there: a process that waits for room in its pipe could not end."""
        if self._selector.select(0):
            self._buffer += self._pipe.read() or b""

    def ended(self) -> RunClosed:
        """How it ended, for a child that did not say so itself."""
        code = self._process.wait()
        self._selector.close()
        self._pipe.close()
        self._close_input()
        last = self._log.read_text(errors="replace").strip().splitlines()[-LINES_OF_AN_ERROR:] or ["no output"]
        exhausted = memory.ran_out("\n".join(last))
        if code == -signal.SIGKILL and memory.kernel_kills() > self._kills_before:
            exhausted = "the kernel killed the process for memory"
        if -code in CRASHES and self._most_bytes > memory.NEAR * self._limit_bytes > 0:
            used, of = self._most_bytes / 1e6, self._limit_bytes / 1e6
            exhausted = f"{signal.Signals(-code).name} after {used:,.0f} of the {of:,.0f} MB that memory_limit allows"
        if code < 0:
            reason = f"the process was killed by {signal.Signals(-code).name}"
        else:
            reason = f"the process ended with code {code}: {last[-1][:300]}"
        outcome = RunOutcome.OUT_OF_MEMORY if exhausted else RunOutcome.FAILED
        return RunClosed(self._run, clock.now_ms(), outcome, exhausted or reason)

    def _write(self, message: dict[str, Any]) -> None:
        """A line to the child; one that has died hears nothing, and its exit says why."""
        with suppress(BrokenPipeError):
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()

    def _close_input(self) -> None:
        with suppress(BrokenPipeError):
            self._input.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _inherited(spec: CellSpec) -> dict[str, str]:
    """Return the parent's environment variables with those of the cell's treatment.

    The runner's run is the parent's: MLflow's own autologging in the child would continue it.
    """
    ours = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")
    inherited = {name: text for name, text in os.environ.items() if name not in ours}
    return devices.changed(inherited, spec.environment)


def _workers(spec: CellSpec) -> int:
    """Return how many workers a cell has on this machine, a GPU each; a check as many as the largest of its cells."""
    if "worker_count" not in spec.settings:
        return 1
    count = int(spec.settings["worker_count"] or max(spec.settings["workers"]))
    return math.ceil(count / max(1, len(spec.nodes)))


def _understood(line: str) -> Record | dict[str, Any]:
    message = json.loads(line)
    return from_line(line) if "record" in message else message
