"""One cell's process as its parent hears it: records are handed on, and what it has timed and where it stands is remembered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from experiments.contract import CellSpec, Progress
from experiments.run.neighbours import Neighbours
from experiments.run.process import Child
from experiments.run.sensing import Sensing
from tracking.records import Metrics, Record, RunClosed, RunOutcome, Tags
from tracking.sensors import Sensors, Window

LISTEN_SECONDS = 0.2
# What is told of a running cell's metrics; an answer that is not empty ends the cell, and is why.
Watch = Callable[[Metrics], str]


@dataclass(frozen=True)
class Passed:
    """What a cell says when it passes the token: the steps and seconds of its turn, and the phase that it is in now."""

    phase: int
    steps: int
    seconds: float


class Listening:
    """From `start` until it is left. write: takes the records of the run; show: the progress; watch: see `Watch`.

    latest: the latest value of every metric. timed: the phases that are over; phase: the one that it is in, in words.
    closed: how it ended, where it said so itself. pruned: why it was ended before. passed: that it waits for its turn.
    """

    def __init__(self, spec: CellSpec, write: Callable[[Record], None], show: Progress, watch: Watch | None = None) -> None:
        self.spec = spec
        self.latest: dict[str, float] = {}
        self.timed: set[str] = set()
        self.windows: list[Window] = []
        self.neighbours = Neighbours()
        self.closed: RunClosed | None = None
        self.phase = self.pruned = ""
        self.passed: Passed | None = None
        self.child: Child | None = None
        self._write, self._show, self._watch = write, show, watch
        self._sensing: Sensing | None = None
        self._while_open = ExitStack()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._while_open.close()

    def start(self, sensor_seconds: float = 0.0) -> None:
        """sensor_seconds: the period of the sensors; 0: none are read. Raises OSError where no process can be started."""
        self.child = Child(self.spec, self.spec.path / "output.log")
        spec, gpus = self.spec, self.child.gpus
        if gpus:
            self._write(Tags(spec.run, {"gpu.uuid": ",".join(gpus)}))
        if sensor_seconds:
            sensors = Sensors(self.child.pid, spec.device, gpus)
            sensing = Sensing(spec.run, sensors, sensor_seconds, self._write, alone=not spec.in_turns)
            self._sensing = self._while_open.enter_context(sensing)

    @property
    def open(self) -> bool:
        """Whether the process may still say something."""
        return self.child is not None and self.child.open

    @property
    def well(self) -> bool:
        """Whether nothing is wrong with it so far."""
        return self.child is None or self.open or (self.closed is not None and self.closed.outcome == RunOutcome.OK)

    def hear(self, timeout_seconds: float) -> None:
        """What the process has said meanwhile; returns at once where that is something."""
        assert self.child is not None
        for message in self.child.listen(timeout_seconds):
            if isinstance(message, RunClosed):
                self.closed = message
            elif isinstance(message, dict):
                if "ranks" in message and self._sensing:
                    self._sensing.follow({int(rank): pid for rank, pid in message["ranks"].items()})
                if "begin" in message:
                    self.neighbours.begin()
                if "window" in message:
                    self.neighbours.end()
                    self.windows.append(Window(**message["window"]))
                    self.timed.add(message["phase"])
                if "progress" in message:
                    self.phase = message["progress"]
                    self._show(message["progress"], message["done"], message["total"])
                if "turn" in message:
                    self.passed = Passed(**message["turn"])
            else:
                self._write(message)
                if isinstance(message, Metrics):
                    self.latest |= {point.key: point.value for point in message.points}
                    self.pruned = self.pruned or (self._watch(message) if self._watch else "")

    def stop(self) -> None:
        """Ends the process; what it says of that is still heard."""
        if self.child is not None:
            self.child.stop()
            while self.child.open:
                self.hear(1.0)

    def ended(self) -> RunClosed | None:
        """How it ended, in its own words or by its exit; None if it never began. What the sensors saw is then known."""
        if self.child is None:
            return None
        by_exit = self.child.ended()
        if self._sensing:
            self.latest |= self._sensing.log_windows(self.windows)
            self.neighbours.on_gpu = self._sensing.others_on_gpu(self.windows)
            self._sensing.keep_ranks(self.spec.path, self.spec.folder)
        return self.closed or by_exit
