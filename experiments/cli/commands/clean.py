"""`evenhand clean`: what is kept in this folder, with sizes; removal of what the user confirms."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.config import shell
from experiments.config.settings import CampaignSettings, setting
from tracking import plain
from tracking.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    from experiments.config.console import Table

FOLDER = Path(".evenhand")
# Folders of the cache, each made anew when a campaign needs it; others are not ours.
CACHES = (
    *("caption_arrays", "environments", "features", "labelled"),
    *("parity", "scenes", "sequences", "worktrees"),
)
# Files that nothing makes again: passwords of a server's users.
KEPT = ("accounts",)
MLFLOW = ("mlflow.db", "mlruns")


class State(StrEnum):
    FREE = ""
    DELIVERED = "delivered"
    NOT_DELIVERED = "not delivered"
    IN_USE = "in use"
    PASSWORDS = "holds passwords"


FREE = (State.FREE, State.DELIVERED)


@dataclass(frozen=True)
class Clean:
    """Folders to look into, and what may be removed."""

    journal: str = setting(
        CampaignSettings.journal, "folder of the local journals", path=True, group="folders"
    )
    cache: str = setting(CampaignSettings.cache, "folder of the cache", path=True, group="folders")
    yes: bool = setting(
        False, "remove all that is free or delivered, without a question", group="removal"
    )
    discard: tuple[str, ...] = setting(
        (),
        "run ids of campaigns to remove though the tracking server lacks some of them",
        group="removal",
    )


@dataclass(frozen=True)
class Entry:
    """File or folder that is kept. what: its kind, and for a journal its campaign."""

    path: Path
    what: str
    state: State
    bytes: int


def run(settings: Clean, display: Display) -> int:
    listed = entries(settings)
    unknown = set(settings.discard) - {entry.path.name for entry in listed}
    if unknown:
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"discard={plain.short(min(unknown))}: no such campaign in "
            f"journal={Path(settings.journal).resolve()}",
        )
    if listed:
        display.console.print(_table(listed))
    else:
        display.say("nothing is kept here")
    links = (_link(folder) for folder in (FOLDER, Path(settings.journal), Path(settings.cache)))
    for link in dict.fromkeys(filter(None, links)):
        display.say(f"{link} is a link, which is not followed; its target: {link.resolve()}")
    _say_store(display)
    free = [
        entry
        for entry in listed
        if entry.state in FREE
        or (entry.state == State.NOT_DELIVERED and entry.path.name in settings.discard)
    ]
    if settings.yes:
        chosen = free
    elif listed and sys.stdin.isatty():
        chosen = choose(_ask(), listed, free)
    else:
        chosen = []
        if free:
            display.say(f"nothing was removed; remove all that is free: {_again(settings)} --yes")
    removed = [entry for entry in chosen if _remove(entry)]
    if removed:
        display.say(f"removed {len(removed)}: {_size(sum(entry.bytes for entry in removed))}")
    for entry in listed:
        if (settings.yes or chosen) and entry not in removed:
            display.say(f"kept {entry.path}: {_reason(entry)}")
    return DONE


def _ask() -> str:
    try:
        return input("remove (numbers such as 1,3-5; all; none): ")
    except EOFError:
        return ""


def choose(answer: str, listed: Sequence[Entry], free: Sequence[Entry]) -> list[Entry]:
    """Return the entries that an answer names.

    Raises:
        UsageError: For a number that does not exist, and for an entry that is not free.
    """
    answer = answer.strip().lower()
    if answer in ("", "none", "n", "no"):
        return []
    if answer == "all":
        return list(free)
    chosen = []
    for part in answer.split(","):
        first, _, last = part.partition("-")
        try:
            numbers = range(int(first), int(last or first) + 1)
            if not 1 <= numbers[0] <= numbers[-1] <= len(listed):
                raise ValueError
        except (ValueError, IndexError):
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"'{plain.short(part)}' is no number of the list; nothing was removed; "
                f"write numbers from 1 to {len(listed)}, all or none",
            ) from None
        chosen += [listed[number - 1] for number in numbers]
    for entry in chosen:
        if entry not in free:
            raise UsageError(
                ErrorCode.CONFLICT, f"{entry.path}: {_reason(entry)}; nothing was removed"
            )
    return list(dict.fromkeys(chosen))


def entries(settings: Clean) -> list[Entry]:
    """Return what is kept: journals, the oldest first, caches, and the rest of `.evenhand`."""
    journals, cache = Path(settings.journal), Path(settings.cache)
    listed = list(_journals(journals))
    in_use = any(entry.state == State.IN_USE for entry in listed)
    state = State.IN_USE if in_use else State.FREE
    cached = [path for path in _inside(cache) if path.name in CACHES]
    listed += [Entry(path, f"cache: {path.name}", state, _bytes(path)) for path in cached]
    for path in _inside(FOLDER):
        if path.absolute() not in (journals.absolute(), cache.absolute()):
            state = State.PASSWORDS if path.name in KEPT else State.FREE
            listed.append(Entry(path, path.name, state, _bytes(path)))
    return listed


def _journals(root: Path) -> Iterator[Entry]:
    from tracking import journal

    server = _server()
    for folder in _inside(root):
        if folder.is_symlink() or not (folder / journal.RECORDS).is_file():
            continue
        described = journal.description(folder)
        what = f"journal: {described.get('study', 'damaged')}"
        if name := described.get("settings", {}).get("name"):
            what += f" · {name}"
        is_delivered = journal.is_delivered(folder, server)
        state = State.DELIVERED if is_delivered else State.NOT_DELIVERED
        with journal.hold(folder) as is_held:
            if not is_held:
                state = State.IN_USE
        yield Entry(folder, what, state, _bytes(folder))


def _server() -> str:
    """Return the tracking server as journals record it; empty for a local store that is gone."""
    from tracking import first_use

    uri = os.environ.get(shell.SERVER) or f"sqlite:///{Path(MLFLOW[0]).absolute()}"
    try:
        first_use.require(uri)
    except UsageError:
        return ""
    return uri


def _inside(folder: Path) -> list[Path]:
    """Return what a folder holds, the oldest first; nothing if it is missing."""
    if not folder.is_dir() or _link(folder):
        return []
    return sorted(folder.iterdir(), key=lambda path: (path.lstat().st_mtime_ns, path.name))


def _link(folder: Path) -> Path | None:
    """Return the link that a folder is or, below the current folder, lies in."""
    parents = () if folder.is_absolute() else folder.parents
    return next((path for path in (folder, *parents) if path.is_symlink()), None)


def _bytes(path: Path) -> int:
    """Return the size of a file or folder; links count as themselves."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    files = (Path(at) / name for at, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in files)


