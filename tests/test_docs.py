"""References of the documents exist, and their commands work."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import dropwhile, pairwise
from pathlib import Path

import pytest
import yaml
from PIL import Image

from experiments import studies
from experiments.cli import arguments, entries
from experiments.config import settings as settings_
from experiments.planning import treatments
from models import frameworks
from tests import warm
from tests.conftest import ROOT
from tests.documented import NOT_RUN, PAGES, Command, commands

ENTRY_POINTS = yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())


def named(command: Command) -> str:
    return f"{command.page}:{command.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_named_by_a_page_exist(page: Path) -> None:
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    text = page.read_text()
    assert set(re.findall(r"test_\w+\.py", text)) - names == set()
    assert [
        path for path in re.findall(r"\btests/[\w/]+(?:\.\w+)?", text) if not (ROOT / path).exists()
    ] == []


def test_commands_are_collected() -> None:
    words = {command.words for command in commands()}
    assert ("mlflow", "run", ".", "-e", "captioning", "--env-manager", "local") in words
    assert len(words) > 50
    notes = [command.note for command in commands() if command.note.startswith(NOT_RUN)]
    assert all(len(note.removeprefix(NOT_RUN)) > 8 for note in notes), "a reason is given"


@pytest.mark.parametrize("command", commands(), ids=named)
def test_command_names_what_exists(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "best-settings.json").write_text('{"batch_size": 64}')
    shutil.copy(ROOT / "examples" / "race.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    check(list(command.words))


def check(words: list[str]) -> None:
    """Check a command's programs, modules, tests, entry points, settings and services."""
    match words:
        case ["mlflow", "run", ".", *options]:
            check_experiment(*runner_options(options))
        case ["mlflow", "run", project, *options] if project.startswith("deploy/"):
            values = dict(pairwise(options))
            assert (
                values["-e"]
                in yaml.safe_load((ROOT / project / "MLproject").read_text())["entry_points"]
            )
            assert (ROOT / values["--backend-config"]).exists()
        case ["mlflow", command, *_]:
            assert command in ("server", "ui", "experiments", "models", "gc", "db")
        case ["python", "-m", "experiments", name, *options] | ["evenhand", name, *options] if (
            not name.startswith("--")
        ):
            words = [word for word in options if word not in ("--help", "all")]
            check_experiment(name, arguments.options(words, entries.load(name)))
        case ["python", "-m", module, *_]:
            assert find_spec(module), module
        case ["pytest", *options]:
            check_tests(options)
        case ["srun", *options]:
            check(list(dropwhile(lambda word: word.startswith("--"), options)))
        case ["pip" | ".next/bin/pip" | ".tensorflow/bin/pip", "install", *options]:
            check_installation(options)
        case ["export", *variables]:
            assert all(
                re.match(r"(KUBE_MLFLOW|MLFLOW|EVENHAND)_[A-Z_]+=", text) for text in variables
            )
        case ["docker", "compose", *options]:
            check_compose(options)
        case ["docker", "build", *options]:
            assert (ROOT / options[options.index("--file") + 1]).exists()
        case ["kubectl", *options]:
            assert all((ROOT / path).exists() for path in options if path.startswith("deploy/"))
        case [script, *_] if script.startswith("./"):
            assert list((ROOT / "deploy").rglob(script[2:]))
        case [
            (
                "."
                | "docker"
                | "pg_dump"
                | "pg_restore"
                | "mypy"
                | "pip-audit"
                | "pre-commit"
                | "ruff"
            ),
            *_,
        ]:
            pass  # programs that tests do without
        case [program, *_]:
            assert shutil.which(program) or shutil.which(
                program, path=Path(sys.executable).parent
            ), program


