"""Run of a command: its wall time, CPU time, memory and exit, with all that it started."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cell import timing
from experiments.cell.lifetime import die_with_parent
from experiments.config import devices, memory
from experiments.config.race_file import masked
from experiments.contract import OUTLIVED, CellSpec, Output
from experiments.workloads.command import leftovers, process_tree, reported
from experiments.workloads.command.leftovers import GRACE_SECONDS, METRICS_VARIABLE
from experiments.workloads.command.process_tree import MemorySampler, Usage
from tracking import clock, mlflow_defaults, plain, provenance
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import Tags

SHELL = "/bin/sh"
STDOUT, STDERR, METRICS = "stdout.txt", "stderr.txt", "metrics.jsonl"
# Time for helpers of a command that has ended.
REST_SECONDS = 0.5
SWITCH_SECONDS = 0.0005  # the thread that samples must not hold up the clock
LAST_LINES, TAIL_BYTES = 5, 2**20


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


def run(spec: CellSpec, _: object, output: Output) -> None:
    """Run the command once, and report what it took and what it printed."""
    die_with_parent(signal.SIGTERM)  # to end the command first
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command inherits what a cell ignores
    signal.signal(signal.SIGTERM, _interrupt_once)
    # Slurm announces the end of a job to all of its processes; the cell is then ended by its parent
    signal.signal(signal.SIGUSR2, lambda *_: None)
    sys.setswitchinterval(SWITCH_SECONDS)
    spec.path.mkdir(parents=True, exist_ok=True)
    output.progress(spec.inputs["name"], 0, None)
    output.begin()
    began = clock.now()
    secrets, outcomes = spec.inputs["secrets"], spec.inputs["outcomes"]
    outputs = [spec.path / name for name in (STDERR, STDOUT)]
    matches = dict[str, tuple[int, float]]()
    try:
        finished = execute(spec.inputs, spec.path, spec.settings["inject_delay"])
        output.window("command", began, clock.now(), 0)
        if finished.exit_code == 0:  # before the files are cut
            matches = reported.search(outputs, outcomes, secrets)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it would leave secrets in the files
        printed = {path.name: _mask_file(path, secrets) for path in outputs if path.exists()}
    for name, text in printed.items():
        if text:
            output.artifact(name)
    output.record(Tags(spec.run, _tags(finished, spec.inputs)))
    if reason := _failure(finished, spec):
        is_memory = finished.end == "memory"
        raise MemoryError(reason) if is_memory else EvenhandError(ErrorCode.CHILD_FAILED, reason)
    text = "".join(printed.values())
    metrics = reported.collect(spec.path / METRICS, text, matches, outcomes)
    output.metrics({**metrics, **finished.metrics})


def _interrupt_once(_: int, __: object) -> None:
    """Raise at the first signal only: Slurm and the parent both send one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def execute(inputs: Mapping[str, Any], folder: Path, delay: float = 0.0) -> Finished:
    """Run a command to its end, or to its timeout.

    Args:
        inputs: Of the level.
        folder: For its output.
        delay: Share by which it is made longer, for a control.
    """
    process_tree.adopt_orphans()
    kills_before, environment = memory.kernel_kills(), environment_of(inputs, folder)
    sampler, before = MemorySampler(), Usage.of_children()
    left = list[str]()
    try:
        with (folder / STDOUT).open("wb") as stdout, (folder / STDERR).open("wb") as stderr:
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
        handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it would leave processes behind
        process_tree.end(GRACE_SECONDS)
        signal.signal(signal.SIGTERM, handler)
    peak_bytes, usage = sampler.stop(), Usage.of_children()
    return Finished(
        exit_code=process.returncode if is_over else None,
        wall_seconds=wall_seconds,
        user_seconds=usage.user_seconds - before.user_seconds,
        system_seconds=usage.system_seconds - before.system_seconds,
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
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            limit = None if math.isinf(timeout_seconds) else timeout_seconds
            return bool(selector.select(limit))
    finally:
        os.close(descriptor)


def _mask_file(path: Path, secrets: Sequence[str]) -> str:
    """Keep the end of a file, with secrets masked, and return it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = masked(file.read().decode(errors="replace"), secrets)
    path.write_text(text)
    return text


def _tags(finished: Finished, inputs: Mapping[str, Any]) -> dict[str, str]:
    tags = {"memory.method": finished.memory_method, "cwd": inputs["cwd"], "end": finished.end}
    if finished.exit_code is not None:
        tags["exit_code"] = str(finished.exit_code)
    if not finished.peak_bytes:
        tags["not_available.memory/peak_tree_bytes"] = "the command ended before the first sample"
    if finished.left:
        tags[OUTLIVED] = leftovers.describe(finished.left)
    return tags


def _failure(finished: Finished, spec: CellSpec) -> str:
    """Return why the command failed, with the end of its standard error; empty if it did not."""
    if finished.exit_code == 0:
        return ""
    reason = {
        "timeout": f"it ran past its timeout of {spec.inputs['timeout_seconds']:g} s",
        "memory": "the kernel killed it for memory",
        "signal": f"it was killed by {finished.signal_name}",
        "exit": f"it ended with code {finished.exit_code}",
    }[finished.end]
    lines = (spec.path / STDERR).read_text().splitlines()
    end = plain.line(reported.tail(lines, LAST_LINES))[-600:]
    return f"{reason}: {end}" if end else reason
