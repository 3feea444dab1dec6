"""Child process that measures one cell with one framework.

A JSON comes in on standard input, records go out on standard output, and what frameworks print
goes to standard error. MLflow is not imported.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

from experiments.cell.lifetime import die_with_parent
from experiments.cell.turns import Turns
from experiments.config import memory
from experiments.config.settings import TrainingSettings
from experiments.contract import DEVICE, NO_DEVICE, AnyCell, CellSpec, TimedPhase
from models import frameworks
from models.contract import Framework
from models.errors import NoDevice
from tracking import clock, nvml
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import (
    Artifact,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunOutcome,
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


def run(spec: AnyCell, output: Emitter) -> RunClosed:
    """Run the stage; any way in which it ends becomes an outcome with its reason."""
    limit_bytes = memory.size(spec.settings.memory_limit)
    outcome, reason = RunOutcome.FAILED, ""
    try:
        memory.bound(limit_bytes)
        framework = opened(spec) if spec.framework else None
        # a check that reports which device the framework sees
        if framework and spec.device == "auto":
            output.record(Tags(spec.run, {DEVICE: framework.device}))
        if framework and spec.stage == "check":
            output.progress("check", 0, None)
            spec.path.mkdir(parents=True, exist_ok=True)
            versions = json.dumps(framework.versions(), indent=1)
            (spec.path / "environment.json").write_text(versions)
        name = f"experiments.workloads.{spec.workload}.{spec.stage}"
        if spec.stage != "check" or find_spec(name):  # opening the framework is a check, too
            stage = importlib.import_module(name)
            stage.run(spec, framework, output)
        outcome = RunOutcome.OK
    except KeyboardInterrupt:
        outcome, reason = RunOutcome.INTERRUPTED, "stopped while it ran"
    except NoDevice as error:
        output.no_device()
        reason = str(error)
    except EvenhandError as error:
        reason = str(error)
    except BaseException as error:  # user code may raise SystemExit, too
        print(output.redact(traceback.format_exc()), file=sys.stderr)
        outcome, reason = _classify(error, limit_bytes)
    reason = " ".join(output.redact(reason).split())[:1_000]
    return RunClosed(spec.run, clock.now_ms(), outcome, reason)


def opened(spec: AnyCell) -> Framework:
    """Return the framework, set up by the settings of a cell."""
    assert isinstance(spec.settings, TrainingSettings)
    if spec.settings.malloc == "keep":
        memory.keep_freed()
    with frameworks.lean_import(spec.framework):
        framework = frameworks.open_framework(
            spec.framework,
            device=spec.device,
            threads=spec.threads,
            precision=spec.settings.precision,
            seed=spec.settings.seed * 1_000 + spec.block,
            conv_algorithm=spec.settings.conv_algorithm,
        )
    framework.compile_anew()
    for name, text in spec.environment.items():
        if text is not None and text not in os.environ.get(name, ""):
            raise EvenhandError(
                ErrorCode.ENVIRONMENT,
                f"env.{name}: {spec.framework} sets it to {os.environ.get(name)!r} itself, "
                f"not to {text!r}",
            )
    return framework


def _classify(error: BaseException, limit_bytes: int) -> tuple[RunOutcome, str]:
    text = f"{type(error).__name__}: {error}"
    is_near_limit = memory.allocated(os.getpid()) > memory.NEAR * limit_bytes > 0
    unclear = memory.UNCLEAR in text and is_near_limit
    ran_out = unclear or memory.ran_out(text) or memory.device_ran_out(text, nvml.free_share)
    return (RunOutcome.OUT_OF_MEMORY if ran_out else RunOutcome.FAILED), text


def main() -> int:
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C does
    records = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    values = json.loads(sys.stdin.readline())
    study = importlib.import_module(f"experiments.studies.{values['study']}").STUDY
    spec: AnyCell = CellSpec.from_values(values, study.settings)
    if spec.clock:
        clock.CLOCK.follow(spec.clock)
    if spec.cpus:  # before the framework counts them and starts its threads
        os.sched_setaffinity(0, spec.cpus)
    output = Emitter(spec, records, sys.stdin)
    closed = run(spec, output)
    output.record(closed)
    return 0 if closed.outcome == RunOutcome.OK else 1


if __name__ == "__main__":
    sys.exit(main())
