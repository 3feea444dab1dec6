"""CI jobs in `examples/`: as their services would read them, and run by the letter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
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
    assert "| wall time |" in card
