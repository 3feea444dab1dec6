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
import traceback
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from experiments.cell.lifetime import die_with_parent
from experiments.cell.opening import opened
from experiments.cell.output import Emitter
from experiments.config import memory
from experiments.config.settings import TrainingSettings
from experiments.contract import DEVICE, LIMITS, AnyCell, CellSpec, Limits, Study
from models import limits
from models.contract import Framework
from models.errors import NoDevice, innermost_frames
from models.frameworks import described
from tracking import clock, nvml
from tracking.errors import EvenhandError
from tracking.records import (
    RunClosed,
    RunOutcome,
    Tags,
)


def run(spec: AnyCell, output: Emitter) -> RunClosed:
    """Run the stage; any way in which it ends becomes an outcome with its reason."""
    limit_bytes = memory.size(spec.settings.memory_limit)
    outcome, reason = RunOutcome.FAILED, ""
    stack = ExitStack()
    try:
        memory.bound(limit_bytes)
        measures = spec.stage == "check" and LIMITS in spec.inputs and not limit_bytes
        wait = stack.enter_context(limits.computing(Path(spec.journal))) if measures else None
        framework = opened(spec) if spec.framework else None
        # a check that reports which device the framework sees
        if framework and spec.device == "auto":
            output.record(Tags(spec.run, {DEVICE: framework.device}))
        if framework and spec.stage == "check":
            output.progress("check", 0, None)
            spec.path.mkdir(parents=True, exist_ok=True)
            versions = json.dumps(framework.versions(), indent=1)
            (spec.path / "environment.json").write_text(versions)
            settings = spec.settings
            if (
                isinstance(settings, TrainingSettings)
                and settings.precision != TrainingSettings.precision
            ):
                _build_all(spec, framework)
        name = f"{__package__}.{spec.workload}.{spec.stage}"
        if spec.stage != "check" or find_spec(name):  # opening the framework is a check, too
            stage = importlib.import_module(name)
            stage.run(spec, framework, output)
        if framework and wait:
            wait()
            _measure_limits(spec, framework, output)
        outcome = RunOutcome.OK
    except KeyboardInterrupt:
        outcome, reason = RunOutcome.INTERRUPTED, "stopped while it ran"
    except NoDevice as error:
        output.no_device()
        reason = str(error)
    except EvenhandError as error:
        reason = str(error)
    except BaseException as error:  # user code may raise SystemExit, too
        trace = traceback.format_exc()
        print(output.redact(trace), file=sys.stderr)
        outcome, reason = _classify(error, limit_bytes)
        reason += innermost_frames(trace) if outcome == RunOutcome.FAILED else ""
    finally:
        stack.close()
    reason = " ".join(output.redact(reason).split())[:1_000]
    return RunClosed(spec.run, clock.now_ms(), outcome, reason)


def _build_all(spec: AnyCell, framework: Framework) -> None:
    """Build the small version of every network: one that cannot be computed is refused."""
    import numpy as np  # a command's process needs neither

    import models

    for name in _study(spec.study).models(spec.settings):
        sizes, _ = models.spec(name).probe(np.random.default_rng(0))
        framework.build(name, sizes)


def _measure_limits(spec: AnyCell, framework: Framework, output: Emitter) -> None:
    """Record how fast the framework's library multiplies matrices here, and the memory's speed."""
    if described(spec.framework).exported_from:  # its products would have to be exported, too
        return
    settings, library = spec.settings, spec.framework.partition("+")[0]
    assert isinstance(settings, TrainingSettings)
    place = (framework.device, settings.precision, spec.threads)
    if library != spec.framework:  # the same library: compiling takes long, and changes no product
        if library in settings.frameworks:
            return
        framework = opened(replace(spec, framework=library))
    threads = spec.threads or len(os.sched_getaffinity(0))
    if peak_flops := limits.peak_flops(framework, float(spec.inputs[LIMITS])):
        bandwidth = limits.bandwidth(framework, threads)
        measured = Limits(spec.framework, *place, peak_flops, bandwidth)
        output.record(Tags(spec.run, {LIMITS: json.dumps(asdict(measured))}))


def _study(name: str) -> Study:
    study: Study = importlib.import_module(f"experiments.studies.{name}").STUDY
    return study


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
    spec: AnyCell = CellSpec.from_values(values, _study(values["study"]).settings)
    if spec.clock:
        clock.CLOCK.origin = spec.clock
    if spec.cpus:  # before the framework counts them and starts its threads
        os.sched_setaffinity(0, spec.cpus)
    output = Emitter(spec, records, sys.stdin)
    closed = run(spec, output)
    output.record(closed)
    return 0 if closed.outcome == RunOutcome.OK else 1


if __name__ == "__main__":
    sys.exit(main())
