"""The child: one cell in one process with one framework. A JSON in on standard input, records out on standard output.

MLflow is not imported here unless its own autologging is asked for; whatever the frameworks print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TextIO

from experiments.cell.lifetime import die_with_parent
from experiments.cell.turns import Turns
from experiments.config import memory
from experiments.contract import DEVICE, NO_DEVICE, CellSpec
from models import frameworks
from models.contract import Framework
from models.errors import ModelError, NoDevice
from tracking import clock
from tracking.errors import EvenhandError
from tracking.records import (
    Artifact,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunKind,
    RunOutcome,
    Tags,
    to_line,
)
from tracking.sensors import nvml

PROGRESS_SECONDS = 0.2
LOOK_SECONDS = 0.05  # the parent reads its counters meanwhile, not in the first step


class Emitter:
    """Writes records and progress to the parent as JSON lines. token: where it says whose turn it is, if cells take turns."""

    def __init__(self, spec: CellSpec, stream: TextIO, token: TextIO) -> None:
        self._spec = spec
        self._stream = stream
        self._next_progress = 0.0
        self._turns = Turns(self._say, token, enabled=spec.in_turns)

    @property
    def waited_seconds(self) -> float:
        return self._turns.waited_seconds

    def record(self, record: Record) -> None:
        self._stream.write(to_line(record) + "\n")
        self._stream.flush()

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        now = clock.now_ms()
        self.record(
            Metrics(
                self._spec.run,
                tuple(Point(key, float(value), step, now) for key, value in values.items()),
            )
        )

    def artifact(self, name: str, folder: str = "") -> None:
        self.record(Artifact(self._spec.run, f"{self._spec.folder}/{name}", folder))

    def progress(self, phase: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now >= self._next_progress or done in (0, total):
            self._next_progress = now + PROGRESS_SECONDS
            self._say({"progress": phase, "done": done, "total": total})

    def ranks(self, processes: Mapping[int, int]) -> None:
        self._say({"ranks": dict(processes)})

    def begin(self, place: int = 1) -> None:
        self._turns.begin(place)
        self._say({"begin": True})
        time.sleep(LOOK_SECONDS)

    def turn(self, steps: int = 1) -> None:
        self._turns.step(steps)

    def window(
        self,
        phase: str,
        start_seconds: float,
        end_seconds: float,
        examples: int,
        prefix: str = "",
        pauses: Sequence[tuple[float, float]] = (),
    ) -> None:
        bounds = {"start_seconds": start_seconds, "end_seconds": end_seconds}
        self._say(
            {
                "phase": phase,
                "window": {
                    "prefix": prefix,
                    **bounds,
                    "examples": examples,
                    "pauses": list(pauses),
                },
            }
        )

    def no_device(self) -> None:
        """The framework sees no such device."""
        self._say({NO_DEVICE: True})

    def _say(self, message: dict[str, object]) -> None:
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()


def run(spec: CellSpec, output: Emitter) -> RunClosed:
    """Does the stage; every way it can end becomes an outcome with its reason."""
    try:
        memory.bound(memory.size(spec.settings.get("memory_limit", "none")))
        framework = opened(spec)
        if spec.device == "auto":  # a check that asks the framework what it sees
            output.record(Tags(spec.run, {DEVICE: framework.device}))
        stage = importlib.import_module(_module(spec))
        with _autologging(spec):
            stage.run(spec, framework, output)
        outcome, reason = RunOutcome.OK, ""
    except KeyboardInterrupt:
        outcome, reason = RunOutcome.INTERRUPTED, "stopped while it ran"
    except NoDevice as error:
        output.no_device()
        outcome, reason = RunOutcome.FAILED, str(error)
    except (ModelError, EvenhandError) as error:
        outcome, reason = RunOutcome.FAILED, str(error)
    except (
        BaseException
    ) as error:  # SystemExit too, in code of the user's: the parent would hear nothing
        traceback.print_exc()
        outcome, reason = _classify(error, memory.size(spec.settings.get("memory_limit", "none")))
    return RunClosed(spec.run, clock.now_ms(), outcome, " ".join(reason.split())[:1_000])


def _module(spec: CellSpec) -> str:
    """Return the name of the module that does a stage; a check without one opens the framework."""
    name = f"experiments.workloads.{spec.workload}.{spec.stage}"
    own = spec.stage != "check" or find_spec(name)
    return name if own else "experiments.workloads.opens"


def opened(spec: CellSpec) -> Framework:
    """The framework as the cell's settings ask for it."""
    if spec.settings["malloc"] == "keep":
        memory.keep_freed()
    with frameworks.lean_import(spec.framework):
        framework = frameworks.open_framework(
            spec.framework,
            device=spec.device,
            threads=spec.threads,
            precision=spec.settings["precision"],
            seed=spec.settings["seed"] * 1_000 + spec.block,
            conv_algorithm=spec.settings["conv_algorithm"],
        )
    framework.compile_anew()
    for name, text in spec.environment.items():
        if text is not None and text not in os.environ.get(name, ""):
            raise EvenhandError(
                f"env.{name}: {spec.framework} sets it to {os.environ.get(name)!r} itself, not to {text!r}"
            )
    return framework


def _autologging(spec: CellSpec) -> AbstractContextManager[None]:
    """MLflow enters this process only where its own autologging is asked for; its cost is then part of what is measured."""
    if (
        spec.stage not in ("train", "measure", "lightning")
        or spec.settings.get("autolog") != "mlflow"
    ):
        return nullcontext()
    from tracking.store import autologging

    tags = {
        "kind": RunKind.AUTOLOG,
        "campaign": spec.campaign,
        "framework": spec.framework,
        "block": str(spec.block),
    }
    flavour = frameworks.described(spec.framework).autologging
    return autologging(
        flavour, spec.experiment, f"autolog · {spec.framework} · block {spec.block}", tags
    )


def _classify(error: BaseException, limit_bytes: int) -> tuple[RunOutcome, str]:
    text = f"{type(error).__name__}: {error}"
    unclear = (
        memory.UNCLEAR in text and memory.allocated(os.getpid()) > memory.NEAR * limit_bytes > 0
    )
    ran_out = unclear or memory.ran_out(text) or memory.device_ran_out(text, nvml.free_share)
    return (RunOutcome.OUT_OF_MEMORY if ran_out else RunOutcome.FAILED), text


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    records = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = CellSpec.of(json.loads(sys.stdin.readline()))
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
