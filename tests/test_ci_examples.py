"""CI jobs in `examples/`, and the race of two commits in the README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.documented import commands

EXAMPLES = ROOT / "examples"
RACE = "evenhand race --file race.toml --blocks 12 --fail_if slower:wall_seconds"
GITHUB = yaml.safe_load((EXAMPLES / "github-workflow.yml").read_text())
GITLAB = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())["race"]
STEPS = {step.get("name", step.get("uses")): step for step in GITHUB["jobs"]["race"]["steps"]}
README = re.search(r"```\n(printf .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SCRIPTS = {
    "README": README[1] if README else "",
    "GitHub": STEPS["Name both commits"]["run"] + "\n" + STEPS["Race"]["run"],
    "GitLab": "\n".join(line for line in GITLAB["script"] if not line.startswith("pip ")),
}


def test_jobs_race_both_commits_by_the_documented_call() -> None:
    assert RACE in [at.text for at in commands() if at.page.endswith("race-in-ci.md")]
    levels = tomllib.loads((EXAMPLES / "race.toml").read_text())["levels"]
    assert {name: level["commit"] for name, level in levels.items()} == {
        "base": "base",
        "head": "head",
    }
    for service in ("GitHub", "GitLab"):
        assert all(
            text in SCRIPTS[service] for text in (RACE, *(f"git tag -f {at}" for at in levels))
        )
    assert GITHUB[True] == "pull_request"  # YAML 1.1 reads `on` as true
    assert STEPS["actions/checkout@v5"]["with"]["fetch-depth"] == 0  # the base must be there
    assert GITLAB["allow_failure"] == {"exit_codes": 3}
    # a failure before `&&` does not end a script under `set -e`
    assert not [line for line in GITLAB["script"] if "&&" in line or ";" in line]


def repository(folder: Path, *seconds: float) -> str:
    """Make a repository with a commit for each duration of `train.py`. Return the first commit."""
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(folder)]
    subprocess.run([*run, "init", "-q"], check=True)
    for number, duration in enumerate(seconds):
        (folder / "train.py").write_text(
            f"import time  # {number}\nend = time.perf_counter() + {duration}\n"
            "while time.perf_counter() < end:\n    pass\n"
        )
        subprocess.run([*run, "add", "train.py"], check=True)
        subprocess.run([*run, "commit", "-qm", str(number)], check=True)
    first = [*run, "rev-parse", "HEAD~1"]
    return subprocess.run(first, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(("seconds", "code"), [((0.5, 1.0), 4), ((0.5, 0.5), 0)])
def test_only_a_slower_commit_fails(
    tmp_path: Path, script: str, seconds: tuple[float, float], code: int
) -> None:
    """Plant half a second in a commit, and a commit without effect."""
    base = repository(tmp_path, *seconds)
    shutil.copy(EXAMPLES / "race.toml", tmp_path)
    busy = "--blocks 12 --margin 0.2 --figures false --others_limit_percent 100"
    done = subprocess.run(
        [
            "bash",
            *([] if script == "README" else ["-e"]),
            "-c",
            SCRIPTS[script].replace("--blocks 12", busy),
        ],
        cwd=tmp_path,
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")},
            **GITHUB["jobs"]["race"]["env"],
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "BASE": base,
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": base,
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        },
        capture_output=True,
        text=True,
    )
    result = re.search(r"^(\d)\n# ", done.stdout, re.MULTILINE) if script == "README" else None
    assert (int(result[1]) if result else done.returncode) == code, done.stdout + done.stderr
    (card,) = tmp_path.glob(".evenhand/journal/*/report/card.md")
    assert card.read_text().startswith("# ")
    assert "| time (wall time)" in card.read_text()
    assert len(card.read_bytes()) < 65_536  # of a comment
