"""Replay of journals into a tracking server, which changes nothing when it is repeated."""

from __future__ import annotations

import contextlib
from pathlib import Path

from experiments.config import shell
from experiments.config.console import Display
from tracking import journal
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Damages
from tracking.reader import Unreachable
from tracking.store import Store


def replay(folder: Path, display: Display) -> bool:
    """Send a journal, or those of a folder. Return whether the server has everything then.

    Raises:
        UsageError: There is no journal, or no server.
    """
    folders = _journals(folder)
    store = Store()
    store.check()
    refused, damaged, troubles = list[str](), list[str](), list[str]()
    sent, waiting, away = 0, 0, ""
    for number, path in enumerate(folders):
        display.step("replay", number, len(folders))
        if away:
            waiting += journal.count(path)
            continue
        offset, set_aside = 0, Damages()
        try:
            store.expect(journal.opened_runs(path, set_aside), journal.experiment(path))
            records, after = journal.read(path)
            while after != offset:
                refused += store.apply(records, path)
                offset = after
                records, after = journal.read(path, offset)
            with contextlib.suppress(OSError):  # a read-only journal
                journal.mark_delivered(path, offset, store.uri)
            sent += 1
        except Unreachable as error:
            waiting, away = journal.count(path, offset), str(error)
        except (UsageError, OSError) as error:
            troubles.append(str(error))
        damaged += set_aside.values()
    display.rest()
    reason = f"{waiting:,} records wait: {store.uri}: {away}" if away else ""
    again = shell.command("replay", "--journal", str(folder))
    lines = troubles + journal.delivery_troubles(refused, damaged, reason, again)
    for line in lines:
        display.say(f"! {line}")
    plural = "s" if len(folders) != 1 else ""
    display.say(f"{sent} of {len(folders)} journal{plural} sent to {store.uri}")
    return not lines


def _journals(folder: Path) -> list[Path]:
    try:
        is_journal = (folder / journal.RECORDS).exists()
        paths = [] if is_journal else sorted(folder.glob(f"*/{journal.RECORDS}"))
        folders = [folder] if is_journal else [path.parent for path in paths]
    except (OSError, ValueError) as error:
        raise UsageError(
            ErrorCode.UNREADABLE, f"journal={folder} cannot be read: {error}; give another folder"
        ) from None
    if not folders:
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"no journal in {folder.resolve()}; "
            f"give journal=DIR, a campaign's folder or one that holds several",
        )
    return folders
