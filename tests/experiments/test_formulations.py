"""Speed of the formulation `sequence`, which does the work of `prefix` once and not per word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_sequence_is_five_times_as_fast_as_prefix(framework: str, tmp_path: Path) -> None:
    """Use Flickr30k's vocabulary and length, 32 captions a step."""
    command = [
        sys.executable,
        "-m",
        "tests.experiments.formulation_speed",
        framework,
        "18313",
        "74",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2_000:]
    ratio = float(done.stdout.rsplit("RATIO=", 1)[1])
    assert ratio >= 5, done.stdout
