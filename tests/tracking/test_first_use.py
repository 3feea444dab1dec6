"""Processes make one local store at once, in a folder where nothing is yet."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tracking import first_use
from tracking.errors import WrongCall
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


def test_processes_that_begin_side_by_side_find_one_store(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment = {**kept, "PYTHONPATH": str(ROOT)}
    commands = [[sys.executable, "-c", BEGIN, f"ready-{number}", str(PROCESSES)] for number in range(PROCESSES)]
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    told = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES, told
    assert len({answer for answer, _ in told}) == 1, "the same experiment for all"
    assert {path.name for path in tmp_path.rglob("*.db*")} == {"mlflow.db"}, "nothing of ours stays there"


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
    "uri", ["sqlite://", "sqlite:///", "sqlite:////tmp", "sqlite:////proc/nothing/mlflow.db", "sqlite:////dev/null/mlflow.db"]
)
def test_a_store_that_no_file_can_hold_is_one_line_at_once(uri: str) -> None:
    began = time.monotonic()
    with pytest.raises(WrongCall, match=f"tracking store {uri} .*; set MLFLOW_TRACKING_URI to one such as sqlite:///mlflow.db"):
        Store(uri)
    assert time.monotonic() - began < 5
