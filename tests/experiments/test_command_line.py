"""Command line: forms of a call, help, faults, and modules of the user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import Field
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import arguments, campaign, entries
from experiments.cli.codes import DONE, FAILED, WRONG_CALL
from experiments.cli.main import main
from experiments.config import settings
from experiments.config.console import PlainConsole
from tests.conftest import ROOT
from tracking.errors import ErrorCode, UsageError

ENTRIES = entries.available()
LENET = entries.load("lenet")
HEAVY = (
    *("jax", "keras", "tensorflow", "torch", "torchvision", "lightning", "transformers"),
    *("matplotlib", "mlflow", "numpy", "optuna", "pandas", "PIL", "plotly", "psutil", "pyarrow"),
    *("requests", "scipy", "sklearn", "click", "rich.console", "sqlalchemy", "statsmodels"),
)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--batch_size", "8"], {"batch_size": "8"}),
        (["--batch-size", "8"], {"batch_size": "8"}),
        (["--batch-size=8"], {"batch_size": "8"}),
        (["--data", ""], {"data": ""}),
        (["--team", "--odd"], {"team": "--odd"}),
        (["--learning_rate", "-1"], {"learning_rate": "-1"}),
        (["--aa"], {"aa": "true"}),
        (["--aa", "--blocks", "3"], {"aa": "true", "blocks": "3"}),
        (["--aa", "false", "--blocks", "3"], {"aa": "false", "blocks": "3"}),
        (["--aa=no"], {"aa": "no"}),
    ],
)
def test_setting_has_several_forms(words: list[str], expected: dict[str, str]) -> None:
    assert arguments.options(words, LENET) == expected


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--batch-size"], ErrorCode.MISSING_VALUE, "--batch-size"),
        (["--batch_size=1", "--batch-size=2"], ErrorCode.DUPLICATE, "--batch-size"),
        (["--aa", "--aa"], ErrorCode.DUPLICATE, "--aa"),
        (["--"], ErrorCode.INVALID_VALUE, "--"),
        (["aa"], ErrorCode.INVALID_VALUE, "aa"),
        (["--bb", "--batch-size=1"], ErrorCode.UNKNOWN_NAME, "bb"),
        (["--batchsize"], ErrorCode.UNKNOWN_NAME, "did you mean batch_size?"),
    ],
)
def test_other_words_are_refused(words: list[str], code: ErrorCode, part: str) -> None:
    with pytest.raises(UsageError) as error:
        arguments.options(words, LENET)
    assert error.value.code is code
    assert part in str(error.value)


def test_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == DONE
    assert capsys.readouterr().out == f"evenhand {PYPROJECT['version']}\n"


# ---- help


@pytest.mark.parametrize("name", ENTRIES)
def test_help_fits_three_screens_and_all_of_it_has_every_setting(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == DONE
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 75
    assert main([name, "--help", "all"]) == DONE
    text = capsys.readouterr().out
    entry = entries.load(name)
    fields = settings.for_users(entry.settings)
    shown, listed = (re.findall(r"^  --(\w+)", page, re.MULTILINE) for page in (short, text))
    assert sorted(listed) == sorted(field.name.rstrip("_") for field in fields)
    assert set(shown) == {field.name.rstrip("_") for field in listed_settings(entry)}
    groups = {field.metadata["group"] for field in fields}
    assert {f"{group}:" for group in groups} <= set(text.splitlines())
    assert "settings" not in groups, "a setting has no subject"


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_wraps_and_omits_nothing(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ENTRIES:
        entry = entries.load(name)
        for words, expected in {
            (): [entry.title],
            (name,): [field.metadata["help"] for field in listed_settings(entry)],
        }.items():
            assert main([*words, "--help"]) == DONE
            text = capsys.readouterr().out
            assert max(map(len, text.splitlines())) <= columns
            without_spaces = "".join(text.split())
            for sentence in expected:
                assert "".join(sentence.split()) in without_spaces


def listed_settings(entry: entries.Entry) -> list[Field[Any]]:
    fields = settings.for_users(entry.settings)
    return [field for field in fields if not field.metadata["advanced"]]


def test_help_of_a_race_has_what_its_exit_code_and_its_judgement_depend_on() -> None:
    names = {field.name for field in listed_settings(entries.load("race"))}
    assert {"fail_if", "others_limit_percent"} <= names


@pytest.mark.parametrize(
    ("words", "named", "not_named"),
    [
        (["--typo"], {"--help", "--version"}, {"parity", "import"}),
        (["--versoin"], {"--version"}, {"--help"}),
        (["parit"], {"parity"}, {"import"}),
        (["zzz"], {"parity", "race"}, {"--help"}),
        (["race", "--typo"], {"--help all"}, {"timeout"}),
        (["race", "--typo=1"], {"--help all"}, {"timeout"}),
        (["race", "--tiemout=1"], {"timeout"}, {"--help"}),
    ],
)
def test_only_near_names_are_suggested(
    words: list[str], named: set[str], not_named: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the message names all, or what lists them."""
    assert main(words) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert all(name in line for name in named), line
    assert not any(name in line for name in not_named), line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "--epochs 8 "),
        (["--preset", "coco-paper"], "--epochs 11 "),
        (["--preset=coco-paper", "--aa"], "--epochs 11 "),
    ],
)
def test_defaults_are_those_of_the_preset(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["captioning", *words, "--help"]) == DONE
    assert expected in capsys.readouterr().out


