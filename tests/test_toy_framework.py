"""Framework of another distribution: its entry point and contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PYTHONPATH, ROOT

# It drops nothing and decays the one array that it trains.
NOT_ITS_OWN = {
    "check_dropout_is_on_only_in_training",
    "check_sgd_is_the_textbooks",
}


def python(
    *arguments: str, path: str = PYTHONPATH, **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(
        [sys.executable, *arguments],
        env=variables,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


def plugin(folder: Path, value: str) -> str:
    """Return a path on which a distribution has the entry point."""
    (folder / "other-1.dist-info").mkdir()
    (folder / "other-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: other\nVersion: 1\n"
    )
    (folder / "other-1.dist-info" / "entry_points.txt").write_text(
        f"[evenhand.frameworks]\nother = {value}\n"
    )
    return os.pathsep.join([PYTHONPATH, str(folder)])


def test_toy_keeps_its_contract() -> None:
    done = python("-m", "tests.models.framework_checks", "toy")
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    assert {check for check, trouble in outcomes.items() if trouble} == NOT_ITS_OWN


def test_framework_needs_its_entry_point() -> None:
    listed = "from models import frameworks; print('toy' in frameworks.available())"
    assert [python("-c", listed, path=path).stdout for path in (PYTHONPATH, str(ROOT))] == [
        "True\n",
        "False\n",
    ]


def test_proofs_depend_on_its_code() -> None:
    script = "import models; print(models.code_digest())"
    digests = {python("-c", script, path=path).stdout for path in (PYTHONPATH, str(ROOT))}
    assert len(digests - {""}) == 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere.at_all", "No module named 'nowhere'"),
        ("json", "'VARIANTS'"),
        ("models.frameworks.pytorch", "'pytorch'"),
    ],
)
def test_wrong_entry_point_is_one_line(tmp_path: Path, value: str, reason: str) -> None:
    requests = [{"model": "lenet", "rules": []}]
    task = {"requests": requests, "side": {"framework": "toy"}, "threads": 1}
    words = ("-m", "models.parity", "toy", str(tmp_path / "out"), json.dumps(task))
    done = python(*words, path=plugin(tmp_path, value))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert value in done.stderr
    assert reason in done.stderr
