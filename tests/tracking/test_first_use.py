"""First use of a local store by several processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tracking import first_use
from tracking.errors import ErrorCode, UsageError
from tracking.store import Store

PROCESSES = 2
# Waits until all have their imports: the tables are then made at the same moment.
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


@pytest.mark.slow
def test_processes_that_begin_side_by_side_find_one_store(tmp_path: Path) -> None:
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")},
        "PYTHONPATH": str(ROOT),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN, f"ready-{number}", str(PROCESSES)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES
    assert len(set(outputs)) == 1, "the same experiment for all"
    assert {path.name for path in tmp_path.rglob("*.db*")} == {"mlflow.db"}


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("sqlite:///mlflow.db", Path("mlflow.db")),
        ("sqlite:///kept/here.db", Path("kept/here.db")),
        ("sqlite:////srv/a%20b/mlflow.db", Path("/srv/a b/mlflow.db")),
        ("./mlruns", None),
        ("http://127.0.0.1:5000", None),
        ("postgresql://user@host/name", None),
        ("databricks", None),
    ],
)
def test_file_of_a_store_is_read_from_its_uri(uri: str, file: Path | None) -> None:
    assert first_use.file_of(uri) == file


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
def test_store_that_no_file_can_hold_is_refused_at_once(uri: str) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError) as error:
        Store(uri)
    assert error.value.code is ErrorCode.UNWRITABLE
    assert uri in str(error.value)
    assert time.monotonic() - began < 5
