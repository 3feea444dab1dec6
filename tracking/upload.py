"""Upload of a journal in a separate thread: a slow server never delays a measurement."""

from __future__ import annotations

import contextlib
import math
import threading
import time

from tracking import journal
from tracking.journal import Damages, Journal
from tracking.reader import Rejected
from tracking.records import Record
from tracking.store import Store
from tracking.whereabouts import HEARTBEAT_SECONDS

IDLE_SECONDS = 1.0
# While a cell is timed: sending takes CPU time of the same machine.
SPARING_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 30.0
PATIENCE_SECONDS = 15.0


class BufferedUploader:
    """Stand-in for an uploader where another process collects the journal and delivers it."""

    refused: tuple[str, ...] = ()
    trouble = ""
    undelivered = 0
    up_to_date, stuck, sparing = True, False, False

    def __init__(self) -> None:
        self.damaged: Damages = {}

    def start(self) -> None: ...

    def wake(self) -> None: ...

    def finish(self, timeout_seconds: float) -> bool:  # noqa: ARG002
        return True


class Uploader(threading.Thread):
    """Reader of the journal that sends what is new. The journal is the buffer: memory is bounded.

    After each delivery the offset is saved on disk. Sending a record twice changes nothing, so a
    crash in between is harmless.

    Attributes:
        sparing: Whether it sends seldom, because something is being timed on this machine.
        refused: Records that the server did not take, one line each.
        damaged: Lines of the journal that were set aside.
        trouble: Reason for which records wait.
    """

    def __init__(self, records: Journal, store: Store, campaign_run_id: str) -> None:
        super().__init__(name="uploader", daemon=True)
        self._journal = records
        self._store = store
        self._run_id = campaign_run_id
        self._offset = journal.delivered(records.folder, store.uri)
        self._knows_runs = self._offset == 0
        self._finish = threading.Event()
        self._wake = threading.Event()
        self._next_beat = 0.0
        self._call_began = math.inf
        self._sent_waiting: list[Record] = []
        self.sparing = False
        self.refused: list[str] = []
        self.damaged: Damages = {}
        self.trouble = ""

    def run(self) -> None:
        pause = IDLE_SECONDS
        while True:
            is_last = self._finish.is_set()
            try:
                while self._deliver():
                    pass
                self.trouble, pause = "", IDLE_SECONDS
            except Exception as error:  # the thread must outlive any error of MLflow
                self.trouble = str(error) or type(error).__name__
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self._call_began = math.inf
            if is_last:
                return
            self._wake.wait(max(pause, SPARING_SECONDS) if self.sparing else pause)
            self._wake.clear()

    def finish(self, timeout_seconds: float) -> bool:
        """Deliver the rest. Return False if the server did not take it all."""
        self._finish.set()
        self._wake.set()
        self.join(timeout_seconds)
        return not self.is_alive() and not self.trouble and self.up_to_date

    def wake(self) -> None:
        """Deliver now, instead of within a second."""
        self._wake.set()

    @property
    def stuck(self) -> bool:
        """True if the server failed, or does not answer for long."""
        silent_seconds = time.monotonic() - self._call_began
        return bool(self.trouble) or not self.is_alive() or silent_seconds > PATIENCE_SECONDS

    @property
    def up_to_date(self) -> bool:
        """True if the server has all records that were written so far."""
        return self._offset == self._journal.size and self._sent_waiting == self._journal.waiting()

    @property
    def undelivered(self) -> int:
        """Number of records that the server has not been sent."""
        return journal.count(self._journal.folder, self._offset) + len(self._journal.waiting())

    def _deliver(self) -> bool:
        """Send some records. Return whether there may be more."""
        folder = self._journal.folder
        self._call_began = time.monotonic()
        if self._call_began >= self._next_beat and not self._finish.is_set():
            with contextlib.suppress(Rejected):  # the campaign's run was deleted
                self._store.beat(self._run_id)
            self._next_beat = self._call_began + HEARTBEAT_SECONDS
        if not self._knows_runs:
            self._store.expect(
                journal.opened_runs(folder, self.damaged), journal.experiment(folder)
            )
            self._knows_runs = True
        records, offset = journal.read(folder, self._offset, damaged=self.damaged)
        if offset != self._offset:
            self.refused += self._store.apply(records, folder)
            self._offset = offset
            with contextlib.suppress(OSError):  # a full disk: these are sent again, harmlessly
                journal.mark_delivered(folder, offset, self._store.uri)
            return True
        waiting = self._journal.waiting()
        if waiting != self._sent_waiting:
            self.refused += self._store.apply(waiting, folder)
            self._sent_waiting = waiting
        return False