def runner_options(options: list[str]) -> tuple[str, dict[str, str]]:
    """Return the entry point and the parameters of `mlflow run .`."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    assert {name for name, _ in pairs} <= {
        "-b",
        "-e",
        "-P",
        "--backend-config",
        "--env-manager",
        "--experiment-name",
    }
    backends = PROJECT["entry-points"]["mlflow.project_backend"]
    assert {value for option, value in pairs if option == "-b"} <= set(backends)
    (name,) = (value for option, value in pairs if option == "-e")
    assert name in ENTRY_POINTS
    return name, dict(value.split("=", 1) for option, value in pairs if option == "-P")


def check_experiment(name: str, values: dict[str, str]) -> None:
    """Parse the settings, and list their treatments. Raises UsageError."""
    if name in studies.available():
        module = studies.load(name)
        settings = settings_.parse(module.settings, module.presets, values)
        treatments.list_treatments(module, settings)
        for framework in settings.frameworks:
            frameworks.check(framework)
        return
    kind = entries.load(name).settings
    names = {field.name for field in dataclasses.fields(kind)}
    local = {key: text for key, text in values.items() if key in names}
    parsed = settings_.parse(kind, {}, local)
    rest = {key: text for key, text in values.items() if key not in names}
    if name == "sweep":
        from experiments.sweep import requests

        if "resume" not in values:  # its search is recorded
            requests.parse(parsed, rest)
    else:
        assert rest == {}


def check_tests(options: list[str]) -> None:
    """Check that the paths exist, and hold what is chosen of them."""
    values = {
        before: option for before, option in pairwise(options) if before in ("-n", "-m", "-k")
    }
    conftest = (ROOT / "tests/conftest.py").read_text()
    paths = [
        option for option in options if not option.startswith("-") and option not in values.values()
    ]
    assert all((ROOT / path).exists() for path in paths)
    sources = "".join(
        file.read_text()
        for path in paths
        for file in [ROOT / path, *(ROOT / path).glob("*.py")]
        if file.is_file()
    )
    assert values.get("-k", "") in sources
    marker = values.get("-m", "slow")
    assert marker in ("slow", "slow or not slow", "gpu", "device")
    assert not paths or "-m" not in values or f"mark.{marker.split()[0]}" in sources
    assert all(
        f'"{option.split("=")[0]}"' in conftest for option in options if option.startswith("--")
    )


def check_installation(options: list[str]) -> None:
    """Check that evenhand is installed from the checkout, with existing extras."""
    for option in options:
        assert not option.startswith("evenhand")
        if extras := re.fullmatch(r"\.\[(.*)\]", option):
            assert set(extras[1].split(",")) <= EXTRAS.keys()
    assert "-c" not in options or options[options.index("-c") + 1] == "constraints.txt"


def check_compose(options: list[str]) -> None:
    match options:
        case ["exec", "-T", service, *_]:
            assert service in COMPOSE["services"]
        case _:
            assert options[0] in ("config", "cp", "up", "down", "ps", "logs")


# ---- commands that are run as they stand, in a copy of the checkout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files under version control, in which commands run."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name, colour in {"daisy": "yellow", "rose": "red", "tulip": "violet"}.items():
        (folder / "my-images" / name).mkdir(parents=True)
        for number in range(80):
            side = 40 + number % 7
            Image.new("RGB", (side, 48), colour).save(
                folder / "my-images" / name / f"{number:03}.png"
            )
    return folder


def each_once(*, quick: bool) -> list[Command]:
    """Return the commands that run, in the order of the pages, which is that of their results."""
    results: dict[str, Command] = {}
    for command in commands():
        if command.runs and command.is_quick == quick:
            results.setdefault(command.text.replace(" --env-manager local", ""), command)
    return list(results.values())


LONG = pytest.mark.slow, pytest.mark.timeout(7_200)


@pytest.mark.parametrize(
    "command",
    [
        *each_once(quick=True),
        *(pytest.param(command, marks=LONG) for command in each_once(quick=False)),
    ],
    ids=named,
)
def test_command_runs(command: Command, checkout: Path) -> None:
    """Run a command, quick ones without the start of a program."""
    words = [
        sys.executable if command.words[0] == "python" else command.words[0],
        *command.words[1:],
    ]
    if words[:2] == ["mlflow", "run"]:
        words[:1] = [sys.executable, "-m", "mlflow"]
        words += (
            [] if "--env-manager" in words else ["--env-manager", "local"]
        )  # an environment of its own takes 9 GB
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "PYTHONPATH"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}"
    environment = {**inherited, "PATH": path}
    as_module = (
        [sys.executable, "-m", "experiments", *words[1:]] if words[0] == "evenhand" else words
    )
    if (
        command.is_quick
        and as_module[1] == "-m"
        and as_module[2].partition(".")[0] == "experiments"
    ):
        done = warm.run(as_module, environment, checkout)
    else:
        done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 3), (
        done.stdout[-2_000:] + done.stderr[-2_000:]
    )  # 3: done, but too little for a verdict
    assert "Traceback" not in done.stderr
