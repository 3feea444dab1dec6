"""Campaigns that are started, killed and resumed, one after the other, as by users."""

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
from tests.faults.test_campaign import cell_process
from tracking import journal

FINISHED = (0, 3)  # with a verdict, or without one
BLOCKS = 3


class Writer(threading.Thread):
    """Thread that runs campaigns in its place; each is resumed until it ends well."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.finished: set[Path] = set()
        self.codes: Counter[int] = Counter()
        self.complaints: list[str] = []
        self.no_more = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        while True:
            unfinished = self.folders - self.finished
            if not unfinished and self.finished and self.no_more.is_set():
                return
            self._process = subprocess.Popen(
                self._command(min(unfinished) if unfinished else None),
                env=self.place.environment,
                cwd=self.place.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            output, _ = self._process.communicate()
            code = self._process.returncode
            self.codes[code] += 1
            if "Traceback" in output:
                self.complaints.append(output)
            if code in FINISHED:
                self.finished |= {min(unfinished)} if unfinished else self.folders
            elif code != -signal.SIGKILL:
                time.sleep(1.0)

    def stop(self) -> None:
        """Kill the running campaign and start no other, for a test that fails."""
        self.no_more.set()
        self.finished = self.folders | {Path()}
        if parent := self.parent():
            parent.kill()
        self.join(10)

    @property
    def folders(self) -> set[Path]:
        return set(journal.campaigns(self.place.journal)) if self.place.journal.exists() else set()

    def parent(self) -> psutil.Process | None:
        """Return the campaign's process, if one runs."""
        if not self._process or self._process.poll() is not None:
            return None
        try:
            return psutil.Process(self._process.pid)
        except psutil.NoSuchProcess:
            return None

    def child(self) -> psutil.Process | None:
        """Return the process of a cell, if one runs."""
        try:
            parent = self.parent()
            return cell_process(parent) if parent else None
        except psutil.Error:
            return None

    def _command(self, unfinished: Path | None) -> list[str]:
        place = self.place
        if not unfinished:
            settings = {"frameworks": "pytorch", "epochs": "3", "save_model": "first"}
            return place.command("captioning", **settings, blocks=str(BLOCKS))
        options = [f"--cache={place.cache}", f"--journal={place.journal}"]
        resume = f"--resume={unfinished.name}"
        return [sys.executable, "-m", "experiments", "captioning", *options, resume]
