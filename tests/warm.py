"""Commands in processes that have imported already what `python -m experiments` imports: for tests that do not test the start.

Python's own fork server holds the imports; each command is a fresh fork of it with arguments, environment, folder and output of
its own. What the command itself starts (cells, servers) it starts as ever, but for cells and proofs where `forks` are asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.warm_imports"])


@cache
def _start() -> None:
    """Python's fork server takes its path from the environment alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])))
        forkserver.ensure_running()


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float = 300, *, forks: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS` to its end. forks: the address of `tests.forks`. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory() as place:
        output, errors = Path(place, "stdout"), Path(place, "stderr")
        process = Process(command, environment, folder, output, errors, forks)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())


class Process:
    """`python -m MODULE ARGUMENTS` at work, as `subprocess.Popen` tells of it. What it says goes to files."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: Path,
        errors: Path | None = None,
        forks: str = "",
    ) -> None:
        _start()
        self._command, self._output = command, output
        self._process = _SERVER.Process(
            target=_run, args=(command[2:], dict(environment), folder, forks, output, errors or output)
        )
        self._process.start()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._command, timeout or 0, self.said)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.wait(timeout)
        return self.said, None

    @property
    def said(self) -> str:
        """Until now."""
        return self._output.read_text() if self._output.exists() else ""

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: Sequence[str], environment: dict[str, str], folder: Path, forks: str, *outputs: Path) -> None:
    from tests.warm_imports import SET_BY_IMPORTS

    module, *sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update({**SET_BY_IMPORTS, **environment})
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has Ctrl-C ignored
    sys.path += [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in sys.path]
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    if forks:
        from tests.forks import use

        use(forks)
    sys.modules.pop(f"{module}.__main__", None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
