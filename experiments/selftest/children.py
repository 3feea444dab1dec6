"""Processes of the acceptance kit, each with one framework, as in a campaign."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.config import devices
from tracking.errors import EvenhandError

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 300.0
END_SECONDS = 20.0
LINES_OF_AN_ERROR = 3


class ProbeError(EvenhandError):
    """Failure of a probe's process."""


def probe(
    name: str, environment: Mapping[str, str] | None = None, **options: Any
) -> dict[str, Any]:
    """Run a function of `experiments.selftest.probes` in a process and return its result.

    Raises:
        ProbeError: with the last lines of its log.
    """
    variables = _environment(options.get("device", "cuda")) | dict(environment or {})
    stdout = _run(_command(name, options), variables, f"{name} {options}")
    result: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
    return result


@contextmanager
def running(name: str, **options: Any) -> Iterator[int]:
    """Run a probe during the block, from when it is ready, and yield its process id.

    Raises:
        ProbeError: if it ends before it is ready.
    """
    process = subprocess.Popen(
        _command(name, options),
        env=_environment(options.get("device", "cuda")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise ProbeError(f"{name}: exit code {process.wait()} before it was ready")
        yield process.pid
    finally:
        process.stdin.close()  # it runs until then
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def run_module(*arguments: str, device: str) -> None:
    """Run `python -m …` with the environment of a cell on this device.

    Raises:
        ProbeError: with the last lines of its log.
    """
    _run([sys.executable, "-P", "-m", *arguments], _environment(device), arguments[0])


def _run(command: Sequence[str], environment: Mapping[str, str], label: str) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ProbeError(f"{label}: no result after {LIMIT_SECONDS:.0f} s") from None
    if done.returncode:
        last_lines = done.stderr.strip().splitlines()[-LINES_OF_AN_ERROR:]
        raise ProbeError(
            f"{label}: exit code {done.returncode}: {' | '.join(last_lines) or 'no message'}"
        )
    return done.stdout


def _command(name: str, options: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-P", "-m", "experiments.selftest", name, json.dumps(options)]


def _environment(device: str) -> dict[str, str]:
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    return devices.environment_on(device, os.environ) | {"PYTHONPATH": os.pathsep.join(paths)}
