"""Campaigns that are begun, killed and resumed, one after the other, as their users would do it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.conftest import Place
from tracking import journal

FINISHED = (0, 3)  # with a verdict, or without one
BLOCKS = 3


class Writer(threading.Thread):
    """Runs campaigns in a place of its own, one at least, until it shall begin no more; each is resumed until it ends well."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.finished: set[Path] = set()
        self.codes: Counter[int] = Counter()
        self.complaints: list[str] = []
        self.no_more = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        while (unfinished := self.folders - self.finished) or not (
            self.finished and self.no_more.is_set()
        ):
            command = self._resume(min(unfinished)) if unfinished else self._start()
            environment, folder = self.place.environment, self.place.folder
            pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            self._process = subprocess.Popen(command, env=environment, cwd=folder, **pipe)  # type: ignore[call-overload]
            output, _ = self._process.communicate()
            code = self._process.returncode
            self.codes[code] += 1
            if "Traceback" in output:
                self.complaints.append(output)
            if code in FINISHED:
                self.finished |= self.folders if not unfinished else {min(unfinished)}
            elif code != -signal.SIGKILL:
                time.sleep(1.0)

    def stop(self) -> None:
        """At once, whatever runs; where a test gives up."""
        self.no_more.set()
        self.finished = self.folders | {Path()}
        if parent := self.parent():
            parent.kill()
        self.join(10)

    @property
    def folders(self) -> set[Path]:
        return set(journal.campaigns(self.place.journal)) if self.place.journal.exists() else set()

    def parent(self) -> psutil.Process | None:
        """The campaign's own process, if one runs."""
        try:
            return (
                psutil.Process(self._process.pid)
                if self._process and self._process.poll() is None
                else None
            )
        except psutil.NoSuchProcess:
            return None

    def child(self) -> psutil.Process | None:
        """The process of a cell, if one runs."""
        try:
            children = parent.children() if (parent := self.parent()) else []
            return next((one for one in children if "experiments.cell" in one.cmdline()), None)
        except psutil.Error:
            return None

    def _start(self) -> list[str]:
        return self.place.command(
            "captioning", frameworks="pytorch", epochs="3", blocks=str(BLOCKS)
        )

    def _resume(self, folder: Path) -> list[str]:
        options = [
            f"--cache={self.place.cache}",
            f"--journal={self.place.journal}",
            f"--resume={folder.name}",
        ]
        return [sys.executable, "-m", "experiments", "captioning", *options]
