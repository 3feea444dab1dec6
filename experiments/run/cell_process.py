"""Process of one cell, extraction or check: its records are passed on, and its progress is kept."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.cell.child import Child
from experiments.config import devices, interpreters, memory
from experiments.contract import NO_DEVICE, AnyCell, Progress
from experiments.run.sensing import BackgroundLoad, Sensing
from tracking import clock
from tracking.cpus import cpus
from tracking.records import Metrics, Record, RunClosed, RunOutcome, Tags, from_line
from tracking.sensors import Sensors, Window

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.2
# Native code that does not check its allocations dies of these.
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
# Called with a running cell's metrics; an answer that is not empty ends the cell, and is why.
Watch = Callable[[Metrics], str]


@dataclass(frozen=True)
class TurnReport:
    """Steps and seconds of a cell's turn, reported when it passes the token, and the next phase.

    timed: False if cells work side by side in that phase.
    """

    phase: int
    steps: int
    seconds: float
    timed: bool = True


class CellProcess:
    """`python -m experiments.workloads`, from `start` until the context is left, which ends it.

    Args:
        write: Takes the records of the run.
        show: Shows the progress.
        watch: See `Watch`.

    Attributes:
        latest: The latest value of every metric.
        timed: The phases that are over; phase: the current one.
        closed: Its own report of its end; pruned: why it was ended before.
        turn_report: Set while it waits for its turn.
        sees_device: False if its framework reported that it does not.
    """

    def __init__(
        self,
        spec: AnyCell,
        write: Callable[[Record], None],
        show: Progress = lambda *_: None,
        watch: Watch | None = None,
    ) -> None:
        self.spec = spec
        self.latest: dict[str, float] = {}
        self.timed: set[str] = set()
        self.windows: list[Window] = []
        threads = min(spec.threads, cpus().usable) if spec.framework else 0  # a command's: unknown
        self.background = BackgroundLoad(threads)
        self.closed: RunClosed | None = None
        self.phase = self.pruned = ""
        self.turn_report: TurnReport | None = None
        self.sees_device = True
        self.gpus: tuple[str, ...] = ()
        self._child: Child | None = None
        self._write, self._show, self._watch = write, show, watch
        self._sensing: Sensing | None = None
        self._while_open = ExitStack()
        self._limit_bytes = memory.size(spec.settings.memory_limit)
        self._most_bytes = self._kills_before = 0

    def __enter__(self) -> CellProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._while_open.close()

    def start(self, sensor_seconds: float = 0.0) -> None:
        """Start the process, and its sensors with this period, if it is not 0. Raises OSError."""
        spec = self.spec
        # the runner's run is the parent's: MLflow's autologging in the child would continue it
        ours = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")
        inherited = {name: text for name, text in os.environ.items() if name not in ours}
        inherited, varied = devices.changed(inherited, spec.environment), dict(spec.environment)
        self.gpus = devices.gpus_of_cell(spec.device, _local_workers(spec), inherited)
        named = self.gpus if len(spec.nodes) < 2 else ()  # other nodes' GPUs have other names
        placed = devices.variables_of_cell(spec.device, named, varied)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        # the cell checks what is varied: a GPU's number is its UUID there
        sent = replace(spec, environment=varied | {k: placed[k] for k in varied if k in placed})
        self._kills_before = memory.kernel_kills()
        # -P: not from the working folder, whose `models` may be the user's
        python = interpreters.executable(spec.framework, spec.settings.pythons)
        self._child = Child(
            [python, "-P", "-m", "experiments.workloads"],
            spec.path / "output.log",
            environment=devices.changed(inherited, placed) | {"PYTHONPATH": path},
        )
        self._child.send(json.dumps(sent.to_values()))
        if not spec.in_turns:
            self._child.close_input()
        if self.gpus:
            self._write(Tags(spec.run, {"gpu.uuid": ",".join(self.gpus)}))
        if sensor_seconds:
            sensors = Sensors(self._child.pid, spec.device, self.gpus)
            sensing = Sensing(
                spec.run, sensors, sensor_seconds, self._write, is_alone=not spec.in_turns
            )
            self._sensing = self._while_open.enter_context(sensing)

    @property
    def child(self) -> Child:
        assert self._child is not None
        return self._child

    @property
    def open(self) -> bool:
        return self._child is not None and self._child.open

    @property
    def ok(self) -> bool:
        has_succeeded = self.closed is not None and self.closed.outcome == RunOutcome.OK
        return self._child is None or self.open or has_succeeded

    def poll(self, timeout_seconds: float) -> None:
        """Process what the child has reported; returns as soon as there is something."""
        if self._limit_bytes:
            self._most_bytes = max(self._most_bytes, memory.allocated(self.child.pid))
        for line in self.child.receive(timeout_seconds):
            message = json.loads(line)
            if "record" not in message:
                self._take(message)
                continue
            record = from_line(line)
            if isinstance(record, RunClosed):
                self.closed = record
                continue
            self._write(record)
            if isinstance(record, Metrics):
                self.latest |= {point.key: point.value for point in record.points}
                if self._watch and not self.pruned:
                    self.pruned = self._watch(record)

    def _take(self, message: dict[str, Any]) -> None:
        if NO_DEVICE in message:
            self.sees_device = False
        if "ranks" in message and self._sensing:
            self._sensing.follow({int(rank): pid for rank, pid in message["ranks"].items()})
        if "begin" in message:
            self.background.begin()
        if "window" in message:
            self.background.end()
            self.windows.append(Window(**message["window"]))
            self.timed.add(message["phase"])
        if "progress" in message:
            self.phase = message["progress"]
            self._show(message["progress"], message["done"], message["total"])
        if "turn" in message:
            self.turn_report = TurnReport(**message["turn"])

    def stop(self) -> None:
        """End the process, if it has not ended, and process its last reports."""
        if self._child is not None and self._child.open:
            self._child.stop()
            while self._child.open:
                self.poll(1.0)

    def run(
        self, sensor_seconds: float = 0.0, why_stop: Callable[[], str] = lambda: ""
    ) -> RunClosed:
        """Start the process, process its reports to its end, and return that.

        Args:
            sensor_seconds: Period of the sensors.
            why_stop: Called again and again; an answer that is not empty ends the process.

        Raises:
            OSError: If it cannot be started.
        """
        with self:
            self.start(sensor_seconds)
            while self.open:
                self.poll(POLL_SECONDS)
                if why_stop() or self.pruned:
                    self.stop()
        closed = self.end()
        assert closed is not None
        return closed

    def end(self) -> RunClosed | None:
        """Record the sensors and return the end by its own report or exit; None if never begun."""
        if self._child is None:
            return None
        by_exit = self._exit()
        if self._sensing:
            self.latest |= self._sensing.log_windows(self.windows)
            self.background.on_gpu = self._sensing.others_on_gpu(self.windows)
        return self.closed or by_exit

    def _exit(self) -> RunClosed:
        code, last = self.child.wait(), self.child.last_lines()
        exhausted = memory.ran_out("\n".join(last))
        if code == -signal.SIGKILL and memory.kernel_kills() > self._kills_before:
            exhausted = "the kernel killed the process for memory"
        if -code in CRASHES and self._most_bytes > memory.NEAR * self._limit_bytes > 0:
            exhausted = (
                f"{signal.Signals(-code).name} after {self._most_bytes / 1e6:,.0f} "
                f"of the {self._limit_bytes / 1e6:,.0f} MB that memory_limit allows"
            )
        if code < 0:
            reason = f"the process was killed by {signal.Signals(-code).name}"
        else:
            reason = f"the process ended with code {code}: {last[-1][:300]}"
        outcome = RunOutcome.OUT_OF_MEMORY if exhausted else RunOutcome.FAILED
        return RunClosed(self.spec.run, clock.now_ms(), outcome, exhausted or reason)


def _local_workers(spec: AnyCell) -> int:
    """Return the workers, a GPU each, of a cell here; a check has those of the largest cell."""
    return math.ceil(spec.settings.workers_of_a_cell / max(1, len(spec.nodes)))
