"""Local store whose folder was moved: MLflow stores absolute paths of artifacts."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tracking.errors import ErrorCode, UsageError

ARTIFACTS = "mlruns"
KEPT = ".before-move"


def rebase(database: Path) -> list[Path]:
    """Lead paths below a former `mlruns` to the one next to the database.

    A copy of the database stays next to it.

    Returns:
        The former folders.

    Raises:
        UsageError: There is no such store.
    """
    path = database.resolve()
    current = path.parent / ARTIFACTS
    if not path.is_file() or not current.is_dir():
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"database={database}: the file or the folder {ARTIFACTS} next to it is missing; give "
            "the mlflow.db of the folder that was moved",
        )
    try:
        with closing(sqlite3.connect(path)) as opened:
            former = _former(opened, current)
            if former:
                shutil.copyfile(path, path.with_name(path.name + KEPT))
            with opened:  # all or nothing
                for folder in former:
                    _lead(opened, folder, current)
    except sqlite3.Error as error:
        raise UsageError(
            ErrorCode.UNWRITABLE,
            f"database={database}: {error}; end what uses it (mlflow ui, campaigns), then try "
            "again",
        ) from None
    return former


def _former(opened: sqlite3.Connection, current: Path) -> list[Path]:
    """Return other folders `mlruns` in which experiments store their artifacts."""
    former = dict[Path, None]()
    for (text,) in opened.execute(
        "SELECT artifact_location FROM experiments WHERE artifact_location IS NOT NULL"
    ):
        folder = Path(unquote(urlsplit(text).path))
        local = urlsplit(text).scheme in ("", "file") and folder.parent.name == ARTIFACTS
        if local and folder.parent != current:
            former[folder.parent] = None
    return list(former)


def _lead(opened: sqlite3.Connection, former: Path, current: Path) -> None:
    """Change paths in all tables: artifacts of experiments, runs and models."""
    for (table,) in opened.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table'"
    ).fetchall():
        described = opened.execute(f'PRAGMA table_info("{table}")')
        columns = [name for _, name, kind, *_ in described if kind.startswith(("VARCHAR", "TEXT"))]
        for column in columns:
            for old, new in (
                (f"{former}/", f"{current}/"),
                (f"{former.as_uri()}/", f"{current.as_uri()}/"),
            ):
                opened.execute(
                    f'UPDATE "{table}" SET "{column}" = ? || substr("{column}", ?) '
                    f'WHERE substr("{column}", 1, ?) = ?',
                    (new, len(old) + 1, len(old), old),
                )
