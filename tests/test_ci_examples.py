"""CI jobs in `examples/`: as their services would read them, and run by the letter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.documented import commands

EXAMPLES = ROOT / "examples"
RACE = "evenhand race --file race.toml --blocks 12 --fail_if slower:wall_seconds"


def job(name: str) -> dict[str, Any]:
    content = yaml.safe_load((EXAMPLES / name).read_text())
    described: dict[str, Any] = content["jobs"]["race"] if "jobs" in content else content["race"]
    return described


def steps() -> dict[str, dict[str, Any]]:
    """Return the named steps of the workflow."""
    return {step["name"]: step for step in job("github-workflow.yml")["steps"] if "name" in step}


def test_jobs_call_what_the_page_documents() -> None:
    page = [command.text for command in commands() if command.page.endswith("race-in-ci.md")]
    assert RACE in page
    assert RACE in steps()["Race"]["run"]
    assert RACE in job("gitlab-ci.yml")["script"]
    assert job("gitlab-ci.yml")["allow_failure"] == {"exit_codes": 3}


def test_workflow_is_one_of_github() -> None:
    content = yaml.safe_load((EXAMPLES / "github-workflow.yml").read_text())
    assert set(content) == {"name", True, "permissions", "jobs"}  # YAML 1.1 reads `on` as true
    assert content[True] == "pull_request"
    for step in job("github-workflow.yml")["steps"]:
        assert ("run" in step) != ("uses" in step)
    checkout = job("github-workflow.yml")["steps"][0]
    assert checkout["with"]["fetch-depth"] == 0  # the base must be there


def test_levels_are_the_tags_of_the_jobs() -> None:
    race = tomllib.loads((EXAMPLES / "race.toml").read_text())
    assert list(race["levels"]) == ["base", "head"]
    for name, level in race["levels"].items():
        assert level["commit"] == name
        assert f"git tag -f {name}" in steps()["Name both commits"]["run"]
        assert any(f"git tag -f {name}" in line for line in job("gitlab-ci.yml")["script"])


def test_each_command_of_a_gitlab_job_can_fail_it() -> None:
    """GitLab runs them under `set -e`, which a failure before `&&` does not end."""
    assert not [line for line in job("gitlab-ci.yml")["script"] if "&&" in line or ";" in line]


def repository(folder: Path, *seconds: float) -> str:
    """Make a repository with a commit for each duration of `train.py`. Return the first commit."""
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(folder)]
    subprocess.run([*run, "init", "-q"], check=True)
    commits = []
    for number, duration in enumerate(seconds):
        (folder / "train.py").write_text(
            f"import time  # {number}\nend = time.perf_counter() + {duration}\n"
            "while time.perf_counter() < end:\n    pass\n"
        )
        subprocess.run([*run, "add", "train.py"], check=True)
        subprocess.run([*run, "commit", "-qm", str(number)], check=True)
        done = subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True)
        commits.append(done.stdout.decode().strip())
    return commits[0]


def run_step(name: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a step as GitHub does, with few settings of a busy machine."""
    script = steps()[name]["run"].replace(
        "--blocks 12", "--blocks 12 --figures false --others_limit_percent 100"
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {key: text for key, text in os.environ.items() if not key.startswith("MLFLOW_")}
    environment = {**inherited, **job("github-workflow.yml")["env"], "PATH": path, **more}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("seconds", "code"), [((0.5, 0.65), 4), ((0.5, 0.5), 0)])
def test_job_fails_only_for_the_slower_commit(
    tmp_path: Path, seconds: tuple[float, float], code: int
) -> None:
    """Plant 0.15 s in a commit, and a commit without effect."""
    base = repository(tmp_path, *seconds)
    shutil.copy(EXAMPLES / "race.toml", tmp_path)
    named = run_step("Name both commits", tmp_path, BASE=base)
    assert named.returncode == 0, named.stderr
    summary = tmp_path / "summary.md"
    done = run_step("Race", tmp_path, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == code, done.stdout + done.stderr
    card = summary.read_text()
    assert card.startswith("# ")
    assert len(card.encode()) < 65_536  # of a comment
    assert "| time (wall time)" in card


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment for a job: its pip, with the packages that are installed here."""
    folder = tmp_path_factory.mktemp("image")
    venv.create(folder, with_pip=True, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    purelib = sysconfig.get_path("purelib")
    paths = [purelib, *(path for path in sys.path if path.endswith("-packages"))]
    (packages / "packages.pth").write_text("\n".join(dict.fromkeys(paths)))
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what pip builds, which would write next to it."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("experiments", "models", "tracking"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.skipif(not shutil.which("gitlab-ci-local"), reason="npm's gitlab-ci-local is missing")
@pytest.mark.parametrize(("seconds", "end"), [((0.5, 1.0), "FAIL 4"), ((0.5, 0.5), "")])
def test_gitlab_job_fails_only_for_the_slower_commit(
    tmp_path: Path, image: Path, source: Path, seconds: tuple[float, float], end: str
) -> None:
    """Run the whole job without its container: the installation, the race, the card, the report.

    Needs a package index, for the tools that build evenhand.
    """
    base = repository(tmp_path, *seconds)
    subprocess.run(
        ["git", "-C", str(tmp_path), "remote", "add", "origin", "https://git.example.org/a/b.git"],
        check=True,
    )
    shutil.copy(EXAMPLES / "race.toml", tmp_path)
    (tmp_path / "requirements.txt").write_text("numpy\n")
    settings = "--blocks 12 --margin 0.2 --figures false --others_limit_percent 100"
    content = (EXAMPLES / "gitlab-ci.yml").read_text().replace("--blocks 12", settings)
    (tmp_path / ".gitlab-ci.yml").write_text(content)
    variables = {
        "CI_PIPELINE_SOURCE": "merge_request_event",
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": base,
        "EVENHAND": f"file://{source}",
    }
    options = [f"--variable={name}={text}" for name, text in variables.items()]
    inherited = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("MLFLOW_", "VIRTUAL_ENV", "PYTHON"))
    }
    path = f"{image / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["gitlab-ci-local", "--force-shell-executor", "--no-color", *options],
        cwd=tmp_path,
        env={**inherited, "PATH": path, "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    ends = re.findall(r"^race finished in \S+ (?:s|min)(.*)$", output, re.MULTILINE)
    assert [text.strip() for text in ends] == [end], output
    assert ("FAIL  race" if end else "PASS  race") in output
    assert "race > | time (wall time) |" in done.stdout, output  # of the card
    reports = list(tmp_path.glob(".gitlab-ci-local/artifacts/race/.evenhand/journal/*/report"))
    assert len(reports) == 1, output
    assert (reports[0] / "report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("seconds", "code"), [((0.5, 0.65), 4), ((0.5, 0.5), 0)])
def test_second_use_in_the_readme(tmp_path: Path, seconds: tuple[float, float], code: int) -> None:
    """Plant 0.15 s in the last commit, and a commit without effect."""
    (script,) = re.findall(r"```\n(printf .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(script.splitlines()) <= 6
    repository(tmp_path, *seconds)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
    )
    printed, card = done.stdout.split(f"\n{code}\n# ", 1)
    assert ("fail_if=slower:wall_seconds holds" in printed) == (code == 4)
    assert "| time (wall time)" in card
