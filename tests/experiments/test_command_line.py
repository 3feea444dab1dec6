"""The command line itself: what a call may look like, help at once, completion, faults, and no way in for a user's modules."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from experiments.cli import arguments, campaign, entries
from experiments.cli.codes import DONE, FAILED, WRONG_CALL
from experiments.cli.main import main
from experiments.config import settings
from tests.conftest import ROOT
from tracking.errors import UsageError

ENTRIES = entries.available()
LENET = entries.load("lenet")
HEAVY = (
    *("jax", "keras", "tensorflow", "torch", "torchvision", "lightning", "transformers"),
    *(
        "matplotlib",
        "mlflow",
        "numpy",
        "optuna",
        "pandas",
        "PIL",
        "plotly",
        "psutil",
        "pyarrow",
        "requests",
        "scipy",
        "sklearn",
    ),
    *("click", "rich.console", "sqlalchemy", "statsmodels"),
)

# ---- words


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
def test_a_setting_may_be_written_in_several_ways(
    words: list[str], expected: dict[str, str]
) -> None:
    assert arguments.options(words, LENET) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch-size"], "--batch-size has no value"),
        (["--batch_size=1", "--batch-size=2"], "--batch-size is given twice"),
        (["--aa", "--aa"], "--aa is given twice"),
        (["--"], "'--' is not a setting"),
        (["aa"], "'aa' is not a setting"),
        (["--bb", "--batch-size=1"], "there is no setting 'bb'"),
        (["--batchsize"], "did you mean batch_size?"),
    ],
)
def test_words_that_are_no_settings_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        arguments.options(words, LENET)


@pytest.mark.parametrize(
    ("study", "word", "right"),
    [("overhead", "harnes", "harnesses"), ("grid", "batchsize", "batch_sizes")],
)
def test_a_setting_that_a_study_sets_itself_is_not_suggested(
    study: str, word: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([f"--{word}=1"], [f"--{word}"]):
        assert main([study, *words]) == WRONG_CALL
        assert (
            capsys.readouterr().err
            == f"evenhand: there is no setting '{word}'; did you mean {right}?\n"
        )


def test_a_search_takes_the_flags_of_its_experiments() -> None:
    assert entries.load("sweep").flags >= {"confirm", "aa", "profile"}
    assert entries.load("parity").flags == {"full"}


def test_all_models_are_what_leaving_them_out_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--models=all", "--frameworks=pytorch"]) == WRONG_CALL
    assert "one side only" in capsys.readouterr().err  # past the names of models


def test_the_version_is_the_projects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == DONE
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"evenhand {version}\n"


# ---- help


@pytest.mark.parametrize("name", ENTRIES)
def test_help_fits_two_screens_and_all_of_it_lists_every_setting_under_a_subject(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == DONE
    short = capsys.readouterr().out
    assert sum(max(1, math.ceil(len(line) / 80)) for line in short.splitlines()) <= 50
    assert main([name, "--help", "all"]) == DONE
    text = capsys.readouterr().out
    fields = settings.for_users(entries.load(name).settings)
    shown, listed = (re.findall(r"^  --(\w+)", page, re.MULTILINE) for page in (short, text))
    assert sorted(listed) == sorted(field.name for field in fields)
    assert set(shown) == {field.name for field in fields if not field.metadata["advanced"]}
    assert {f"{field.metadata['group']}:" for field in fields} <= set(text.splitlines())
    assert "settings" not in {field.metadata["group"] for field in fields}, (
        "a setting has no subject"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--epochs 8 "),
        (["--preset", "coco-paper"], "--epochs 11 "),
        (["--preset=coco-paper", "--aa"], "--epochs 11 "),
    ],
)
def test_the_defaults_are_those_of_the_preset(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["captioning", *words, "--help"]) == DONE
    line = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("  --epochs")
    )
    assert said in line


def test_help_of_a_preset_that_is_not_known_is_a_wrong_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["captioning", "--preset=huge", "--help"]) == WRONG_CALL
    assert "no preset 'huge'; have demo" in capsys.readouterr().err


def test_help_imports_nothing_that_computes() -> None:
    """One process asks all entries: what none of them has imported in the end, no single one has."""
    code = f"""
import sys
from experiments.cli.main import main
for words in ([], ["--help"], ["--version"], *([name, "--help"] for name in {ENTRIES!r})):
    assert main(words) == 0
    found = sys.modules.keys() & {HEAVY!r}
    assert not found, (words, found)
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


