"""Fixtures of all tests: stores, a small and quick campaign, real tracking servers."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from models import frameworks
from tests import debian, warm
from tests.tracking.postgres import Postgres, free_port, running
from tracking import mlflow_defaults

if TYPE_CHECKING:
    from tests.deploy.group import Group
    from tests.slurm import Slurm
    from tracking.records import StoredRun

# The same examples every time: a change is to blame for what fails after it.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")
mlflow_defaults.apply()  # tests call the product's functions as its commands do
gc.set_threshold(20_000, 10, 10)  # imports and collected tests stay, and tests leave little
ROOT = Path(__file__).resolve().parent.parent
# The project, and a framework that somebody else would have installed.
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "toy_framework" / "installed")])

# Small enough for seconds a cell, large enough that every phase does something.
QUICK = {
    "pairing": "sequential",  # tests/experiments/test_turns.py takes turns
    "malloc": "system",
    "threads": "1",  # several tests run at a time
    "formulation": "sequence",
    "images": "40",
    "image_size": "32",
    "batch_size": "8",
    "epochs": "2",
    "steps_per_epoch": "4",
    "warmup_steps": "1",
    "validation_captions": "8",
    "bleu_images": "4",
    "inference_requests": "7",
    "inference_words": "4",
    "sensor_seconds": "0.1",
    "timing": "step",  # on a simulated GPU too: so few steps hold no window
    "others_limit_percent": "100",  # the machine that tests run on need not be free
    "figures": "false",
    "save_model": "none",  # logging one takes a second and a half; test_captioning.py does
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, default=200, help="how many processes the test of faults kills"
    )
    parser.addoption(
        "--screenshots",
        type=Path,
        metavar="FOLDER",
        help="where tests/ui leaves pictures of what it saw, and tests of notebooks their outputs",
    )
    parser.addoption(
        "--report",
        type=Path,
        metavar="report.html",
        help="with --screenshots: the report of the demo of captioning, as the README shows it",
    )


# Long files come first and files of many quick tests last, so that no worker waits at the end.
FIRST = (
    "tests/deploy/",
    "tests/experiments/test_distributed.py",
    "tests/experiments/test_captioning.py",
    "tests/models/",
)
LAST = (
    "tests/experiments/test_hostile_settings.py",
    "tests/tracking/test_damage.py",
    "tests/test_docs.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    debian.mark(items)
    items.sort(key=lambda item: item.nodeid.startswith(LAST) - item.nodeid.startswith(FIRST))


class ByServer(LoadFileScheduling):
    """Scheduling of files to processes; tests of the group's server share one process.

    Starting that server takes a minute. xdist 3.8's `loadgroup` cannot do this: it writes groups
    into names of tests, which pytest 9.2 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "group" if uses_group(file) else file


