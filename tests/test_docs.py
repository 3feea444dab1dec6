"""What the documents refer to is there, and every command in them is one that works."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from PIL import Image

from experiments import studies
from experiments.cli import arguments, entries
from experiments.config import settings as settings_
from experiments.planning import treatments
from models import frameworks
from tests import debian, warm
from tests.conftest import ROOT
from tests.documented import NOT_RUN, PAGES, Command, commands

ENTRY_POINTS = yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())
# Names and data that the pages' examples have, and readers do not.
INVENTED = {"settings": "best-settings.json"}
MAX_CHARACTERS = 120


def named(command: Command) -> str:
    return f"{command.page}:{command.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    known = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    text = page.read_text()
    assert set(re.findall(r"test_\w+\.py", text)) - known == set()
    assert [
        path for path in re.findall(r"\btests/[\w/]+(?:\.\w+)?", text) if not (ROOT / path).exists()
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_fit_a_screen(page: Path) -> None:
    """120 characters, but for rows of tables, which Markdown cannot break."""
    lines = enumerate(page.read_text().splitlines(), start=1)
    assert [
        number for number, line in lines if len(line) > MAX_CHARACTERS and not line.startswith("|")
    ] == []


def test_readme_names_the_debian_packages_without_which_tests_are_skipped() -> None:
    table = (ROOT / "README.md").read_text().partition("| package | tests without it |")[2]
    rows = dict(re.findall(r"^\| `(\S+)` \| (.*) \|$", table.partition("\n\n")[0], re.MULTILINE))
    assert rows.keys() == debian.PROGRAMS.keys()
    paths = [path for text in rows.values() for path in re.findall(r"`([^`]+/[^`]+)`", text)]
    assert paths
    assert all((ROOT / path).exists() for path in paths)


def test_commands_are_found() -> None:
    found = {command.words for command in commands()}
    assert ("mlflow", "run", ".", "-e", "captioning", "--env-manager", "local") in found
    assert ("pytest",) in found
    assert len(found) > 50
    reasons = [
        command.note.removeprefix(NOT_RUN)
        for command in commands()
        if command.note.startswith(NOT_RUN)
    ]
    assert all(len(reason) > 8 for reason in reasons), "what is not run says why"
    broken = [
        page.name
        for page in PAGES
        if re.search(r"^<!--[^>]*-->[^\n]", page.read_text(), re.MULTILINE)
    ]
    assert broken == [], "a line that begins with a comment is no text any more"


@pytest.mark.parametrize("command", commands(), ids=named)
def test_a_command_has_what_it_names(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / INVENTED["settings"]).write_text('{"batch_size": 64}')
    monkeypatch.chdir(tmp_path)
    check(list(command.words))


def check(words: list[str]) -> None:
    """Fails where a command cannot work: its programs, modules, tests, entry points, settings, services."""
    match words:
        case ["mlflow", "run", ".", *options]:
            check_experiment(*_of_the_runner(options))
        case ["mlflow", "run", project, *options] if project.startswith("deploy/"):
            given = dict(pairwise(options))
            assert (
                given["-e"]
                in yaml.safe_load((ROOT / project / "MLproject").read_text())["entry_points"]
            )
            assert (ROOT / given["--backend-config"]).exists()
        case ["mlflow", command, *_]:
            assert command in ("server", "ui", "experiments", "models")
        case ["python", "-m", "experiments", name, *options] | ["evenhand", name, *options] if (
            not name.startswith("--")
        ):
            words = [one for one in options if one not in ("--help", "all")]
            check_experiment(name, arguments.options(words, entries.load(name)))
        case ["python", "-m", "deploy.native", *options]:
            from deploy.native.__main__ import _parser

            _parser().parse_args(options)
        case ["python", "-m", module, *_]:
            assert find_spec(module), module
        case ["pytest", *options]:
            check_tests(options)
        case ["pip" | ".tensorflow/bin/pip", "install", *options]:
            check_installation(options)
        case ["export", *variables]:
            assert all(
                re.match(r"(KUBE_MLFLOW|MLFLOW|EVENHAND)_[A-Z_]+=", one) for one in variables
            )
        case ["docker", "compose", *options]:
            check_compose(options)
        case ["docker", "build", *options]:
            assert (ROOT / options[options.index("--file") + 1]).exists()
        case ["docker", "push", _]:
            pass
        case ["docker", "volume", "rm", *names]:
            assert set(names) <= {f"{COMPOSE['name']}_{one}" for one in COMPOSE["volumes"]}
        case ["kubectl", *options]:
            kinds = "\n".join(option.replace("/", " ") for option in options)
            objects = (ROOT / "deploy/kubernetes/evenhand.yaml").read_text()
            assert all((ROOT / path).exists() for path in options if path.startswith("deploy/"))
            assert all(
                f"name: {name}" in objects
                for name in re.findall(r"(?:deployment|cronjob) (\w+)", kinds)
            )
        case [("ruff" | "mypy") as tool, *_]:  # of the extra dev, which tests do without
            assert any(one.startswith(tool) for one in EXTRAS["dev"])
        case ["pre-commit", "install"]:
            assert (ROOT / ".pre-commit-config.yaml").exists()
        case ["mkdocs", action, *_]:  # of the extra docs
            assert action in ("build", "serve")
            assert any(one.startswith("mkdocs") for one in EXTRAS["docs"])
        case [".", path]:
            assert path == ".venv/bin/activate"
        case [script, *_] if script.startswith("./"):
            assert list((ROOT / "deploy").rglob(script[2:]))
        case ["pip-audit", *_]:
            pass  # the line before installs it
        case [program, *_]:
            assert shutil.which(program) or shutil.which(
                program, path=Path(sys.executable).parent
            ), program


def _of_the_runner(options: list[str]) -> tuple[str, dict[str, str]]:
    """The entry point and the parameters of `mlflow run .`."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    assert {name for name, _ in pairs} <= {"-e", "-P", "--env-manager", "--experiment-name"}
    (name,) = (value for option, value in pairs if option == "-e")
    assert name in ENTRY_POINTS
    return name, dict(value.split("=", 1) for option, value in pairs if option == "-P")