@pytest.mark.parametrize(
    "words", [["--help"], ["captioning", "--help"], ["sweep", "--help"]], ids=" ".join
)
def test_help_takes_no_longer_than_a_few_imports(words: list[str], tmp_path: Path) -> None:
    """Against a Python that imports argparse and rich, in turn; the best of five, in processor time, which others do not add to.

    Measured: 1.9 to 2.5 times on a free core, 0.12 to 0.16 s by the clock; 2.7 to 3.9 times where two cores had a load of six.
    NumPy alone makes it ten times. Five times is half a second where the smaller takes a tenth.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, as where it is installed
    small, ours = (
        [sys.executable, "-c", "import argparse, rich"],
        [sys.executable, "-m", "experiments", *words],
    )
    pairs = [(cpu_seconds(small, environment), cpu_seconds(ours, environment)) for _ in range(6)][
        1:
    ]
    assert min(our for _, our in pairs) < 5 * min(least for least, _ in pairs), pairs


# ---- the console script


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """What pip writes for the entry point, in a folder of its own, beside folders that are called as ours are."""
    module, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "evenhand"
    ].split(":")
    path = tmp_path / "bin" / "evenhand"
    path.parent.mkdir()
    lines = [f"#!{sys.executable}", "import sys", f"from {module} import {function}"]
    path.write_text(
        "\n".join([*lines, "if __name__ == '__main__':", f"    sys.exit({function}())", ""])
    )
    path.chmod(0o755)
    return path


def test_shells_complete_names_settings_and_values(script: Path) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash")
    lines = {
        "evenhand capt": "captioning",
        "evenhand --vers": "--version",
        "evenhand captioning --formul": "--formulation",
        "evenhand captioning --device cu": "cuda",
        "evenhand captioning --device = cu": "cuda",  # bash's own way to split --device=cu
        "evenhand captioning --aa --thr": "--threads",
        "evenhand lenet --preset so": "sound",
        "evenhand parity --models mobile": "mobilenet_v2",
        "evenhand compare --frameworks x": "",
        "evenhand sweep --frameworks pytorch,tensorflow+e": "pytorch,tensorflow+eager",
    }
    ask = "_evenhand_completion evenhand; echo ${COMPREPLY[*]}; COMPREPLY=()"
    asked = "\n".join(
        f"COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}; {ask}" for line in lines
    )
    environment = {
        **os.environ,
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [shell, "--norc", "-c", f'eval "$(evenhand --completion bash)"\n{asked}'],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert dict(zip(lines, done.stdout.splitlines(), strict=True)) == lines, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", shell]) == DONE
    assert f"_EVENHAND_COMPLETE={shell}_complete" in capsys.readouterr().out
    assert main(["--completion", "tcsh"]) == WRONG_CALL


@pytest.mark.parametrize("called", ["script", "module"])
def test_a_users_modules_are_not_taken_for_ours(called: str, script: Path, tmp_path: Path) -> None:
    """The names of our packages in the working folder; a campaign's processes are held to it in tests/faults."""
    for name in ("models", "tracking", "argparse"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('the user\\'s {name}')")
    if called == "module":
        shutil.rmtree(
            tmp_path / "argparse"
        )  # `-m` has searched the working folder by the time that we are asked
    command = [str(script)] if called == "script" else [sys.executable, "-m", "experiments"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "captioning", "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--batch_size" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_fault(script: Path) -> None:
    command = f"{script} captioning --help | head -1; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0", "")


# ---- faults


def planted(monkeypatch: pytest.MonkeyPatch, path: str) -> int:
    """A call in whose middle a file is written that nobody has named."""

    def write(*_: object) -> int:
        Path(path).write_text("x")
        return DONE

    monkeypatch.setattr(campaign, "run_study", write)
    return main(["captioning"])


def test_an_error_of_our_own_making_is_a_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert planted(monkeypatch, "/nowhere/forgotten") == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "FileNotFoundError" in line
    kept = Path(line.rpartition("the traceback is in ")[2])
    assert kept.is_relative_to(tmp_path)
    assert "Traceback (most recent call last)" in kept.read_text()
    assert "/nowhere/forgotten" in kept.read_text()


def test_a_full_disk_is_no_fault_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert planted(monkeypatch, "/dev/full") == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line
    assert not list(tmp_path.iterdir())
