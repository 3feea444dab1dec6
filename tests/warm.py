"""Commands in forks of a process that has imported what `python -m experiments` imports: for tests that do not test the start.

What the command itself starts (cells, servers) it starts as ever, but for cells and proofs where `share` is asked for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import forks


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float = 300, *, share: bool = False
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS` to its end. share: its cells and proofs are forks too. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory() as place:
        output, errors = Path(place, "stdout"), Path(place, "stderr")
        process = Process(command, environment, folder, output, errors, share=share)
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
        *,
        share: bool = False,
    ) -> None:
        self._command, self._output = command, output
        arguments = [*(("-m", "tests.sharing", forks.server()) if share else ()), *command[1:]]
        with open(os.devnull) as nothing, output.open("ab") as out, (errors or output).open("ab") as err:
            files = nothing.fileno(), out.fileno(), err.fileno()
            self._fork = forks.Fork(forks.server(), forks.COMMANDS, arguments, environment, folder, files)
        self.pid = self._fork.pid

    @property
    def returncode(self) -> int | None:
        return self._fork.poll()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._fork.wait(timeout)
        except subprocess.TimeoutExpired:
            raise subprocess.TimeoutExpired(self._command, timeout or 0, self.said) from None

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
