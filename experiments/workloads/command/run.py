"""Run of a command: its wall time, CPU time, memory and exit, with all that it started."""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

from experiments.cell import timing
from experiments.cell.lifetime import die_with_parent
from experiments.config import devices, memory
from experiments.contract import OUTLIVED, AnyCell, Output
from experiments.workloads.command import process_tree, reported
from experiments.workloads.command.process_tree import METRICS_VARIABLE, MemorySampler
from tracking import mlflow_defaults, plain, provenance
from tracking.errors import ErrorCode, EvenhandError
from tracking.journal import write_atomically
from tracking.records import Tags
from tracking.redaction import Redaction

SHELL = "/bin/sh"
STDOUT, STDERR, METRICS = "stdout.txt", "stderr.txt", "metrics.jsonl"
# Time for helpers of a command that has ended.
REST_SECONDS = 0.5
SWITCH_SECONDS = 0.0005  # the thread that samples must not hold up the clock
LAST_LINES = 5
# Results of a command are collected in what its timeout leaves, and at least in this time.
MIN_COLLECTION_SECONDS, COLLECTION_BYTES = 10.0, 2**30
# From the signal by which a cell ends: then the kernel ends it.
MAX_END_SECONDS = 10


@dataclass(frozen=True)
class Finished:
    """End of a command.

    exit_code: below 0 for a signal; None if it ran past its timeout. left: names of processes that
    outlived it.
    """

    exit_code: int | None
    wall_seconds: float
    user_seconds: float
    system_seconds: float
    peak_bytes: int
    memory_method: str
    left: Sequence[str]
    kernel_killed: bool

    @property
    def signal_name(self) -> str:
        """Name of the signal that ended it; a shell reports its child's as a code from 129 on."""
        code = self.exit_code or 0
        number = -code if code < 0 else code - 128
        try:
            return signal.Signals(number).name
        except ValueError:
            return ""

    @property
    def end(self) -> str:
        """Reason code: `timeout`, `memory`, `signal` or `exit`."""
        if self.exit_code is None:
            return "timeout"
        if self.signal_name:
            return "memory" if self.kernel_killed else "signal"
        return "exit"

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "wall_seconds": self.wall_seconds,
            "cpu/user_seconds": self.user_seconds,
            "cpu/system_seconds": self.system_seconds,
            **({"memory/peak_tree_bytes": float(self.peak_bytes)} if self.peak_bytes else {}),
        }


def run(spec: AnyCell, _: object, output: Output) -> None:
    """Run the command once, and report what it took and what it printed."""
    die_with_parent(signal.SIGTERM)  # to end the command first
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command inherits what a cell ignores
    signal.signal(signal.SIGTERM, _interrupt_once)
    # Slurm announces the end of a job to all of its processes; the cell is then ended by its parent
    signal.signal(signal.SIGUSR2, lambda *_: None)
    sys.setswitchinterval(SWITCH_SECONDS)
    spec.path.mkdir(parents=True, exist_ok=True)
    output.progress(spec.inputs["name"], 0, None)
    # without a name on the disk: neither a kill leaves secrets there, nor does the command put a
    # pipe in their place
    with (
        tempfile.TemporaryFile(dir=spec.path) as stderr,
        tempfile.TemporaryFile(dir=spec.path) as stdout,
    ):
        outputs = {STDERR: stderr, STDOUT: stdout}
        with output.phase("command"):
            finished = execute(spec.inputs, spec.path, stdout, stderr, spec.settings.inject_delay)
        results = _collect(spec, outputs, finished)
    for name in results["files"]:
        output.artifact(name)
    output.record(Tags(spec.run, _tags(finished, spec.inputs) | results["tags"]))
    if reason := _failure(finished, spec, results["errors"]):
        is_memory = finished.end == "memory"
        raise MemoryError(reason) if is_memory else EvenhandError(ErrorCode.CHILD_FAILED, reason)
    if error := results["error"]:
        raise error
    output.metrics({**results["metrics"], **finished.metrics})


