"""Freed memory of a cell with malloc=keep stays with the process, in all its threads."""

from __future__ import annotations

import ctypes

import pytest

from experiments.config import memory
from tests.conftest import ROOT
from tests.models.children import run_python
from tracking.errors import ErrorCode, UsageError

TOY = str(ROOT / "tests" / "toy_framework" / "installed")
TIMES, BYTES = 20, 40_000_000
PAGES = BYTES // 4_096
# Blocks above 32 MiB, the largest that glibc's threshold adjusts itself to, are mapped anew.
SCRIPT = f"""
import resource, sys, threading
sys.path.insert(0, sys.argv[2])
from types import SimpleNamespace
from experiments.cell.__main__ import opened

settings = {{"malloc": sys.argv[1], "precision": "float32", "seed": 0}}
settings["conv_algorithm"] = "profiled"
opened(SimpleNamespace(
    framework="toy", device="cpu", threads=1, block=1, settings=settings, environment={{}}
))

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def faults():
    bytes([1]) * {BYTES}
    before = page_faults()
    for _ in range({TIMES}):
        bytes([1]) * {BYTES}
    counts.append(page_faults() - before)

counts = []
faults()
worker = threading.Thread(target=faults)
worker.start()
worker.join()
print(*counts)
"""


@pytest.mark.parametrize("malloc", ["system", "keep"])
def test_freed_memory_is_kept(malloc: str) -> None:
    for faults in map(int, run_python("-c", SCRIPT, malloc, TOY).stdout.split()):
        if malloc == "keep":
            assert faults < 0.01 * TIMES * PAGES
        else:  # huge pages would leave a 512th of the faults
            assert faults > TIMES * PAGES / 512


def test_other_c_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    with pytest.raises(UsageError) as error:
        memory.keep_freed()
    assert error.value.code is ErrorCode.UNSUPPORTED
    assert "malloc=keep" in str(error.value)