def _remove(entry: Entry) -> bool:
    """Remove an entry, a link but never its target; return False if it came into use."""
    from tracking import journal

    if entry.path.is_symlink() or not entry.path.is_dir():
        entry.path.unlink()
    elif (entry.path / journal.RECORDS).is_file():
        with journal.hold(entry.path) as is_held:
            if not is_held:
                return False
            shutil.rmtree(entry.path)
    else:
        shutil.rmtree(entry.path)
    return True


def _reason(entry: Entry) -> str:
    """Return why an entry stays, and what would let it go."""
    if entry.state == State.NOT_DELIVERED:
        folder, name = str(entry.path), entry.path.name
        send = shell.command("replay", "--journal", folder)
        return (
            f"the tracking server lacks some of it; send it: {send}, "
            f"or give it up: {shell.command('clean', '--discard', name)}"
        )
    if entry.state == State.PASSWORDS:
        return "it holds the passwords of users; remove it by hand"
    return "a campaign is running; wait for it or stop it first"


def _table(listed: Sequence[Entry]) -> Table:
    from experiments.config.console import Table, box

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("no.", justify="right")
    table.add_column("kept", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("path", overflow="fold")
    for number, entry in enumerate(listed, 1):
        cells = (str(number), entry.what, entry.state, _size(entry.bytes), str(entry.path))
        table.add_row(*map(plain.line, cells))
    return table


def _say_store(display: Display) -> None:
    """State where MLflow's store is: it is never removed here."""
    uri = os.environ.get(shell.SERVER, "")
    if uri and shell.has_password(uri):
        uri = "the server of MLFLOW_TRACKING_URI"
    if uri:
        display.say(f"MLflow's store is not touched: {uri}")
    for path in map(Path, MLFLOW):
        if path.exists():
            size = _size(_bytes(path))
            display.say(f"MLflow's store is not touched: {path.absolute()}, {size}")


def _size(count: int) -> str:
    from experiments.comparison.report import wording

    factor, unit = wording.scale("bytes", [count])
    return f"{wording.number(count / factor)} {unit}" if factor > 1 else f"{count} {unit}"


def _again(settings: Clean) -> str:
    defaults = Clean()
    words = [
        word
        for name in ("journal", "cache")
        if getattr(settings, name) != getattr(defaults, name)
        for word in (f"--{name}", getattr(settings, name))
    ]
    return shell.command("clean", *words)


COMMAND = Command("List what is kept in this folder, and remove what you confirm", Clean, run)
