"""Processes of the acceptance kit, each with one framework, as in a campaign."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from experiments.cell.lifetime import die_with_parent
from experiments.config import devices
from tracking.errors import ErrorCode, EvenhandError

LIMIT_SECONDS = 300.0
END_SECONDS = 20.0
SPAWN = multiprocessing.get_context("spawn")


class ProbeError(EvenhandError):
    """Failure of a probe's process."""


def probe(
    name: str, environment: Mapping[str, str] | None = None, **options: Any
) -> dict[str, Any]:
    """Run a function of `experiments.selftest.probes` in a process and return its result.

    Raises:
        ProbeError: if it fails, or has no result in time.
    """
    with running(name, environment, **options) as (_, result):
        values: dict[str, Any] = result
        return values


@contextmanager
def running(
    name: str, environment: Mapping[str, str] | None = None, **options: Any
) -> Iterator[tuple[int | None, Any]]:
    """Run a probe, and yield its process id and its first message.

    The probe's end of the pipe is closed when the context is left; then it has 20 s to end.

    Raises:
        ProbeError: if it fails, or sends nothing in time.
    """
    variables = devices.environment_on(options.get("device", "cuda"), os.environ)
    ours, theirs = SPAWN.Pipe()
    arguments = (theirs, variables | dict(environment or {}), name, options)
    process = SPAWN.Process(target=_run_probe, args=arguments)
    process.start()
    theirs.close()
    try:
        if not ours.poll(LIMIT_SECONDS):
            raise ProbeError(
                ErrorCode.CHILD_FAILED,
                f"{name}: no result after {LIMIT_SECONDS:.0f} s",
            )
        message = ours.recv()
        if isinstance(message, ProbeError):
            raise message
        yield process.pid, message
    except EOFError:
        process.join(END_SECONDS)
        raise ProbeError(
            ErrorCode.CHILD_FAILED,
            f"{name} {options}: exit code {process.exitcode} without a result",
        ) from None
    finally:
        ours.close()
        process.join(END_SECONDS)
        process.kill()


def _run_probe(
    pipe: Connection, environment: Mapping[str, str], name: str, options: Mapping[str, Any]
) -> None:
    """Send a probe's result, or its error. Output of libraries is discarded."""
    die_with_parent(signal.SIGKILL)
    os.environ.clear()
    os.environ.update(environment)
    discarded = os.open(os.devnull, os.O_WRONLY)
    os.dup2(discarded, 1)
    os.dup2(discarded, 2)
    try:
        from experiments.selftest import probes

        pipe.send(getattr(probes, name)(pipe, **options))
    except Exception as error:
        text = f"{name} {options}: {type(error).__name__}: {error}"
        pipe.send(ProbeError(ErrorCode.CHILD_FAILED, text))
