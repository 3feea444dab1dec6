"""What tests share: a store of their own, a small and quick campaign, a real tracking server."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
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
from tests.tracking.postgres import Postgres, running
from tracking import mlflow_defaults

if TYPE_CHECKING:
    from tests.deploy.group import Group
    from tests.slurm import Slurm
    from tracking.records import StoredRun

# The same examples every time: a change is to blame for what fails after it. Others: --hypothesis-profile=default
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")
mlflow_defaults.apply()  # tests call the product's functions as its commands do
gc.set_threshold(
    20_000, 10, 10
)  # what is imported and collected here stays, and tests leave little
ROOT = Path(__file__).resolve().parent.parent
# The project, and a framework that somebody else would have installed.
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "toy_framework" / "installed")])

# Small enough for seconds a cell, large enough that every phase does something.
QUICK = {
    "pairing": "sequential",  # what comes first and whole times are looked at; tests/experiments/test_turns.py takes turns
    "malloc": "system",
    "threads": "1",  # several tests run at a time, and threads that wait for each other wait longest where cores are short
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
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, default=200, help="how many processes the test of faults kills"
    )
    parser.addoption(
        "--screenshots",
        type=Path,
        metavar="FOLDER",
        help="where tests/ui leaves pictures of what it saw",
    )


# Files of many quick tests: they come last, so that no worker waits for a long one.
LAST = (
    *(
        f"tests/experiments/comparison/test_{name}.py"
        for name in ("calibration", "figures", "stopping")
    ),
    *(
        "tests/experiments/test_hostile_settings.py",
        "tests/tracking/test_damage.py",
        "tests/test_docs.py",
    ),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    debian.mark(items)
    items.sort(key=lambda item: item.nodeid.startswith(LAST))


class ByServer(LoadFileScheduling):
    """The tests of a file in one process, and in one process all that need the group's server.

    Starting that server takes a minute. xdist 3.8's `loadgroup` cannot do this: it writes groups
    into names of tests, which pytest 9.2 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "group" if asks_the_group(file) else file


@cache
def asks_the_group(file: str) -> bool:
    return file.startswith("tests/ui/") or "group: Group" in (ROOT / file).read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByServer:
    return ByServer(config, log)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes, features and proofs are made once for the whole test run, whichever process needs them first."""
    return of_the_run(tmp_path_factory, "cache")


def of_the_run(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all processes of a test run share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    folder.mkdir(exist_ok=True)
    return folder


@dataclass(frozen=True)
class Place:
    """A folder with a tracking store and a journal of its own."""

    folder: Path
    cache: Path
    uri: str

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        return {**kept, "MLFLOW_TRACKING_URI": self.uri, "COLUMNS": "200", "PYTHONPATH": PYTHONPATH}

    def command(self, *arguments: str, **given: str) -> list[str]:
        settings = {**QUICK, "cache": str(self.cache), "journal": str(self.journal), **given}
        return [
            sys.executable,
            "-m",
            "experiments",
            *arguments,
            *(f"--{name}={value}" for name, value in settings.items()),
        ]

    def run(self, **given: str) -> subprocess.CompletedProcess[str]:
        """`python -m experiments captioning` with the quick settings, to its end. The working folder keeps MLflow's artifacts."""
        return self.call(*self.command("captioning", **given))

    def resume(self, journal: Path | None = None, **given: str) -> subprocess.CompletedProcess[str]:
        """The last campaign of this place's journal, with nothing said that is not given."""
        options = [f"--cache={self.cache}", f"--journal={journal or self.journal}", "--resume=last"]
        options += [f"--{name}={value}" for name, value in given.items()]
        return self.call(sys.executable, "-m", "experiments", "captioning", *options)

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A module of ours or MLflow's own, in a process that need not import everything first."""
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

    def start(self, **given: str) -> warm.Process:
        """The same, at work."""
        return self.begin(*self.command("captioning", **given))

    def begin(self, *command: str) -> warm.Process:
        """Any command of ours, at work."""
        said = self.folder / f"said-{uuid.uuid4().hex[:8]}.txt"
        return warm.Process(command, self.environment, self.folder, said)


def toy_costs(**seconds: float) -> dict[str, str]:
    """The environment in which the toy framework takes so long for a step, an inference, a copy (tests/toy_framework)."""
    return {"EVENHAND_TOY_COSTS": json.dumps(dict.fromkeys(("toy", "toy+twin"), seconds))}


