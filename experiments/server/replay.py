"""The records of journals, sent to a tracking server; sending them twice changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.config import shell
from experiments.config.console import PlainConsole, track
from tracking import journal
from tracking.errors import WrongCall
from tracking.journal import Damages
from tracking.store import Store, Unreachable


@dataclass
class ReplayResult:
    """Result of one journal. waiting: number of records that were not sent, because of `trouble`."""

    refused: list[str] = field(default_factory=list)
    damaged: Damages = field(default_factory=dict)
    waiting: int = 0
    trouble: str = ""


def replay(folder: Path) -> bool:
    """Send a journal, or those of a folder, and return whether everything is on the server then.

    Raises:
        WrongCall: There is no journal, or no server.
    """
    folders = _journals(folder)
    if not folders:
        right = "give journal=DIR, a campaign's folder or one that holds several"
        raise WrongCall(f"no journal in {folder.resolve()}; {right}")
    store, console = Store(), PlainConsole()
    store.check()
    results: list[ReplayResult] = []
    for path in track(folders, "replay", console=console, transient=True):
        away = next((result.trouble for result in results if result.waiting), "")
        results.append(_send(store, path, away))
    lines = _lines(results, folder, store.uri)
    for line in lines:
        console.print(f"! {line}", markup=False)
    sent, plural = sum(not result.trouble for result in results), "s" if len(folders) != 1 else ""
    console.print(f"{sent} of {len(folders)} journal{plural} sent to {store.uri}", markup=False)
    return not lines


def _journals(folder: Path) -> list[Path]:
    try:
        if (folder / journal.RECORDS).exists():
            return [folder]
        return [path.parent for path in sorted(folder.glob(f"*/{journal.RECORDS}"))]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise WrongCall(f"journal={folder} cannot be read: {reason}; give another folder") from None


def _send(store: Store, folder: Path, away: str) -> ReplayResult:
    """Send all that is intact in a journal. away: why the server is not asked any more, if so."""
    result, offset = ReplayResult(), 0
    try:
        if away:
            return ReplayResult(waiting=journal.count(folder), trouble=away)
        store.expect(journal.opened(folder, result.damaged), journal.experiment(folder))
        while True:
            records, after = journal.read(folder, offset)
            result.refused += store.apply(records, folder)
            if after == offset:
                break
            offset = after
        result.refused += store.apply(journal.tail(folder, offset), folder)
        with contextlib.suppress(OSError):  # a journal that may be read only
            journal.mark_delivered(folder, offset, store.uri)
    except Unreachable as error:
        result.waiting, result.trouble = journal.count(folder, offset), str(error)
    except WrongCall as error:
        result.trouble = str(error)
    except OSError as error:
        result.trouble = f"{error.filename or folder} cannot be read: {error.strerror}"
    return result


def _lines(results: Sequence[ReplayResult], folder: Path, uri: str) -> list[str]:
    """Return the lines of the summary that is printed."""
    damaged = [str(damage) for result in results for damage in result.damaged.values()]
    refused = [f"refused: {line}" for result in results for line in result.refused]
    lines = journal.named(damaged) + journal.named(refused)
    lines += [result.trouble for result in results if result.trouble and not result.waiting]
    again = shell.command("replay", "--journal", str(folder))
    if waiting := sum(result.waiting for result in results):
        reason = next(result.trouble for result in results if result.waiting)
        lines.append(f"{waiting:,} records wait: {uri}: {reason}; send them when it can: {again}")
    elif refused:
        lines.append(f"what was refused stays in the journal; send it again: {again}")
    return lines
