"""Many runs on a real server: MLflow over HTTP on PostgreSQL, filled with synthetic campaigns."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Server
from tests.tracking.fill_server import EXPERIMENT, FIRST_MS, campaigns, fill
from tests.tracking.postgres import Postgres

REPORTS = 5

# What a report cannot do without: its libraries, and the runs by MLflow's client.
LIBRARIES_AND_RUNS = """
import sys
import matplotlib.pyplot, mlflow, pandas, scipy.stats
client = mlflow.MlflowClient(sys.argv[1])
experiment, token = client.get_experiment_by_name(sys.argv[2]), None
while token != "":
    page = client.search_runs([experiment.experiment_id], max_results=1_000, page_token=token)
    token = page.token or ""
"""

# Prints how far reading and comparing runs raises the peak of this process' memory, in bytes.
PEAK = """
import re, sys
from experiments.comparison import compare
from experiments.comparison.runs.query import table
from tracking.store import Store

def read(before_ms):
    compare(table(Store(sys.argv[1]).runs(sys.argv[2], f"attributes.start_time < {before_ms}")))

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

read(int(sys.argv[3]))  # what importing takes is not counted
before = peak()
read(int(sys.argv[4]))
print(peak() - before)
"""


@pytest.fixture(scope="module")
def filled(
    postgres: Postgres, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """Return a server with the requested number of runs, and as many workers as MLflow starts."""
    runs, blocks = request.param
    database = postgres.database(f"filled_{runs}_{blocks}")
    server = Server(tmp_path_factory.mktemp("filled"), database, workers=4)
    assert fill(server.backend, campaigns(runs, blocks=blocks), EXPERIMENT) == runs
    yield server
    server.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filled", "limit"), [((1_000, 250), 2), ((1_000, 25), 2.5)], indirect=["filled"]
)
def test_report_of_a_thousand_runs_takes_a_few_times_as_long_as_reading_them(
    filled: Server, limit: float, tmp_path: Path
) -> None:
    """Both from the start of Python, by turns: a machine that is slower, or busy, is so for both.

    Of one campaign, and of ten: ten strata, with ten times the rows to judge, to write and to draw.
    """
    options = ["compare", f"--experiment={EXPERIMENT}", "--strata=machine"]
    commands = {
        "report": ["-m", "experiments", *options],
        "libraries and runs": ["-c", LIBRARIES_AND_RUNS, filled.uri, EXPERIMENT],
    }
    environment = {**os.environ, "MLFLOW_TRACKING_URI": filled.uri, "PYTHONPATH": str(ROOT)}

    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(REPORTS):
        for name, words in commands.items():
            began, command = time.perf_counter(), [sys.executable, *words]
            subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
            times[name].append(time.perf_counter() - began)
    assert len(list(tmp_path.glob(".evenhand/comparisons/*/comparison.json"))) == REPORTS
    # The best of several: other programs, and a worker that gets both pages, are not tested.
    report, reading = (min(each) for each in times.values())
    print(f"report of 1,000 runs in {report:.1f} s, libraries and runs in {reading:.1f} s")
    assert report <= limit * reading


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("filled", [(10_000, 25)], indirect=True)
def test_memory_grows_no_faster_than_the_runs(filled: Server) -> None:
    def growth(runs: int) -> int:
        before = (str(FIRST_MS + count * 60_000) for count in (200, runs))
        command = [sys.executable, "-c", PEAK, filled.uri, EXPERIMENT, *before]
        return int(
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        )

    grown = {runs: growth(runs) for runs in (2_500, 5_000, 10_000)}
    print({runs: f"{size / 2**20:.0f} MiB" for runs, size in grown.items()})
    # A third above proportional: allocators grow in steps. Quadratic growth would be 16 times.
    assert grown[5_000] < 1.33 * 2 * grown[2_500]
    assert grown[10_000] < 1.33 * 4 * grown[2_500]