def test_help_imports_nothing_that_computes() -> None:
    code = f"""
import sys
from experiments.cli.main import main
for words in ([], ["--help"], ["--version"], *([name, "--help"] for name in {ENTRIES!r})):
    assert main(words) == 0
    heavy = sys.modules.keys() & {HEAVY!r}
    assert not heavy, (words, heavy)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def cpu_seconds(command: list[str], environment: dict[str, str]) -> float:
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


def test_help_takes_no_longer_than_a_few_imports(tmp_path: Path) -> None:
    """Compare with a Python that imports argparse and rich: the best of five, in CPU time.

    Measured: 1.9 to 2.5 times on a free core, 2.7 to 3.9 times under load; NumPy makes it ten.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, as where it is installed
    small = [sys.executable, "-c", "import argparse, rich"]
    ours = [sys.executable, "-m", "experiments", "sweep", "--help"]
    pairs = [(cpu_seconds(small, environment), cpu_seconds(ours, environment)) for _ in range(6)]
    fastest_small, fastest_ours = (min(times) for times in zip(*pairs[1:], strict=True))
    assert fastest_ours < 5 * fastest_small, pairs


# ---- the console script


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write the script of the entry point as pip does."""
    module, function = PYPROJECT["scripts"]["evenhand"].split(":")
    path = tmp_path / "bin" / "evenhand"
    path.parent.mkdir()
    lines = [f"#!{sys.executable}", "import sys", f"from {module} import {function}"]
    lines += ["if __name__ == '__main__':", f"    sys.exit({function}())", ""]
    path.write_text("\n".join(lines))
    path.chmod(0o755)
    return path


def run(
    command: list[str], folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("form", ["script", "module"])
def test_modules_of_the_user_are_not_imported(form: str, script: Path, tmp_path: Path) -> None:
    names = ["models", "tracking", *(["argparse"] if form == "script" else [])]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('the user\\'s {name}')")
    command = [str(script)] if form == "script" else [sys.executable, "-m", "experiments"]
    done = run([*command, "captioning", "--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--batch_size" in done.stdout


def test_closed_pipe_is_no_error(script: Path) -> None:
    command = f"{script} captioning --help | head -1; echo ${{PIPESTATUS[0]}}"
    done = run(["bash", "-c", command], PYTHONUNBUFFERED="1")
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0", "")


def test_console_leaves_a_closed_pipe_to_the_command_line() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    console = PlainConsole()
    console.file = os.fdopen(writer, "w")
    with pytest.raises(BrokenPipeError):
        console.print("line")


# ---- faults


def run_writing(monkeypatch: pytest.MonkeyPatch, path: str) -> int:
    """Run a call in which a file is written that the user has not named."""

    def write(*_: object) -> int:
        Path(path).write_text("x")
        return DONE

    monkeypatch.setattr(campaign, "run_study", write)
    return main(["captioning"])


def test_fault_is_a_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_writing(monkeypatch, "/nowhere/forgotten") == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "FileNotFoundError" in line
    (path,) = tmp_path.glob(".evenhand/faults/*.log")
    assert str(path) in line
    text = path.read_text()
    assert "Traceback (most recent call last)" in text
    assert "/nowhere/forgotten" in text


def test_full_disk_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_writing(monkeypatch, "/dev/full") == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert "/dev/full" in line or "disk" in line or "space" in line
    assert not list(tmp_path.iterdir())
