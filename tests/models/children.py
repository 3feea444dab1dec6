"""One framework a process: tests that need one start a child and read what it wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, timeout: float = 500) -> subprocess.CompletedProcess[str]:
    """`python …` from the project's root; fails with the child's own words."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done
