"""No record is lost while ten campaigns write, processes are killed and connections break.

pytest -n 0 -s -m slow tests/faults/test_storm.py                  # 200 kills
pytest -n 0 -s -m slow tests/faults/test_storm.py --kills=2000
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Place, Server, set_toy_costs, wait_for
from tests.faults.proxy import Proxy
from tests.faults.test_campaign import LONG, cell_process
from tests.tracking.postgres import Postgres, running
from tests.warm import Process
from tracking import journal
from tracking.store import Store

WRITERS, BLOCKS = 10, 3
SEED = 20
PAUSE_SECONDS, AWAY_SECONDS, LONGEST_END_SECONDS = 2.5, 4.0, 1_800
FINISHED = (0, 3)  # with a verdict, or without one
# Shares of the kills with SIGKILL, and of other faults.
KILLS = {"cell": 4, "campaign": 3, "server": 1, "server's worker": 1, "database": 1}
FAULTS = {**KILLS, "connections cut": 1.5, "answer lost": 3}
ANSWERS = "runs/create|runs/log-batch|runs/update|logged-models|runs/log-inputs|artifacts/"
# Tags whose value changes during a run, or differs between servers.
OF_THE_MOMENT = {"heartbeat", "host", "pid", "pid_started", "campaign", "mlflow.parentRunId"}


class Writer(threading.Thread):
    """Thread that runs campaigns in its place; each is resumed until it ends well."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.finished: set[Path] = set()
        self.complaints: list[str] = []
        self.no_more = threading.Event()
        self.process: Process | None = None

    @property
    def folders(self) -> set[Path]:
        return set(journal.campaigns(self.place.journal)) if self.place.journal.exists() else set()

    def run(self) -> None:
        while (unfinished := self.folders - self.finished) or not self.no_more.is_set():
            command = self.place.command("captioning", **LONG | {"blocks": str(BLOCKS)})
            if unfinished:
                options = [f"--cache={self.place.cache}", f"--journal={self.place.journal}"]
                command[4:] = [*options, f"--resume={min(unfinished).name}"]
            self.process = self.place.begin(*command)
            code = self.process.wait(600)
            if "Traceback" in self.process.output:
                self.complaints.append(self.process.output)
            if code in FINISHED:
                self.finished |= {min(unfinished)} if unfinished else self.folders
            elif code != -signal.SIGKILL:
                time.sleep(1.0)


