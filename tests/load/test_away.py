"""Cost of a server that is away: `pytest -n 0 -s -m slow tests/load/test_away.py`.

Nothing else should run on the machine.
"""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise

import numpy as np
import psutil
import pytest
from scipy import stats

from tests.conftest import Place, Server, wait_for
from tests.faults.proxy import Proxy
from tests.faults.test_campaign import cell_process, records, wait_for_epochs
from tracking.records import Metrics, RunClosed, RunOpened
from tracking.store import Store

PAIRS = 16
HOUR_SECONDS = 3_600.0
CELL = {
    "frameworks": "pytorch",
    "epochs": "6",
    "steps_per_epoch": "20",
    "images": "80",
    "warmup_steps": "5",
}


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_absent_server_delays_no_cell(place: Place, server: Server) -> None:
    """Pairs of cells in random order, one with the server and one without it.

    A cell counts until the next one begins.
    """
    proxy = Proxy(server.port)
    through, remote = (Place(place.folder, place.cache, uri) for uri in (proxy.uri, server.uri))
    rng = np.random.default_rng(7)
    away = [bool(side) for _ in range(PAIRS) for side in rng.permutation([True, False])]
    parent = through.start(**CELL, blocks=str(len(away) + 1))
    process, spent = psutil.Process(parent.pid), list[float]()
    while parent.poll() is None:
        begun = sum(
            path.read_bytes().count(b'"kind":"cell"')
            for path in through.journal.glob("*/records.jsonl")
        )
        if begun > len(spent):
            spent.append(process.cpu_times().user + process.cpu_times().system)
            proxy.away = begun <= len(away) and away[begun - 1]
            proxy.cut()
        time.sleep(0.25)
    output, _ = parent.communicate()
    replay = remote.call(*remote.command("replay")[:4], f"--journal={remote.journal}")
    assert replay.returncode == 0, replay.stdout + replay.stderr
    proxy.close()
    assert parent.returncode == 3, output
    starts = [run.time_ms / 1_000 for run in opened(through)]
    whole = np.diff(starts)
    steps = np.array(
        [metric(through, run.run, "train/step_seconds") for run in opened(through)][: len(away)]
    )
    print()
    values = {
        "a whole cell": whole,
        "its median step": steps,
        "CPU time of the campaign's own process": np.diff(spent),
    }
    ratios = {name: paired_ratio(array, np.array(away)) for name, array in values.items()}
    for name, (ratio, low, high) in ratios.items():
        interval = f"{ratio:.3f} ({low:.3f} to {high:.3f})"
        print(f"| {name}, server away over server up | {interval}, {PAIRS} pairs |")
    assert all(low < 1.01 for _, low, _ in ratios.values())
    stored = Store(server.uri).runs("captioning", "tags.kind = 'cell'")
    assert len(list(stored)) == len(away) + 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hanging_server_is_waited_for_once(place: Place, server: Server) -> None:
    """Stop a server that accepts connections: an hour of this may cost 1 % of the hour."""
    remote, before = Place(place.folder, place.cache, server.uri), 4
    parent = remote.start(**CELL, blocks="9")
    wait_for(lambda: len(opened(remote)) == before + 1, 240)
    server.pause()
    output, _ = parent.communicate(timeout=500)
    server.go_on()
    assert parent.returncode == 3, output
    answering, hanging = between(remote)[:before], between(remote)[before:]
    for state, gaps in {"answers": answering, "hangs": hanging}.items():
        seconds = ", ".join(f"{gap:.1f}" for gap in gaps)
        print(f"\n| between two cells, server {state}, s | {seconds} |", end="")
    extra = [gap - float(np.median(answering)) for gap in hanging]
    assert sum(extra) < 0.01 * HOUR_SECONDS
    assert max(extra[1:]) < 1.0, "once, and not again"


@pytest.mark.slow
def test_stopped_parent_delays_no_step(place: Place) -> None:
    """Stop the campaign: the measured process writes into a pipe, and waits for nothing else."""
    parent = place.start(**{**CELL, "epochs": "60", "blocks": "1"})
    wait_for_epochs(place, parent, 1)
    child = cell_process(parent)
    assert child
    before = child.cpu_times().user
    os.kill(parent.pid, signal.SIGSTOP)
    time.sleep(8)
    went_on = child.cpu_times().user - before
    os.kill(parent.pid, signal.SIGCONT)
    assert parent.wait(240) == 3
    assert went_on > 4


def opened(place: Place) -> list[RunOpened]:
    return [
        record
        for record in records(place)
        if isinstance(record, RunOpened) and record.tags["kind"] == "cell"
    ]


def metric(place: Place, run: str, key: str) -> float:
    values = [
        point.value
        for record in records(place)
        if isinstance(record, Metrics) and record.run == run
        for point in record.points
        if point.key == key
    ]
    return values[-1]


def between(place: Place) -> list[float]:
    """Return the seconds from the end of each cell to the beginning of the next."""
    cells = opened(place)
    ends = {
        record.run: record.time_ms for record in records(place) if isinstance(record, RunClosed)
    }
    return [(after.time_ms - ends[before.run]) / 1_000 for before, after in pairwise(cells)]


def paired_ratio(values: np.ndarray, away: np.ndarray) -> tuple[float, float, float]:
    """Return the geometric mean of away over available within pairs, with its 95 % interval."""
    differences = np.log(values[away]) - np.log(values[~away])
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    mean, low, high = np.exp(differences.mean() + half * np.array([0, -1, 1])).tolist()
    return mean, low, high