def _interrupt_once(_: int, __: object) -> None:
    """Raise at the first signal only: Slurm and the parent both send one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(MAX_END_SECONDS)
    raise KeyboardInterrupt


@contextmanager
def _without_interruption() -> Iterator[None]:
    """Delay SIGTERM, which would leave processes behind."""
    received = list[int]()
    handler = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        for number in received:
            signal.raise_signal(number)


def _collect(spec: AnyCell, outputs: Mapping[str, BinaryIO], finished: Finished) -> dict[str, Any]:
    """Return what a command has printed and reported, as far as a child has read it in time.

    Returns:
        `files` with the ends of the outputs; `errors`, the end of the standard error; `metrics`;
        `error` and `tags` if these cannot be read.
    """
    results: dict[str, Any] = {"files": [], "errors": "", "tags": {}, "error": None}
    rest = spec.inputs["timeout_seconds"] - finished.wall_seconds
    seconds = max(rest, MIN_COLLECTION_SECONDS)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_read, args=(spec, outputs, finished, sender))
    child.start()
    sender.close()
    deadline = time.monotonic() + seconds
    try:
        while True:
            left = None if math.isinf(seconds) else max(0.0, deadline - time.monotonic())
            if not receiver.poll(left):
                raise TimeoutError
            results |= receiver.recv()
    except EOFError:
        child.join()
        if child.exitcode:
            reason = f"what reads its results was ended by code {child.exitcode}"
            results["error"] = EvenhandError(ErrorCode.CHILD_FAILED, reason)
    except TimeoutError:
        reason = f"reading its results took longer than the {seconds:g} s left of its timeout"
        results["tags"] = {"end": "timeout"}
        results["error"] = EvenhandError(ErrorCode.CHILD_FAILED, reason)
    finally:
        child.kill()
        child.join()
    return results


def _read(
    spec: AnyCell, outputs: Mapping[str, BinaryIO], finished: Finished, sender: Connection
) -> None:
    """Send the results of a command, in a child whose time and memory are limited."""
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    memory.bound(memory.allocated(os.getpid()) + COLLECTION_BYTES)
    redact, outcomes = Redaction(spec.inputs["secrets"]), spec.inputs["outcomes"]
    error: EvenhandError
    try:
        printed = {name: reported.read_tail(file, redact) for name, file in outputs.items()}
        files = [name for name, text in printed.items() if text]
        for name in files:
            write_atomically(spec.path / name, printed[name])
        lines = [line.strip() for line in printed[STDERR].splitlines() if line.strip()]
        sender.send({"files": files, "errors": " | ".join(lines[-LAST_LINES:])})
        if finished.exit_code == 0:
            metrics = reported.read_metrics(spec.path / METRICS, redact)
            matches = reported.search(list(outputs.values()), outcomes, redact)
            text = "".join(printed.values())
            sender.send({"metrics": reported.collect(metrics, text, matches, outcomes)})
        return
    except EvenhandError as known:
        error = known
    except MemoryError:
        limit = f"{COLLECTION_BYTES / 2**30:g} GiB of memory"
        error = EvenhandError(ErrorCode.TOO_LARGE, f"its results take more than {limit} to read")
    except OSError as problem:
        error = EvenhandError(ErrorCode.UNWRITABLE, f"its results cannot be written: {problem}")
    sender.send({"error": error})


def execute(
    inputs: Mapping[str, Any],
    folder: Path,
    stdout: BinaryIO,
    stderr: BinaryIO,
    delay: float = 0.0,
) -> Finished:
    """Run a command to its end, or to its timeout.

    Args:
        inputs: Of the level.
        folder: For its metrics.
        stdout: File of its output.
        stderr: File of its standard error.
        delay: Share by which it is made longer, for a control.
    """
    process_tree.adopt_orphans()
    kills_before, environment = memory.kernel_kills(), environment_of(inputs, folder)
    sampler, before = MemorySampler(), resource.getrusage(resource.RUSAGE_CHILDREN)
    left = list[str]()
    try:
        began = time.perf_counter()
        process = subprocess.Popen(
            [SHELL, "-c", inputs["command"]],
            cwd=inputs["cwd"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )  # without a preexec_fn, which would copy this process: milliseconds of the wall time
        sampler.start()
        is_over = _wait(process.pid, inputs["timeout_seconds"])
        timing.inject_delay(began, delay)
        wall_seconds = time.perf_counter() - began
        if is_over:
            process.wait()
            left = process_tree.wait_for_rest(REST_SECONDS)
    finally:
        with _without_interruption():
            process_tree.end()
    peak_bytes, usage = sampler.stop(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return Finished(
        exit_code=process.returncode if is_over else None,
        wall_seconds=wall_seconds,
        user_seconds=usage.ru_utime - before.ru_utime,
        system_seconds=usage.ru_stime - before.ru_stime,
        peak_bytes=peak_bytes,
        memory_method=sampler.method,
        left=left,
        kernel_killed=memory.kernel_kills() > kills_before,
    )


def environment_of(inputs: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the variables of a command: the user's own, without those that evenhand needs."""
    defaults = mlflow_defaults.VARIABLES
    variables = {name: text for name, text in os.environ.items() if defaults.get(name) != text}
    path = variables.pop("PYTHONPATH", "").split(os.pathsep)
    if path[0] == str(provenance.ROOT):  # the parent puts it there
        del path[0]
    if any(path):
        variables["PYTHONPATH"] = os.pathsep.join(path)
    changes = {**inputs["variables"], METRICS_VARIABLE: str(folder / METRICS)}
    return devices.changed(variables, changes)


def _wait(pid: int, timeout_seconds: float) -> bool:
    """Wait for a process to end. Return False if it runs longer."""
    descriptor = os.pidfd_open(pid)
    try:
        limit = None if math.isinf(timeout_seconds) else timeout_seconds
        return bool(select.select([descriptor], [], [], limit)[0])
    finally:
        os.close(descriptor)


def _tags(finished: Finished, inputs: Mapping[str, Any]) -> dict[str, str]:
    tags = {"memory.method": finished.memory_method, "cwd": inputs["cwd"], "end": finished.end}
    if finished.exit_code is not None:
        tags["exit_code"] = str(finished.exit_code)
    if not finished.peak_bytes:
        tags["not_available.memory/peak_tree_bytes"] = "the command ended before the first sample"
    if finished.left:
        tags[OUTLIVED] = process_tree.describe(finished.left)
    return tags


def _failure(finished: Finished, spec: AnyCell, errors: str) -> str:
    """Return why the command failed, with the end of its standard error; empty if it did not."""
    if finished.exit_code == 0:
        return ""
    reason = {
        "timeout": f"it ran past its timeout of {spec.inputs['timeout_seconds']:g} s",
        "memory": "the kernel killed it for memory",
        "signal": f"it was killed by {finished.signal_name}",
        "exit": f"it ended with code {finished.exit_code}",
    }[finished.end]
    end = plain.line(errors)[-600:]
    return f"{reason}: {end}" if end else reason
