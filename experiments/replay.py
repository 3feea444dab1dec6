"""What a journal holds, told to a tracking server: after it was away, or to another one. Doing it twice changes nothing."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import track

from tracking import journal
from tracking.errors import WrongCall
from tracking.store import Store


def replay(folder: Path) -> bool:
    """`folder`: one campaign's journal or a folder of several. False if the server refused any. Raises WrongCall, Unreachable."""
    folders = (
        [folder] if (folder / journal.RECORDS).exists() else [path.parent for path in sorted(folder.glob(f"*/{journal.RECORDS}"))]
    )
    if not folders:
        raise WrongCall(f"no journal in {folder.resolve()}; give journal=DIR, a campaign's folder or one that holds several")
    store, console = Store(), Console(highlight=False)
    store.check()
    refused: list[str] = []
    for one in track(folders, "replay", console=console, transient=True):
        offset = 0
        while True:
            records, offset = journal.read(one, offset)
            if not records:
                break
            refused += store.apply(records, one)
        journal.mark_delivered(one, offset)
    for line in refused:
        console.print(f"! refused by the server: {line}", markup=False)
    console.print(f"{len(folders)} journal{'s' if len(folders) != 1 else ''} told to {store.uri}", markup=False)
    return not refused
