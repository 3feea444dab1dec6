"""Processes make one local store at once, in a folder where nothing is yet."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests import warm
from tracking import first_use
from tracking.errors import UsageError
from tracking.store import Store

PROCESSES = 2
# Waits until all have imported what they need: the tables are then made at the same moment.
BEGIN = """
import sys, time
from pathlib import Path
from tracking.store import Store
Path(sys.argv[1]).touch()
until = time.monotonic() + 60
while len(list(Path().glob("ready-*"))) < int(sys.argv[2]) and time.monotonic() < until:
    time.sleep(0.005)
store = Store()
store.check()
print(store.experiment_id("captioning"))
"""


def told(folder: Path, number: int) -> tuple[Path, Path]:
    """Where a process writes its output and its errors."""
    return folder / f"output-{number}", folder / f"errors-{number}"


@pytest.mark.slow
def test_processes_that_begin_side_by_side_find_one_store(tmp_path: Path) -> None:
    """With all imported before: what is left of a start falls together."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    started = [
        warm.Process(
            [sys.executable, "-c", BEGIN, f"ready-{number}", str(PROCESSES)],
            kept,
            tmp_path,
            *told(tmp_path, number),
        )
        for number in range(PROCESSES)
    ]
    codes = [process.wait(120) for process in started]
    assert codes == [0] * PROCESSES, [
        told(tmp_path, number)[1].read_text() for number in range(PROCESSES)
    ]
    assert len({process.said for process in started}) == 1, "the same experiment for all"
    assert {path.name for path in tmp_path.rglob("*.db*")} == {"mlflow.db"}, (
        "nothing of ours stays there"
    )


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("sqlite:///mlflow.db", Path()),
        ("sqlite:///kept/here.db", Path("kept")),
        ("sqlite:////srv/a%20b/mlflow.db", Path("/srv/a b")),
        ("./mlruns", None),
        ("http://127.0.0.1:5000", None),
        ("postgresql://user@host/name", None),
        ("databricks", None),
    ],
)
def test_only_a_store_in_a_file_is_waited_for(uri: str, folder: Path | None) -> None:
    assert first_use.folder_of(uri) == folder


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:////tmp",
        "sqlite:////proc/nothing/mlflow.db",
        "sqlite:////dev/null/mlflow.db",
    ],
)
def test_a_store_that_no_file_can_hold_is_one_line_at_once(uri: str) -> None:
    began = time.monotonic()
    with pytest.raises(
        UsageError,
        match=f"tracking store {uri} .*; set MLFLOW_TRACKING_URI to one such as sqlite:///mlflow.db",
    ):
        Store(uri)
    assert time.monotonic() - began < 5
