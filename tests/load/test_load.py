"""Campaigns log to one server at once, and to one that is away; nothing else should run.

pytest -n 0 -s -m slow tests/load
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from scipy import stats

from tests.conftest import ROOT, Place, Server, wait_for
from tests.faults.proxy import Proxy
from tests.faults.test_campaign import records
from tests.load.writer import BATCHES, POINTS, RUNS
from tests.tracking.postgres import Postgres
from tracking.records import Metrics, RunClosed, RunOpened
from tracking.store import Store

PAIRS, ROUNDS, HOUR_SECONDS = 16, 3, 3_600.0
CELL = {
    "frameworks": "pytorch",
    "epochs": "6",
    "steps_per_epoch": "20",
    "images": "80",
    "warmup_steps": "5",
}
# Costs of writers: what is printed, which list of costs, and how they become a number.
FIGURES = {
    "a writer's wait for one batch, p95": ("waits", 0.95),
    "a writer's longest wait": ("waits", 1.0),
    "one call of log_batch, p95": ("calls", 0.95),
    "until everything is written down": ("written", 1.0),
    "until everything is on the server": ("took", 1.0),
    "memory of a writer, peak": ("memory", 1.0),
}


def write(how: str, uri: str, folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Return the costs of writers that work at once."""
    command = [sys.executable, "-m", "tests.load.writer", how, uri, str(folder)]
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([*command, f"{how}-{name}"], **options) for name in names]
    costs = [json.loads(writer.communicate(timeout=600)[0].splitlines()[-1]) for writer in started]
    return {key: np.hstack([cost[key] for cost in costs]) for key in costs[0]}


def test_campaigns_at_once_lose_and_repeat_no_point(server: Server, tmp_path: Path) -> None:
    store, names = Store(server.uri), ["0", "1", "2"]
    store.experiment_id("load")
    write("ours", server.uri, tmp_path, names)
    runs = list(store.runs("load", "tags.kind = 'cell'"))
    assert len(runs) == len(names) * RUNS
    assert {run.status for run in runs} == {"FINISHED"}
    for run in runs:
        assert sum(len(store.points(run.run_id, key)) for key in run.metrics) == BATCHES * POINTS


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_ten_campaigns_log_as_fast_as_bare_clients(postgres: Postgres, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server", postgres.database("load"), workers=2)
    Store(server.uri).experiment_id("load")
    ratios = {name: list[float]() for name in (*FIGURES, "calls of log_batch")}
    for number in range(ROUNDS):
        order = ("ours", "bare") if number % 2 else ("bare", "ours")
        names = [f"{number}-{writer}" for writer in range(10)]
        costs = {how: write(how, server.uri, tmp_path, names) for how in order}
        for name, (key, share) in FIGURES.items():
            figures = {how: np.quantile(costs[how][key], share) for how in order}
            ratios[name].append(float(figures["ours"] / figures["bare"]))
        counts = {how: len(costs[how]["calls"]) for how in order}
        ratios["calls of log_batch"].append(counts["ours"] / counts["bare"])
    server.kill()
    for name, values in ratios.items():
        print(f"\n| {name} | " + ", ".join(f"{value:.3g}" for value in values) + " |", end="")
    assert max(ratios["a writer's wait for one batch, p95"]) < 0.1
    assert max(ratios["until everything is on the server"]) < 1.1


def opened(place: Place) -> list[RunOpened]:
    openings = [record for record in records(place) if isinstance(record, RunOpened)]
    return [record for record in openings if record.tags["kind"] == "cell"]


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_absent_server_delays_no_cell(place: Place, server: Server) -> None:
    """Pairs of cells in random order, one with the server and one without it.

    A cell counts until the next one begins.
    """
    proxy, rng, spent = Proxy(server.port), np.random.default_rng(7), list[float]()
    through = Place(place.folder, place.cache, proxy.uri)
    away = np.array([side for _ in range(PAIRS) for side in rng.permutation([True, False])])
    parent = through.start(**CELL, blocks=str(len(away) + 1))
    process = psutil.Process(parent.pid)
    while parent.poll() is None:
        if (begun := len(opened(through))) > len(spent):
            spent.append(process.cpu_times().user + process.cpu_times().system)
            proxy.away = begun <= len(away) and bool(away[begun - 1])
            proxy.cut()
        time.sleep(0.25)
    assert parent.returncode == 3, parent.output
    remote = Place(place.folder, place.cache, server.uri)
    replay = remote.call(*remote.command("replay")[:4], f"--journal={remote.journal}")
    assert replay.returncode == 0, replay.stdout + replay.stderr
    proxy.close()
    steps = {
        record.run: point.value
        for record in records(through)
        if isinstance(record, Metrics)
        for point in record.points
        if point.key == "train/step_seconds"
    }
    for name, values in {
        "a whole cell": np.diff([run.time_ms for run in opened(through)]),
        "its median step": np.array([steps[run.run] for run in opened(through)])[: len(away)],
        "CPU time of the campaign's own process": np.diff(spent),
    }.items():
        differences = np.log(values[away]) - np.log(values[~away])
        half = stats.t.ppf(0.975, PAIRS - 1) * stats.sem(differences)
        ratio, low, high = np.exp(differences.mean() + half * np.array([0, -1, 1]))
        print(
            f"\n| {name}, absent over available | {ratio:.3f} ({low:.3f} to {high:.3f}) |", end=""
        )
        assert low < 1.01, name
    assert len(list(Store(server.uri).runs("captioning", "tags.kind = 'cell'"))) == len(away) + 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hanging_server_is_waited_for_once(place: Place, server: Server) -> None:
    """Stop a server that accepts connections: an hour of this may cost 1 % of the hour."""
    remote, before = Place(place.folder, place.cache, server.uri), 4
    parent = remote.start(**CELL, blocks="9")
    wait_for(lambda: len(opened(remote)) == before + 1, 240)
    server.pause()
    code = parent.wait(500)
    server.go_on()
    assert code == 3, parent.output
    closings = [record for record in records(remote) if isinstance(record, RunClosed)]
    ends = {record.run: record.time_ms for record in closings}
    pairs = pairwise(opened(remote))
    gaps = np.array([(after.time_ms - ends[cell.run]) / 1_000 for cell, after in pairs])
    print(f"\nbetween two cells, s: {gaps[:before].round(1)}, hanging {gaps[before:].round(1)}")
    extra = gaps[before:] - np.median(gaps[:before])
    assert extra.sum() < 0.01 * HOUR_SECONDS
    assert extra[1:].max() < 1.0, "once, and not again"