def check_experiment(name: str, given: dict[str, str]) -> None:
    """The settings are there, of the right type and in range, and what they make can be measured. UsageError where not."""
    if name in studies.available():
        module = studies.load(name)
        settings = settings_.parse(module.settings, module.presets, given)
        treatments.list_treatments(module, settings)
        for framework in settings.frameworks:
            frameworks.check(framework)
        return
    kind = entries.load(name).settings
    own = {field.name for field in dataclasses.fields(kind)}
    asked = settings_.parse(kind, {}, {key: text for key, text in given.items() if key in own})
    rest = {key: text for key, text in given.items() if key not in own}
    if name == "sweep":
        from experiments.sweep import requests

        requests.parse(asked, rest)
    else:
        assert rest == {}


def check_tests(options: list[str]) -> None:
    """The paths are there, and hold what is chosen of them."""
    values = {
        before: option for before, option in pairwise(options) if before in ("-n", "-m", "-k")
    }
    own = (ROOT / "tests/conftest.py").read_text()
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
    assert marker in ("slow", "slow or not slow", "gpu")
    assert not paths or "-m" not in values or f"mark.{marker.split()[0]}" in sources
    assert all(f'"{option.split("=")[0]}"' in own for option in options if option.startswith("--"))


def check_installation(options: list[str]) -> None:
    """Ours is installed from the checkout, with extras that there are: it is on no index."""
    for option in options:
        assert not option.startswith("evenhand")
        if extras := re.fullmatch(r"\.\[(.*)\]", option):
            assert set(extras[1].split(",")) <= EXTRAS.keys()
    assert "-c" not in options or options[options.index("-c") + 1] == "constraints.txt"


def check_compose(options: list[str]) -> None:
    match options:
        case ["run", "--rm", service, *inside]:
            assert service in COMPOSE["services"]
            check(inside)
        case ["--profile", profile, *_]:
            assert any(profile in one.get("profiles", ()) for one in COMPOSE["services"].values())
        case _:
            assert options[0] in ("config", "up", "down", "ps", "logs")


# ---- commands that are run as they stand, in a copy of the checkout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is under version control, in a folder of its own: commands leave their store and journal there."""
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
    """Commands that run, in the order of the pages: later ones find what earlier ones have left."""
    found: dict[str, Command] = {}
    for command in commands():
        if command.runs and command.is_quick == quick:
            found.setdefault(command.text.replace(" --env-manager local", ""), command)
    return list(found.values())


def run(command: Command, checkout: Path) -> None:
    """Run it; tests/experiments/test_command_line.py shows that the programs themselves start."""
    words = [
        sys.executable if command.words[0] == "python" else command.words[0],
        *command.words[1:],
    ]
    if words[:2] == ["mlflow", "run"]:
        words[:1] = [sys.executable, "-m", "mlflow"]
        words += (
            [] if "--env-manager" in words else ["--env-manager", "local"]
        )  # an environment of its own takes 9 GB
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "PYTHONPATH"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    environment = {**kept, "PATH": path}
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


@pytest.mark.parametrize("command", each_once(quick=True), ids=named)
def test_a_quick_command_runs(command: Command, checkout: Path) -> None:
    run(command, checkout)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("command", each_once(quick=False), ids=named)
def test_a_command_runs(command: Command, checkout: Path) -> None:
    run(command, checkout)