class Storm:
    """Faults in the work of writers, and their repair."""

    def __init__(
        self, writers: list[Writer], server: Server, database: Postgres, proxy: Proxy
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._rng, self._writers = random.Random(SEED), writers
        self._server, self._database, self._proxy = server, database, proxy
        self._repairs: list[threading.Timer] = []

    def rage(self, kills: int) -> None:
        """Break things until so many processes were killed, and wait for all repairs."""
        while sum(self.counts[kind] for kind in KILLS) < kills:
            time.sleep(self._rng.expovariate(1 / PAUSE_SECONDS))
            shares = {kind: 1 for kind in KILLS if not self.counts[kind]} or FAULTS
            (fault,) = self._rng.choices(list(shares), list(shares.values()))
            self.counts[fault] += self._break(fault)
        for repair in self._repairs:
            repair.join()
        self._proxy.lose_answer("^$")
        self.counts["answer lost"] = self._proxy.lost

    def _break(self, fault: str) -> bool:
        """Return True if there was something to be broken."""
        processes = [writer.process for writer in self._writers if writer.process]
        match fault:
            case "cell":
                return self._kill([cell for it in processes if (cell := cell_process(it))])
            case "campaign":
                return self._kill([psutil.Process(it.pid) for it in processes if it.poll() is None])
            case "answer lost":
                self._proxy.lose_answer(rf"^P[A-Z]+ /api/2.0/mlflow[a-z-]*/({ANSWERS})")
                return False  # the proxy counts when it happens
            case "connections cut":
                return self._proxy.cut() > 0
        if any(repair.is_alive() for repair in self._repairs):
            return False
        if fault == "server's worker":
            return self._kill(self._server.workers())
        broken = self._server if fault == "server" else self._database
        broken.kill()
        self._repairs.append(threading.Timer(self._rng.uniform(0, AWAY_SECONDS), broken.start))
        self._repairs[-1].start()
        return True

    def _kill(self, processes: list[psutil.Process]) -> bool:
        with contextlib.suppress(IndexError, psutil.NoSuchProcess):
            self._rng.choice(processes).kill()
            return True
        return False


@pytest.fixture
def database() -> Iterator[Postgres]:
    """Yield a database of this test, which kills it."""
    yield from running()


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_storm_loses_no_finished_cell(
    place: Place,
    database: Postgres,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_toy_costs(monkeypatch, step=0.05)
    (place.folder / "server").mkdir()
    server = Server(place.folder / "server", database.database("mlflow"), workers=2)
    proxy, writers = Proxy(server.port), list[Writer]()
    for number in range(WRITERS):
        folder = place.folder / f"writer-{number}"
        folder.mkdir()
        writers.append(Writer(Place(folder, place.cache, proxy.uri)))
    calm = Place(place.folder, place.cache, server.uri)
    assert calm.run(**LONG).returncode in FINISHED  # fills the shared cache
    storm = Storm(writers, server, database, proxy)
    for writer in writers:
        writer.start()
    storm.rage(request.config.getoption("kills"))
    for writer in writers:
        writer.no_more.set()
    wait_for(lambda: not any(writer.is_alive() for writer in writers), LONGEST_END_SECONDS)
    for writer in writers:
        for target in (calm, place):  # what could not be delivered; all, to an undisturbed store
            command = [*target.command("replay")[:4], f"--journal={writer.place.journal}"]
            done = target.call(*command)
            assert done.returncode == 0, done.stdout + done.stderr
    assert calm.run(**LONG).returncode in FINISHED  # closes what a kill left open
    print(f"\n{dict(storm.counts)}; seed {SEED}")
    assert [writer.complaints for writer in writers] == [[]] * WRITERS
    assert all(storm.counts[kind] for kind in KILLS)

    stored, expected = (contents(target, server.artifacts) for target in (calm, place))
    assert {origin for origin, copies in stored.items() if len(copies) != 1} == set()
    assert expected.keys() <= stored.keys()
    assert "RUNNING" not in {run["status"] for (run,) in stored.values()}
    finished = {
        origin: runs for origin, runs in expected.items() if runs[0]["status"] == "FINISHED"
    }
    assert {origin: stored[origin] for origin in finished} == finished
    cells = [run for (run,) in finished.values() if run["tags"]["kind"] == "cell"]
    campaigns = sum(len(writer.finished) for writer in writers)
    print(f"{campaigns} campaigns with {len(cells)} cells, {len(stored)} runs, by checksum")
    assert len(cells) == BLOCKS * campaigns
    server.kill()
    proxy.close()


def contents(place: Place, artifacts: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what a store has of each run, by its origin; copies would be several."""
    store, runs = Store(place.uri), dict[str, list[dict[str, Any]]]()
    for run in store.runs("captioning"):
        uri = store._client.get_run(run.run_id).info.artifact_uri
        folder = artifacts / uri.removeprefix("mlflow-artifacts:/").removeprefix("file://")
        paths = [path for path in folder.rglob("*") if path.is_file()]
        tags = {key: text for key, text in run.tags.items() if key not in OF_THE_MOMENT}
        results = {"name": run.name, "status": run.status, "params": dict(run.params), "tags": tags}
        results["points"] = {key: store.points(run.run_id, key) for key in run.metrics}
        if tags.get("kind") == "cell":  # a campaign's files may be those of several lives
            digests = {str(path.relative_to(folder)): sha256(path.read_bytes()) for path in paths}
            results["files"] = {name: digest.hexdigest() for name, digest in digests.items()}
        # A parent that was killed early leaves a campaign's run without tags.
        runs.setdefault(tags.get("origin", run.run_id), []).append(results)
    return runs
