"""Child's side of the pipe to its parent: records, progress, turns and timed phases."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from experiments.cell.turns import Turns
from experiments.contract import NO_DEVICE, AnyCell, TimedPhase
from tracking import clock
from tracking.records import (
    Artifact,
    Metrics,
    Point,
    Record,
    Tags,
    to_line,
)
from tracking.redaction import Redaction

PROGRESS_SECONDS = 0.2
LOOK_SECONDS = 0.05  # the parent reads its counters in this time, not in the first step


class Emitter:
    """Writer of records and messages to the parent, as JSON lines.

    Attributes:
        redact: Removes the secrets of the cell's inputs from texts.
    """

    def __init__(self, spec: AnyCell, stream: TextIO, token: TextIO) -> None:
        self._spec = spec
        self._stream = stream
        self._next_progress = 0.0
        self.redact = Redaction(spec.inputs.get("secrets", ()))
        self._turns = Turns(self._send, token, enabled=spec.in_turns)

    def record(self, record: Record) -> None:
        if isinstance(record, Tags):
            record = Tags(record.run, self.redact.all(record.values))
        self._write(to_line(record))

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        now = clock.now_ms()
        points = tuple(Point(key, float(value), step, now) for key, value in values.items())
        self.record(Metrics(self._spec.run, points))

    def artifact(self, name: str, folder: str = "") -> None:
        self.record(Artifact(self._spec.run, f"{self._spec.folder}/{name}", folder))

    def progress(self, phase: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now >= self._next_progress or done in (0, total):
            self._next_progress = now + PROGRESS_SECONDS
            self._send({"progress": phase, "done": done, "total": total})

    def ranks(self, processes: Mapping[int, int]) -> None:
        self._send({"ranks": dict(processes)})

    @contextmanager
    def phase(self, name: str, prefix: str = "", place: int = 1) -> Iterator[TimedPhase]:
        self._turns.begin(place)
        self._send({"begin": True})
        time.sleep(LOOK_SECONDS)
        phase = TimedPhase(clock.now())
        yield phase
        window = {
            "prefix": prefix,
            "start_seconds": phase.began,
            "end_seconds": clock.now(),
            "examples": phase.examples,
            "pauses": list(phase.pauses),
        }
        self._send({"phase": name, "window": window})

    def turn(self, steps: int = 1) -> None:
        self._turns.step(steps)

    def end_turns(self) -> None:
        self._turns.end()

    def working_seconds(self) -> float:
        return time.perf_counter() - self._turns.waited_seconds

    def no_device(self) -> None:
        self._send({NO_DEVICE: True})

    def _send(self, message: dict[str, object]) -> None:
        self._write(json.dumps(message))

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()
