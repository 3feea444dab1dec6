"""Nothing is lost: ten campaigns write while processes are killed, the disk fills up and connections break.

pytest -n 0 -s -m slow tests/faults/test_storm.py                        # 200 kills, half an hour
pytest -n 0 -s -m slow tests/faults/test_storm.py --kills=2000 --report=FILE
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import mlflow
import psutil
import pytest

from tests.conftest import Place, Server, wait_for
from tests.faults import ledger
from tests.faults.ledger import Run
from tests.faults.proxy import Proxy
from tests.faults.storm import KILLS, Storm
from tests.faults.writers import BLOCKS, FINISHED, Writer
from tests.tracking.postgres import Postgres, running
from tracking import journal

WRITERS, ON_THE_SMALL_DISK = 10, 2
SEED = 20
LONGEST_END_SECONDS = 1_800


@pytest.fixture
def database() -> Iterator[Postgres]:
    """Its own: it will be killed."""
    yield from running()


@pytest.fixture
def server(tmp_path: Path, database: Postgres) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    started = Server(tmp_path / "server", database.database("mlflow"), workers=2)
    yield started
    started.kill()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    started = Proxy(server.port)
    yield started
    started.close()


@pytest.fixture
def writers(
    tmp_path: Path, shared_cache: Path, proxy: Proxy, small_disk: Path
) -> Iterator[list[Writer]]:
    roots = [small_disk if number < ON_THE_SMALL_DISK else tmp_path for number in range(WRITERS)]
    places = [
        Place(root / f"writer-{number}", shared_cache, proxy.uri)
        for number, root in enumerate(roots)
    ]
    for place in places:
        place.folder.mkdir()
    made = [Writer(place) for place in places]
    yield made
    for writer in made:
        writer.stop()


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("small_disk", ["400m"], indirect=True)
def test_storm_loses_no_finished_cell(
    tmp_path: Path,
    shared_cache: Path,
    server: Server,
    database: Postgres,
    proxy: Proxy,
    small_disk: Path,
    writers: list[Writer],
    request: pytest.FixtureRequest,
) -> None:
    began = time.monotonic()
    calm = Place(tmp_path, shared_cache, server.uri)
    _complete(calm.run(frameworks="pytorch", blocks="1"))  # makes what all share
    storm = Storm(SEED, writers, server, database, proxy, small_disk)
    for writer in writers:
        writer.start()
    storm.rage(
        request.config.getoption("kills"),
        lambda: print(f"\r{storm.kills} killed", end="", flush=True),
    )
    raged = time.monotonic() - began
    for writer in writers:
        writer.no_more.set()
    wait_for(lambda: not any(writer.is_alive() for writer in writers), LONGEST_END_SECONDS)
    for writer in writers:  # what a finished campaign could not deliver while the server was away
        _complete(
            writer.place.call(
                *writer.place.command("replay")[:4], f"--journal={writer.place.journal}"
            )
        )
    _complete(calm.run(frameworks="pytorch", blocks="1"))  # closes what a killed start left open

    journals = {
        folder: ledger.in_journal(folder) for writer in writers for folder in writer.finished
    }
    others = {
        folder: ledger.in_journal(folder) for folder in journal.campaigns(tmp_path / "journal")
    }
    stored = ledger.on_server(server.backend, server.artifacts)
    compared = Compared(journals, others, stored)
    report = _report(storm, writers, compared, raged, time.monotonic() - began)
    print(f"\n{report}")
    if path := request.config.getoption("report"):
        path.write_text(report)
    assert not [complaint for writer in writers for complaint in writer.complaints]
    assert all(storm.broken[kind] for kind in KILLS)
    assert compared.differences == []


Journals = dict[Path, dict[str, Run]]


class Compared:
    """Every run of the journals against the server's. differences: one line each."""

    def __init__(self, journals: Journals, others: Journals, stored: list[Run]) -> None:
        told = {
            origin: run
            for runs in (*journals.values(), *others.values())
            for origin, run in runs.items()
        }
        known = defaultdict(list)
        for run in stored:
            known[run.origin].append(run)
        self.runs, self.cells, self.points, self.files = len(told), 0, 0, 0
        self.differences = [
            f"{run.name} is still running" for run in stored if run.status == "RUNNING"
        ]
        strays = [
            run
            for run in stored
            if run.origin not in told and run.tags.get("kind", "campaign") != "campaign"
        ]
        self.differences += [f"{run.name}: no journal knows it" for run in strays]
        for origin, run in told.items():
            if len(known[origin]) != 1:
                self.differences.append(
                    f"{run.name} ({run.status}) is there {len(known[origin])} times"
                )
                continue
            self.differences += self._run(run, known[origin][0])
        for folder, runs in journals.items():
            finished = Counter(
                run.tags["cell"]
                for run in runs.values()
                if run.status == "FINISHED" and "cell" in run.tags
            )
            if sorted(finished.values()) != [1] * BLOCKS:
                self.differences.append(f"{folder.name}: finished cells {dict(finished)}")

    def _run(self, run: Run, there: Run) -> list[str]:
        finished = run.tags["kind"] == "cell" and run.status == "FINISHED"
        if not finished:  # its files may be those of several lives of a campaign
            run.files, there.files = {}, {}
        self.cells += finished
        self.points += len(run.points)
        self.files += len(run.files)
        if run.status == there.status and run.checksum(set(run.tags)) == there.checksum(
            set(run.tags)
        ):
            return []
        parts = {
            part: (getattr(run, part), getattr(there, part))
            for part in ("name", "status", "params", "points", "files", "models")
        }
        parts["tags"] = (
            run.tags,
            {key: text for key, text in there.tags.items() if key in run.tags},
        )
        return [
            f"{run.name} ({run.status}): {part} differ: {_apart(*both)}"
            for part, both in parts.items()
            if both[0] != both[1]
        ]


def _apart(one: object, other: object) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = set(one.items()), set(other.items())
    if isinstance(one, set) and isinstance(other, set):
        return f"{len(one)} and {len(other)}, journal alone {sorted(one - other)[:3]}, server alone {sorted(other - one)[:3]}"
    return f"{one} and {other}"


def _complete(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode in FINISHED, done.stdout + done.stderr


def _report(
    storm: Storm, writers: list[Writer], compared: Compared, raged: float, took: float
) -> str:
    codes = sum((writer.codes for writer in writers), Counter[int]())
    campaigns = sum(len(writer.finished) for writer in writers)
    memory = psutil.virtual_memory().total / 2**30
    rows = {
        "machine": f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, MLflow {mlflow.__version__}",
        "writers": f"{len(writers)} campaigns at a time, {ON_THE_SMALL_DISK} of them with their journal on the small disk",
        "killed with SIGKILL": f"{storm.kills}: "
        + ", ".join(f"{kind} {storm.broken[kind]}" for kind in KILLS),
        "beside": ", ".join(
            f"{kind} {count}" for kind, count in storm.broken.items() if kind not in KILLS
        ),
        "processes of campaigns": f"{codes.total()}, of which {codes[-9]} were killed",
        "finished": f"{campaigns} campaigns with {compared.cells} cells",
        "compared": f"{compared.runs} runs, {compared.points} points, {compared.files} files, by checksum",
        "differences": str(len(compared.differences)),
        "time": f"{raged / 60:.0f} min of faults, {took / 60:.0f} min in all, seed {SEED}",
    }
    lines = [f"| {name} | {text} |" for name, text in rows.items()]
    return "\n".join(
        ["| | |", "|---|---|", *lines, *(f"- {line}" for line in compared.differences[:40])]
    )
