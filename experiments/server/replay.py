"""Replay of journals into a tracking server, which changes nothing when it is repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.config import shell
from experiments.config.console import Display
from tracking import journal
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Damages
from tracking.reader import Unreachable
from tracking.store import Store


@dataclass
class ReplayResult:
    """Result of one journal. `waiting`: records that were not sent, because of `trouble`."""

    refused: list[str] = field(default_factory=list)
    damaged: Damages = field(default_factory=dict)
    waiting: int = 0
    trouble: str = ""


def replay(folder: Path, display: Display) -> bool:
    """Send a journal, or those of a folder. Return whether the server has everything then.

    Raises:
        UsageError: There is no journal, or no server.
    """
    folders = _journals(folder)
    store = Store()
    store.check()
    results: list[ReplayResult] = []
    away = ""
    for number, path in enumerate(folders):
        display.step("replay", number, len(folders))
        if away:
            results.append(ReplayResult(waiting=journal.count(path), trouble=away))
            continue
        results.append(_send(store, path))
        away = results[-1].trouble if results[-1].waiting else ""
    display.rest()
    lines = _lines(results, folder, store.uri)
    for line in lines:
        display.say(f"! {line}")
    sent, plural = sum(not result.trouble for result in results), "s" if len(folders) != 1 else ""
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


def _send(store: Store, folder: Path) -> ReplayResult:
    result, offset = ReplayResult(), 0
    try:
        store.expect(journal.opened_runs(folder, result.damaged), journal.experiment(folder))
        records, after = journal.read(folder)
        while after != offset:
            result.refused += store.apply(records, folder)
            offset = after
            records, after = journal.read(folder, offset)
        with contextlib.suppress(OSError):  # a read-only journal
            journal.mark_delivered(folder, offset, store.uri)
    except Unreachable as error:
        result.waiting, result.trouble = journal.count(folder, offset), str(error)
    except (UsageError, OSError) as error:
        result.trouble = str(error)
    return result


def _lines(results: Sequence[ReplayResult], folder: Path, uri: str) -> list[str]:
    damaged = [line for result in results for line in result.damaged.values()]
    refused = [line for result in results for line in result.refused]
    reason = next((result.trouble for result in results if result.waiting), "")
    waiting = f"{sum(result.waiting for result in results):,} records wait: {uri}: {reason}"
    again = shell.command("replay", "--journal", str(folder))
    lines = [result.trouble for result in results if result.trouble and not result.waiting]
    return lines + journal.delivery_troubles(refused, damaged, waiting if reason else "", again)
