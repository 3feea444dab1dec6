"""Signals that ask this process to end: raised where nothing is lost, remembered where a run is open that must end in order."""

from __future__ import annotations

import signal

from tracking.errors import EvenhandError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# `mlflow run` sends a second one after the user's own; who asks more often than this does not want to wait.
PATIENCE = 3


class Interrupted(EvenhandError):
    """The user or the system asked to stop. command: what continues the work, as a shell takes it."""

    def __init__(self, text: str, command: str) -> None:
        super().__init__(text)
        self.command = command


class Stop:
    """The signals of this process. `number`: the first that came, 0 before."""

    def __init__(self) -> None:
        self.number = 0
        self._count = 0
        self._held = False

    @property
    def name(self) -> str:
        return signal.Signals(self.number or signal.SIGINT).name

    def watch(self) -> None:
        """From here on the first signal raises KeyboardInterrupt unless it is held. What is ignored, as by nohup, stays so."""
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._came)

    def hold(self) -> None:
        """From here on signals are remembered alone: whoever opens a run asks `number` before each of its next steps."""
        self._held = True

    def release(self) -> None:
        self._held = False

    def _came(self, number: int, _: object) -> None:
        self.number = self.number or number
        self._count += 1
        if self._count > PATIENCE or (self._count == 1 and not self._held):
            raise KeyboardInterrupt


STOP = Stop()
