"""From the journal to the tracking store, in a thread of its own: a slow or dead server never delays a measurement."""

from __future__ import annotations

import contextlib
import math
import threading
import time

from tracking import journal
from tracking.journal import Damages, Journal
from tracking.records import Record
from tracking.store import Rejected, Store
from tracking.whereabouts import HEARTBEAT_SECONDS

IDLE_SECONDS = 1.0
# While a cell is timed: sending takes CPU time of the same machine, and a page that is this much behind is still live.
SPARING_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 30.0
PATIENCE_SECONDS = 15.0


class Collected:
    """In place of an uploader, where another process collects the journal and delivers it: nothing is to be sent from here."""

    refused: tuple[str, ...] = ()
    trouble = doubt = ""
    undelivered = 0
    up_to_date, stuck, sparing = True, False, False

    def __init__(self) -> None:
        self.damaged: Damages = {}

    def start(self) -> None: ...

    def wake(self) -> None: ...

    def finish(self, timeout_seconds: float) -> bool:  # noqa: ARG002
        return True


class Uploader(threading.Thread):
    """Reads the journal behind the writer and applies it; the journal is the buffer, so memory stays bounded.

    After each delivery the offset is kept on disk; sending a record twice changes nothing, so a crash in between is harmless.
    sparing: whether it sends seldom, because something is being timed on this machine.
    refused: what this server did not take, one line each. damaged: lines that were set aside. trouble: why records wait.
    """

    def __init__(self, records: Journal, store: Store, campaign_run_id: str) -> None:
        super().__init__(name="uploader", daemon=True)
        self._journal = records
        self._store = store
        self._run_id = campaign_run_id
        self._offset, self.doubt = journal.delivered(records.folder, store.uri)
        self._knows_runs = self._offset == 0
        self._finish = threading.Event()
        self._wake = threading.Event()
        self._next_beat = 0.0
        self._asked_at = math.inf
        self._sent_waiting: list[Record] = []
        self.sparing = False
        self.refused: list[str] = []
        self.damaged: Damages = {}
        self.trouble = ""

    def run(self) -> None:
        pause = IDLE_SECONDS
        while True:
            finishing = self._finish.is_set()
            self._asked_at = time.monotonic()
            try:
                self._beat()
                more = self._deliver()
                self.trouble, pause = "", IDLE_SECONDS
                if more:
                    continue
            except (
                Exception
            ) as error:  # this thread must outlive whatever MLflow raises: the journal waits for it
                self.trouble = str(error) or type(error).__name__
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self._asked_at = math.inf
            if finishing:
                return
            self._wake.wait(max(pause, SPARING_SECONDS) if self.sparing else pause)
            self._wake.clear()

    def finish(self, timeout_seconds: float) -> bool:
        """Delivers what is left. False if the server did not take it all; the journal still holds it."""
        self._finish.set()
        self._wake.set()
        self.join(timeout_seconds)
        return not self.is_alive() and not self.trouble and self.up_to_date

    def wake(self) -> None:
        """Delivers now what has been written, instead of within a second."""
        self._wake.set()

    @property
    def stuck(self) -> bool:
        """Whether waiting is in vain: the server failed, or takes long to say anything at all."""
        return (
            bool(self.trouble)
            or not self.is_alive()
            or time.monotonic() - self._asked_at > PATIENCE_SECONDS
        )

    @property
    def up_to_date(self) -> bool:
        """Whether the server has all that was written so far."""
        return self._offset == self._journal.size and self._sent_waiting == self._journal.waiting()

    @property
    def undelivered(self) -> int:
        """How many records the server has not been sent."""
        return journal.count(self._journal.folder, self._offset) + len(self._journal.waiting())

    def _deliver(self) -> bool:
        if not self._knows_runs:
            self._store.expect(
                journal.opened(self._journal.folder, self.damaged),
                journal.experiment(self._journal.folder),
            )
            self._knows_runs = True
        records, offset = journal.read(self._journal.folder, self._offset, damaged=self.damaged)
        if offset != self._offset:
            self.refused += self._store.apply(records, self._journal.folder)
            self._offset = offset
            with contextlib.suppress(
                OSError
            ):  # a full disk: the next process sends these again, which changes nothing
                journal.mark_delivered(self._journal.folder, offset, self._store.uri)
            return True
        waiting = self._journal.waiting()
        if waiting != self._sent_waiting:
            self.refused += self._store.apply(waiting, self._journal.folder)
            self._sent_waiting = waiting
        return False

    def _beat(self) -> None:
        if time.monotonic() >= self._next_beat and not self._finish.is_set():
            with contextlib.suppress(Rejected):  # somebody deleted the campaign's run
                self._store.beat(self._run_id)
            self._next_beat = time.monotonic() + HEARTBEAT_SECONDS
