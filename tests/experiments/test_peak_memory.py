"""Peak memory from the first step on, and CPUs that are kept from the cells."""

from __future__ import annotations

import pytest

from tests.models.children import run_python

MEBIBYTE = 2**20
# Ones are written, so that they are resident; a process alone, since a peak belongs to all of it.
SCRIPT = f"""
import numpy as np
from experiments.cell import peak_memory
def take(mebibytes):
    return np.ones(mebibytes * {MEBIBYTE} // 8)
data = take(100)
before = peak_memory.rss_bytes()
copies = [take(200), [take(1) for _ in range(200)]]
loading = peak_memory.rss_bytes()
del copies
assert peak_memory.settle()
settled = peak_memory.rss_bytes()
step = take(50)
del step
training = peak_memory.rss_bytes()
checkpoint = take(300)
del checkpoint
assert peak_memory.restart()
again = peak_memory.rss_bytes()
print(*(round((value - before) / {MEBIBYTE}) for value in (loading, settled, training, again)))
"""


def test_memory_freed_before_steps_is_no_peak() -> None:
    loading, settled, training, again = map(int, run_python("-c", SCRIPT).stdout.split())
    assert loading == pytest.approx(400, abs=20)
    assert abs(settled) < 20
    assert training - settled == pytest.approx(50, abs=10)
    assert abs(again) < 20
