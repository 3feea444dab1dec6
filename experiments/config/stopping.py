"""Signals that end this process: raised if nothing is lost, remembered while a run is open."""

from __future__ import annotations

import signal

from tracking.errors import ErrorCode, EvenhandError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# `mlflow run` sends a second signal after the user's; more than three end the process at once.
PATIENCE = 3


class Interrupted(EvenhandError):
    """Stop by the user or the system. command: continues the work, for a shell."""

    def __init__(self, text: str, command: str) -> None:
        super().__init__(ErrorCode.INTERRUPTED, text)
        self.command = command


class Stop:
    """Signals of this process. number: the first one, or 0."""

    def __init__(self) -> None:
        self.number = 0
        self._count = 0
        self._held = False

    @property
    def name(self) -> str:
        return signal.Signals(self.number or signal.SIGINT).name

    def watch(self) -> None:
        """Raise KeyboardInterrupt at the first signal, unless held; ignored signals stay so."""
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._receive)

    def hold(self) -> None:
        """Only remember signals from now on: `number` is read before each further step."""
        self._held = True

    def release(self) -> None:
        self._held = False

    def _receive(self, number: int, _: object) -> None:
        self.number = self.number or number
        self._count += 1
        if self._count > PATIENCE or (self._count == 1 and not self._held):
            raise KeyboardInterrupt


STOP = Stop()