@pytest.fixture
def toy_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy framework is known in the test's own process too, and in those that it starts with its own environment."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    for entry in PYTHONPATH.split(os.pathsep):
        monkeypatch.syspath_prepend(entry)
    frameworks._variants.cache_clear()
    yield
    frameworks._variants.cache_clear()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables and nothing in them, to be copied: making them takes seconds."""
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


@pytest.fixture
def place(tmp_path: Path, shared_cache: Path, empty_store: Path) -> Place:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Place(tmp_path, shared_cache, f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture
def on_cluster(place: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place whose commands find the cluster: the fixture `cluster` of the test's own module."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster.environment[name])
    return place


class Server:
    """`mlflow server` on loopback, in a process group that can be killed and started again on the same port."""

    def __init__(
        self, folder: Path, backend: str = "", workers: int = 1, options: tuple[str, ...] = ()
    ) -> None:
        self._folder = folder
        self._options = options
        self._workers = workers
        self._several = (
            workers > 1 or "--app-name" in options
        )  # processes, or packages, that only its own command brings
        self.backend = backend or f"sqlite:///{folder}/server.db"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            *(("mlflow", "server") if self._several else ("tests.mlflow_server",)),
        ]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--workers",
            str(self._workers),
        ]
        command += ["--artifacts-destination", str(self._folder / "kept"), *self._options]
        environment = {
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        environment |= {
            "MLFLOW_BACKEND_STORE_URI": self.backend,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": uuid.uuid4().hex,
        }
        environment["MLFLOW_AUTH_ADMIN_PASSWORD"] = (
            uuid.uuid4().hex
        )  # asked for by `--app-name basic-auth` alone
        log = self._folder / "server.log"
        self._process: subprocess.Popen[bytes] | warm.Process
        if self._several:
            with log.open("ab") as file:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    stdout=file,
                    stderr=file,
                    cwd=self._folder,
                    start_new_session=True,
                )
        else:
            self._process = warm.Process(command, environment, self._folder, log)
        wait_for(self._healthy, 60)

    def kill(self) -> None:
        os.killpg(self._process.pid, 9)
        self._process.wait()

    def pause(self) -> None:
        """It takes connections and answers none."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def workers(self) -> list[psutil.Process]:
        """The processes that answer requests; where there are several, a dead one is replaced by their main process."""
        everyone = psutil.Process(self._process.pid).children(recursive=True)
        return [one for one in everyone if not one.children()]

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
    """`mlflow server` with nothing on it: starting takes seconds, emptying does not. A test that kills it starts it again."""
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
    """A PostgreSQL server for the whole session; each test makes databases of its own in it."""
    yield from running()


@pytest.fixture
def postgres_server(postgres: Postgres, tmp_path: Path) -> Iterator[Server]:
    """`mlflow server` on an empty PostgreSQL database."""
    folder = tmp_path / "postgres-server"
    folder.mkdir()
    started = Server(folder, postgres.database(f"mlflow_{uuid.uuid4().hex[:8]}"))
    yield started
    started.kill()


@pytest.fixture(scope="session")
def group() -> Iterator[Group]:
    """A tracking server as a group would start it: PostgreSQL, passwords, three teams with a user each."""
    from tests.deploy import group as of_teams

    with of_teams.running() as server:
        yield server


@pytest.fixture(scope="session")
def nginx(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Nginx with TLS before the group's server: address and certificate."""
    from tests.deploy import proxy as before

    with before.running(group, tmp_path_factory.mktemp("nginx")) as started:
        yield started


def titled(run: StoredRun) -> str:
    """A run's name, without the settings and the date that tell a campaign or its cells from others."""
    if run.tags.get("kind") == "campaign":
        return run.name.partition(" · ")[0]
    return re.sub(r"( · block \d+) · .*", r"\1", run.name)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Returns when the condition holds; fails the test if it does not in time. What takes long to ask is asked rarely."""
    began = time.monotonic()
    deadline = began + seconds
    while not condition():
        asked = time.monotonic()
        assert asked < deadline, f"not within {seconds} s"
        time.sleep(max(0.05, 4 * (asked - began)))
        began = time.monotonic()


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of a stated size (`@pytest.mark.parametrize("small_disk", ["64k"], indirect=True)`)."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