@cache
def uses_group(file: str) -> bool:
    return file.startswith("tests/ui/") or "group: Group" in (ROOT / file).read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByServer:
    return ByServer(config, log)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of scenes, features and proofs, made once for the whole test run."""
    return of_the_run(tmp_path_factory, "cache")


def of_the_run(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder that all processes of a test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@dataclass(frozen=True)
class Place:
    """Folder with a tracking store and a journal."""

    folder: Path
    cache: Path
    uri: str

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def without_features(self) -> Place:
        """Return the place with a cache in it that has only the shared one's proofs of parity."""
        proofs, cache = self.cache / "parity", self.folder / "cache"
        proofs.mkdir(exist_ok=True)
        cache.mkdir()
        (cache / "parity").symlink_to(proofs)
        return replace(self, cache=cache)

    @property
    def environment(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")
        }
        local = {"MLFLOW_TRACKING_URI": self.uri, "COLUMNS": "200", "PYTHONPATH": PYTHONPATH}
        return inherited | local

    def command(self, *arguments: str, **settings: str) -> list[str]:
        settings = {**QUICK, "cache": str(self.cache), "journal": str(self.journal), **settings}
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [sys.executable, "-m", "experiments", *arguments, *options]

    def run(self, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m experiments captioning` with the quick settings and these, to its end."""
        return self.call(*self.command("captioning", **settings))

    def resume(
        self, journal: Path | None = None, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Resume the last campaign of this place's journal, with no quick setting."""
        options = [f"--cache={self.cache}", f"--journal={journal or self.journal}", "--resume=last"]
        options += [f"--{name}={value}" for name, value in settings.items()]
        return self.call(sys.executable, "-m", "experiments", "captioning", *options)

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; a module of Python in a process with its imports made."""
        if command[:2] == (sys.executable, "-m"):
            return warm.run(command, self.environment, self.folder)
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def start(self, **settings: str) -> warm.Process:
        """Start the command of `run`."""
        return self.begin(*self.command("captioning", **settings))

    def begin(self, *command: str) -> warm.Process:
        """Start a command of evenhand."""
        output = self.folder / f"output-{uuid.uuid4().hex[:8]}.txt"
        return warm.Process(command, self.environment, self.folder, output)


NewPlace = Callable[[Path], Place]


def are_gone(processes: Iterable[psutil.Process]) -> bool:
    """Return whether none runs; one may wait as a zombie for a parent that has died."""

    def is_gone(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # it ended in between
            return True

    return all(is_gone(process) for process in processes)


def cell_processes(campaign: int) -> list[psutil.Process]:
    """Return a campaign's children that are cells; any may end while they are listed."""
    cells = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(campaign).children():
            with suppress(psutil.NoSuchProcess):
                if "experiments.workloads" in child.cmdline():
                    cells.append(child)
    return cells


def set_toy_costs(monkeypatch: pytest.MonkeyPatch, **costs: float) -> None:
    """Set costs of the toy framework and its twin, in seconds, and in bytes for `row_bytes`."""
    costs_of_both = dict.fromkeys(("toy", "toy+twin"), costs)
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(costs_of_both))


@pytest.fixture
def toy_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the toy framework in the test's process and its children."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    for entry in PYTHONPATH.split(os.pathsep):
        monkeypatch.syspath_prepend(entry)
    frameworks._variants.cache_clear()
    yield
    frameworks._variants.cache_clear()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with MLflow's empty tables, to be copied: making them takes seconds."""
    folder = of_the_run(tmp_path_factory, "store")
    path = folder / "mlflow.db"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            making = folder / "making.db"
            done = warm.run(
                [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{making}"],
                os.environ,
                folder,
            )
            assert done.returncode == 0, done.stderr
            making.rename(path)
    return path


@pytest.fixture(scope="session")
def new_place(shared_cache: Path, empty_store: Path) -> NewPlace:
    """Return a function that makes a place with an empty store in a folder."""

    def make(folder: Path) -> Place:
        shutil.copy(empty_store, folder / "mlflow.db")
        return Place(folder, shared_cache, f"sqlite:///{folder}/mlflow.db")

    return make


@pytest.fixture
def place(tmp_path: Path, new_place: NewPlace) -> Place:
    return new_place(tmp_path)


@pytest.fixture
def on_cluster(place: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a place whose commands find the cluster of the test's module."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster.environment[name])
    return place


class Server:
    """`mlflow server` on loopback, in a process group that can be killed and started again."""

    def __init__(self, folder: Path, backend: str = "", workers: int = 1) -> None:
        self._folder, self._options = folder, ("--workers", str(workers))
        self._is_warm = workers == 1  # several processes come with MLflow's own command only
        self.backend = backend or f"sqlite:///{folder}/server.db"
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        module = ("tests.mlflow_server",) if self._is_warm else ("mlflow", "server")
        command = [sys.executable, "-m", *module, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--artifacts-destination", str(self.artifacts), *self._options]
        environment = {
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_BACKEND_STORE_URI": self.backend,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": uuid.uuid4().hex,
            "MLFLOW_AUTH_ADMIN_PASSWORD": uuid.uuid4().hex,
        }
        log = self._folder / "server.log"
        self._process: subprocess.Popen[bytes] | warm.Process
        if self._is_warm:
            self._process = warm.Process(command, environment, self._folder, log)
        else:
            options = {"env": environment, "cwd": self._folder, "start_new_session": True}
            with log.open("ab") as file:
                self._process = subprocess.Popen(command, stdout=file, stderr=file, **options)
        wait_for(self._healthy, 60)

    def kill(self) -> None:
        os.killpg(self._process.pid, 9)
        self._process.wait()

    def pause(self) -> None:
        """Let it take connections and answer none."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def workers(self) -> list[psutil.Process]:
        """Return the processes that answer requests; the main process replaces dead ones."""
        processes = psutil.Process(self._process.pid).children(recursive=True)
        return [process for process in processes if not process.children()]

    @property
    def artifacts(self) -> Path:
        return self._folder / "kept"

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "server.db")
    started = Server(folder)
    yield started
    started.kill()


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    """Yield an empty `mlflow server`. A test that kills it starts it again."""
    yield one_server
    with (
        closing(sqlite3.connect(one_server.backend.removeprefix("sqlite:///"))) as database,
        database,
    ):
        tables = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'alembic_version'"
        ).fetchall()
        for (table,) in tables:
            default = " WHERE experiment_id != 0" if table == "experiments" else ""
            database.execute(f"DELETE FROM {table}{default}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Yield a PostgreSQL server of the session, in which each test makes databases."""
    yield from running()


@pytest.fixture(scope="session")
def group(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Yield a server with PostgreSQL, passwords, and three teams with a user each."""
    from tests.deploy.group import add_teams, mlflow_server

    folder, database = tmp_path_factory.mktemp("group"), postgres.database("teams")
    options = ("--workers", "2", "--backend-store-uri", database)
    with mlflow_server(folder, *options, proxy_port=free_port()) as made:
        add_teams(made, {"vision": "alice", "speech": "bob", "text": "carol"})
        yield made


@pytest.fixture(scope="session")
def nginx(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield address and certificate of nginx with TLS before the group's server."""
    from tests.deploy.proxy import started
    from tests.deploy.test_files import confined

    folder, upstream = tmp_path_factory.mktemp("nginx"), group.uri.removeprefix("http://")
    with started(folder, upstream, group.proxy_port, confined("proxy")) as nginx:
        yield nginx


def titled(run: StoredRun) -> str:
    """Return a run's name without the settings and the date of its campaign."""
    if run.tags.get("kind") == "campaign":
        return run.name.partition(" · ")[0]
    return re.sub(r"( · block \d+) · .*", r"\1", run.name)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Return when the condition holds. Fail if it does not in time; check a slow one rarely."""
    began = time.monotonic()
    deadline = began + seconds
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"not within {seconds} s"
        time.sleep(max(0.05, 4 * (now - began)))
        began = time.monotonic()


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a file system of the size that `parametrize(…, indirect=True)` states."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
