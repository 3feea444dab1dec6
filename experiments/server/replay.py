"""What a journal holds, sent to a tracking server: after it was away, or to another one. Doing it twice changes nothing."""

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
class Told:
    """What happened to one journal. waiting: records that were not sent, because of `trouble`."""

    refused: list[str] = field(default_factory=list)
    damaged: Damages = field(default_factory=dict)
    waiting: int = 0
    trouble: str = ""


def replay(folder: Path) -> bool:
    """`folder`: one campaign's journal or a folder of several. Raises WrongCall.

    False if anything of it is not on the server then: refused, damaged, or waiting because the server is away.
    """
    folders = _journals(folder)
    if not folders:
        raise WrongCall(f"no journal in {folder.resolve()}; give journal=DIR, a campaign's folder or one that holds several")
    store, console = Store(), PlainConsole()
    store.check()
    told: list[Told] = []
    for one in track(folders, "replay", console=console, transient=True):
        told.append(_send(store, one, away=next((before.trouble for before in told if before.waiting), "")))
    lines = _lines(told, folder, store.uri)
    for line in lines:
        console.print(f"! {line}", markup=False)
    sent = sum(not one.trouble for one in told)
    console.print(f"{sent} of {len(folders)} journal{'s' if len(folders) != 1 else ''} sent to {store.uri}", markup=False)
    return not lines


def _journals(folder: Path) -> list[Path]:
    try:
        own = (folder / journal.RECORDS).exists()
        return [folder] if own else [path.parent for path in sorted(folder.glob(f"*/{journal.RECORDS}"))]
    except (OSError, ValueError) as error:
        raise WrongCall(f"journal={folder} cannot be read: {getattr(error, 'strerror', error)}; give another folder") from None


def _send(store: Store, folder: Path, away: str) -> Told:
    """All that is intact in a journal. away: why the server is not asked any more, if it is not."""
    told, offset = Told(), 0
    try:
        if away:
            return Told(waiting=journal.count(folder), trouble=away)
        runs = journal.opened(folder, told.damaged)
        store.expect(runs, journal.experiment(folder))
        while True:
            records, after = journal.read(folder, offset)
            told.refused += store.apply(records, folder)
            if after == offset:
                break
            offset = after
        told.refused += store.apply(journal.tail(folder, offset), folder)
    except Unreachable as error:
        return Told(told.refused, told.damaged, journal.count(folder, offset), str(error))
    except WrongCall as error:
        told.trouble = str(error)
        return told
    except OSError as error:
        told.trouble = f"{error.filename or folder} cannot be read: {error.strerror}"
        return told
    with contextlib.suppress(OSError):  # a journal that may be read only
        journal.mark_delivered(folder, offset, store.uri)
    return told


def _lines(told: Sequence[Told], folder: Path, uri: str) -> list[str]:
    """Lines of the summary that is printed."""
    damaged = [str(line) for one in told for line in one.damaged.values()]
    refused = [line for one in told for line in one.refused]
    lines = journal.named(damaged) + journal.named([f"refused: {line}" for line in refused])
    lines += [one.trouble for one in told if one.trouble and not one.waiting]
    again = shell.command("replay", "--journal", str(folder))
    if waiting := sum(one.waiting for one in told):
        reason = next(one.trouble for one in told if one.waiting)
        lines.append(f"{waiting:,} records wait: {uri}: {reason}; send them when it can: {again}")
    elif refused:
        lines.append(f"what was refused stays in the journal; send it again: {again}")
    return lines
