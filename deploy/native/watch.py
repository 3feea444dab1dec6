"""The server in the foreground, as systemd and other supervisors want it: it says when it is ready, and ends when it is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

CHECK_SECONDS, CHECKS = 10.0, 3
CHECKS_A_WATCHDOG = 6


class Ended(BaseException):
    """Raised when somebody asks the server to end."""


@dataclass(frozen=True)
class Manager:
    """The service manager (sd_notify), where there is one."""

    address: str
    watchdog_seconds: float

    @classmethod
    def of_this_process(cls) -> Manager:
        """Takes the address out of the environment: server and database are not to answer for this process."""
        seconds = int(os.environ.pop("WATCHDOG_USEC", "0") or 0) / 1e6
        return cls(os.environ.pop("NOTIFY_SOCKET", ""), seconds)

    @property
    def check_seconds(self) -> float:
        """Often enough for a watchdog, which ends what it does not hear from."""
        return min(CHECK_SECONDS, self.watchdog_seconds / CHECKS_A_WATCHDOG or CHECK_SECONDS)

    def tell(self, text: str) -> None:
        if self.address:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
                told.sendto(
                    text.encode(),
                    f"\0{self.address[1:]}" if self.address.startswith("@") else self.address,
                )


@contextmanager
def until_asked(manager: Manager) -> Iterator[None]:
    """SIGTERM and SIGINT end the block, and are then not heard any more: what follows is the end."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        signal.signal(number, _end)
    try:
        yield
    except Ended:
        pass
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        manager.tell("STOPPING=1")


def watch(process: subprocess.Popen[bytes], check: Callable[[], str], manager: Manager) -> str:
    """Returns why it is over: the server's process has ended, or what `check` has said three times in a row."""
    manager.tell("READY=1\nSTATUS=ready")
    failed = 0
    while failed < CHECKS:
        try:
            return (
                f"the server's main process ended with code {process.wait(manager.check_seconds)}"
            )
        except subprocess.TimeoutExpired:
            reason = check()
        failed = failed + 1 if reason else 0
        manager.tell(f"STATUS=not ready: {reason}" if reason else "WATCHDOG=1\nSTATUS=ready")
        if reason:
            print(f"evenhand server: not ready: {reason}", file=sys.stderr, flush=True)
    return f"not ready for {CHECKS} checks"


def _end(_: int, __: FrameType | None) -> None:
    raise Ended
