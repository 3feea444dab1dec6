"""Documentation: commands that exist and run, examples that print what is shown, the site."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import io
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

from experiments import metrics as catalogue
from experiments import studies
from experiments.cli import arguments, entries
from experiments.config import settings as settings_
from experiments.planning import treatments
from experiments.sweep import requests
from models import frameworks
from tests import debian
from tests.conftest import ROOT
from tests.documented import PAGES, Command, commands

ENTRY_POINTS = yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
README = (ROOT / "README.md").read_text()
STATISTICS = "explanation/statistics.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(page, *example, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, example in enumerate(EXAMPLE.findall(page.read_text()))
]


def test_pages_name_files_and_extras_that_exist() -> None:
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for page in PAGES:
        text = page.read_text()
        assert set(re.findall(r"\btest_\w+\.py", text)) <= tests, page
        paths = re.findall(r"\b(?:tests|examples)/[\w/-]+(?:\.\w+)*", text)
        assert [path for path in paths if not (ROOT / path).exists()] == [], page
        named = {
            name for extras in re.findall(r"\.\[([\w,]+)\]'", text) for name in extras.split(",")
        }
        assert named <= EXTRAS.keys(), page
    (packages,) = re.findall(r"Tests that need (.*?) are\s+skipped", README, re.DOTALL)
    assert set(re.findall(r"`(.*?)`", packages)) == debian.PROGRAMS.keys()


def test_commands_have_settings_and_tests_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse all commands as their programs would, and list the treatments of studies."""
    (tmp_path / "best-settings.json").write_text('{"batch_size": 64}')
    shutil.copy(ROOT / "examples" / "race.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for command in commands():
        try:
            check(list(command.words))
        except Exception as error:  # all are listed
            wrong.append(f"{command.page}: {command.text}: {error}")
    assert wrong == []
    assert sum(command.runs for command in commands()) > 40


def check(words: list[str]) -> None:
    """Raise an error for a setting, an entry point, a module or a test that does not exist."""
    match words:
        case ["mlflow", "run", ".", *options]:
            pairs = list(pairwise(options))[::2]
            (name,) = (value for option, value in pairs if option == "-e")
            assert name in ENTRY_POINTS, name
            check_settings(name, dict(value.split("=", 1) for at, value in pairs if at == "-P"))
        case ["python", "-m", "experiments", name, *options] | ["evenhand", name, *options] if (
            not name.startswith("--")
        ):
            options = [word for word in options if word not in ("--help", "all")]
            check_settings(name, arguments.options(options, entries.load(name)))
        case ["python", "-m", module, *_]:
            assert find_spec(module), module
        case ["pytest", *options]:
            paths = [ROOT / word for word in options if word.startswith("tests/")]
            files = [
                file for path in paths for file in [path, *path.glob("*.py")] if file.is_file()
            ]
            source = "".join(file.read_text() for file in files)
            chosen = dict(pairwise(options))
            assert chosen.get("-k", "") in source, chosen["-k"]
            assert not paths or chosen.get("-m") != "slow" or "mark.slow" in source, "none is slow"


def check_settings(name: str, values: dict[str, str]) -> None:
    """Raise UsageError, as the study or the command would."""
    if name in studies.available():
        study = studies.load(name)
        settings = settings_.parse(study.settings, study.presets, values)
        treatments.list_treatments(study, settings)
        for framework in settings.frameworks:
            frameworks.check(framework)
        return
    kind = entries.load(name).settings
    names = {field.name for field in dataclasses.fields(kind)}
    parsed = settings_.parse(kind, {}, {key: values[key] for key in values.keys() & names})
    of_study = {key: values[key] for key in values.keys() - names}
    if name == "sweep" and "resume" not in values:  # its search is recorded
        requests.parse(parsed, of_study)
    elif name != "sweep":
        assert of_study == {}


@pytest.mark.parametrize(("page", "code", "shown"), EXAMPLES)
def test_example_prints_what_the_page_shows(page: Path, code: str, shown: str) -> None:
    """Allow a simulation a point: a library's arithmetic may move one of 4,000 campaigns."""
    output, number = io.StringIO(), r"[-+]?\d+(?:\.\d+)?"
    with contextlib.redirect_stdout(output):
        exec(code, {})
    printed = output.getvalue()
    assert re.sub(number, "#", printed) == re.sub(number, "#", shown)
    values, expected = (list(map(float, re.findall(number, text))) for text in (printed, shown))
    assert values == pytest.approx(expected, abs=1.0 if page.match(STATISTICS) else 0.0)


def text_of(page: Path) -> str:
    """Return the text of a page, without its marks."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_site_has_every_page_setting_and_metric(tmp_path: Path) -> None:
    """Build it by the documented command, which fails on broken links."""
    (command,) = {each.words for each in commands() if each.words[:2] == ("mkdocs", "build")}
    assert "--strict" in command
    call = [sys.executable, "-m", *command, "--site-dir", str(tmp_path)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert [page for page in pages if not (tmp_path / page.with_suffix(".html")).exists()] == []
    index, reliability = (tmp_path / name for name in ("index.html", "reliability.html"))
    assert 'href="server.html' in index.read_text()
    assert "tracking/limits.py" in text_of(reliability)
    assert 'limits.py"' not in reliability.read_text(), "the site has no copy of the source"

    shown = text_of(tmp_path / "reference" / "settings.html")
    kinds = [entries.load(name).settings for name in entries.available()]
    fields = [field for kind in kinds for field in settings_.for_users(kind)]
    assert len({field.name for field in fields}) > 100
    presets = {preset for name in studies.available() for preset in studies.load(name).presets}
    helps = {field.metadata["help"].replace("`", "") for field in fields}
    assert {text for text in helps | presets if text not in shown} == set()
    shown = text_of(tmp_path / "reference" / "metrics.html")
    metrics = (*catalogue.KNOWN, *catalogue.PATTERNS)
    assert {
        row.metric for row in metrics if row.metric not in shown or row.label not in shown
    } == set()
    schema = (ROOT / "docs" / "schema.md").read_text()
    assert [row.metric for row in catalogue.KNOWN if f"`{row.metric}`" not in schema] == []


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files under version control, with images, in which commands run."""
    folder = tmp_path_factory.mktemp("checkout")
    call = ["git", "ls-files", "-z"]
    listed = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name, colour in {"daisy": "yellow", "rose": "red", "tulip": "violet"}.items():
        (folder / "my-images" / name).mkdir(parents=True)
        for number in range(80):
            picture = Image.new("RGB", (40 + number % 7, 48), colour)
            picture.save(folder / "my-images" / name / f"{number:03}.png")
    return folder


RUNNING = {
    command.text.replace(" --env-manager local", ""): command
    for command in reversed(commands())
    if command.runs
}


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("command", list(reversed(RUNNING.values())), ids=lambda at: at.text)
def test_command_runs(command: Command, checkout: Path) -> None:
    """Run each once, in the order of the pages, which is that of their results."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
    words = [*command.words]
    if words[:2] == ["mlflow", "run"] and "--env-manager" not in words:
        words += ["--env-manager", "local"]  # a separate environment takes 9 GB
    environment = {**inherited, "PATH": programs}
    done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stdout[-2_000:] + done.stderr[-2_000:]
    assert "Traceback" not in done.stderr
