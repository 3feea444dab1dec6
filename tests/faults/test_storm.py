"""No record is lost while ten campaigns write, processes are killed and connections break.

pytest -n 0 -s -m slow tests/faults/test_storm.py                  # 200 kills, half an hour
pytest -n 0 -s -m slow tests/faults/test_storm.py --kills=2000
"""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

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
Journals = Mapping[Path, Mapping[str, Run]]


@pytest.fixture
def database() -> Iterator[Postgres]:
    """Database of this test, which kills it."""
    yield from running()


@pytest.fixture
def server(tmp_path: Path, database: Postgres) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server", database.database("mlflow"), workers=2)
    yield server
    server.kill()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def writers(
    tmp_path: Path, shared_cache: Path, proxy: Proxy, small_disk: Path
) -> Iterator[list[Writer]]:
    writers = []
    for number in range(WRITERS):
        root = small_disk if number < ON_THE_SMALL_DISK else tmp_path
        folder = root / f"writer-{number}"
        folder.mkdir()
        writers.append(Writer(Place(folder, shared_cache, proxy.uri)))
    yield writers
    for writer in writers:
        writer.stop()


def assert_finished(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode in FINISHED, done.stdout + done.stderr


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
    calm = Place(tmp_path, shared_cache, server.uri)
    assert_finished(calm.run(frameworks="pytorch", blocks="1"))  # fills the shared cache
    storm = Storm(SEED, writers, server, database, proxy, small_disk)
    for writer in writers:
        writer.start()
    storm.rage(request.config.getoption("kills"))
    for writer in writers:
        writer.no_more.set()
    wait_for(lambda: not any(writer.is_alive() for writer in writers), LONGEST_END_SECONDS)
    for writer in writers:  # records that a campaign could not deliver while the server was away
        place = writer.place
        replay = place.command("replay")[:4]
        assert_finished(place.call(*replay, f"--journal={place.journal}"))
    assert_finished(calm.run(frameworks="pytorch", blocks="1"))  # closes what a kill left open

    folders = [folder for writer in writers for folder in writer.finished]
    journals = {folder: ledger.in_journal(folder) for folder in folders}
    others = {path: ledger.in_journal(path) for path in journal.campaigns(tmp_path / "journal")}
    stored = ledger.on_server(server.backend, server.artifacts)
    codes = sum((writer.codes for writer in writers), Counter[int]())
    print(f"\n{dict(storm.broken)}; exit codes {dict(codes)}; seed {SEED}")
    print(f"{len(folders)} campaigns with {BLOCKS} cells each, {len(stored)} runs, by checksum")
    assert not [complaint for writer in writers for complaint in writer.complaints]
    assert all(storm.broken[kind] for kind in KILLS)
    assert find_differences(journals, others, stored) == []


def find_differences(journals: Journals, others: Journals, stored: list[Run]) -> list[str]:
    """Return a line for every run of the journals that differs from the server's."""
    all_runs = [run for runs in (*journals.values(), *others.values()) for run in runs.values()]
    by_origin = defaultdict(list)
    for run in stored:
        by_origin[run.origin].append(run)
    lines = [f"{run.name} is still running" for run in stored if run.status == "RUNNING"]
    in_journals = {run.origin for run in all_runs}
    strays = [run for run in stored if run.origin not in in_journals]
    lines += [
        f"{run.name}: in no journal"
        for run in strays
        if run.tags.get("kind", "campaign") != "campaign"
    ]
    for run in all_runs:
        copies = by_origin[run.origin]
        lines += compare(run, copies[0]) if len(copies) == 1 else [f"{run.name}: {len(copies)}×"]
    for folder, runs in journals.items():
        cells = [run.tags["cell"] for run in runs.values() if run.is_finished_cell]
        if len(cells) != BLOCKS or len(set(cells)) != BLOCKS:
            lines.append(f"{folder.name}: finished cells {cells}")
    return lines


def compare(run: Run, copy: Run) -> list[str]:
    if not run.is_finished_cell:  # its files may be those of several lives of a campaign
        run.files, copy.files = {}, {}
    copy.tags = {key: text for key, text in copy.tags.items() if key in run.tags}
    return [
        f"{run.name} ({run.status}): {part} differ: {vars(run)[part]} and {vars(copy)[part]}"
        for part in ("name", "status", "params", "points", "files", "models", "tags")
        if vars(run)[part] != vars(copy)[part]
    ]
