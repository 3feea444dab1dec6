"""Peak memory counts what lives from the first step on; CPUs can be kept from the cells."""

from __future__ import annotations

import pytest

from tests.models.children import run_python

MEBIBYTE = 2**20
# Ones are written, so that they are resident; a process of its own, since a peak belongs to the whole of it.
SCRIPT = f"""
import numpy as np
from experiments.cell import peak_memory
def take(mebibytes):
    return np.ones(mebibytes * {MEBIBYTE} // 8)
kept = take(100)
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


def test_what_was_freed_before_the_first_step_and_between_epochs_is_no_peak() -> None:
    loading, settled, training, again = map(int, run_python("-c", SCRIPT).stdout.split())
    assert loading == pytest.approx(400, abs=20)
    assert abs(settled) < 20
    assert training - settled == pytest.approx(50, abs=10)
    assert abs(again) < 20
