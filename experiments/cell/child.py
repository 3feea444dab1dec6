"""Child process that exchanges lines with its parent and is suspended, resumed and ended."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 5.0
DRAIN_SECONDS = 0.02
LINES_OF_AN_ERROR, BYTES_OF_AN_ERROR = 40, 2**16


class Child:
    """Process whose standard error goes to a file.

    Args:
        command: Program and arguments.
        log: File of the standard error.
        environment: Variables of the process; None: those of this one.
        own_session: Whether signals are sent to all of its processes, and Ctrl-C reaches only
            this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        own_session: bool = True,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log, self._own_session = log, own_session
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ if environment is None else environment,
                start_new_session=own_session,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.open = True
        self._input, self._output, self._buffer = self._process.stdin, self._process.stdout, b""
        os.set_blocking(self._output.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    def send(self, line: str) -> None:
        """Send a line, or nothing if the process has ended."""
        with suppress(BrokenPipeError):
            self._input.write(line.encode() + b"\n")
            self._input.flush()

    def close_input(self) -> None:
        with suppress(BrokenPipeError):
            self._input.close()

    def receive(self, timeout_seconds: float) -> list[str]:
        """Return new lines as soon as there are any; `open` turns False after the last."""
        if not self.open or not self._selector.select(timeout_seconds):
            return []
        data = self._output.read()
        if data == b"":
            self.open = False
        *lines, self._buffer = (self._buffer + (data or b"")).split(b"\n")
        return [line.decode() for line in lines]

    def suspend(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Ask the process to end, wait, then kill it. Its last lines can still be received."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self.signal(number)
                self.resume()  # a suspended process gets no other signal
            deadline = time.monotonic() + grace_seconds
            while time.monotonic() < deadline:
                # empty the pipe: a process that waits for space in it could not end
                if self.open and self._selector.select(0):
                    self._buffer += self._output.read() or b""
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(DRAIN_SECONDS)
                    return

    def signal(self, number: int) -> None:
        """Send a signal to the process, or to all of its session."""
        with suppress(ProcessLookupError):
            (os.killpg if self._own_session else os.kill)(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit status, below 0 for a signal; None while the process runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for the process to end, close all pipes, and return the exit status."""
        code = self._process.wait()
        self._selector.close()
        self._output.close()
        self.close_input()
        return code

    def last_lines(self) -> list[str]:
        """Return the end of the standard error."""
        text = ""
        with suppress(OSError), self._log.open("rb") as file:  # the process may have changed it
            file.seek(max(0, file.seek(0, os.SEEK_END) - BYTES_OF_AN_ERROR))
            text = file.read().decode(errors="replace")
        return text.strip().splitlines()[-LINES_OF_AN_ERROR:] or ["no output"]
