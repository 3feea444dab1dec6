"""A cell's process as its parent starts and ends it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.campaign.process import Child
from experiments.cell.contract import CellSpec

# Four times what a pipe holds, written after the request to end.
LINES = 4_000
LAST_WORDS = f"""#!{sys.executable}
import signal, sys, time
def end(*_):
    for number in range({LINES}):
        print('{{"progress": "' + "x" * 50 + '", "done": %d, "total": 1}}' % number)
    sys.stdout.flush()
    sys.exit()
signal.signal(signal.SIGTERM, end)
print('{{"ready": true}}', flush=True)
while True:
    time.sleep(1)
"""


def test_what_a_process_says_while_it_is_ended_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text(LAST_WORDS)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    paths = (str(tmp_path), "cell", str(tmp_path / "checkpoint"))
    child = Child(CellSpec("run", "none", "none", "toy", "cpu", 1, 0, {}, {}, *paths), tmp_path / "log")
    while not child.listen(1.0):
        assert child.open
    child.stop()
    heard = []
    while child.open:
        heard += child.listen(1.0)
    assert [message["done"] for message in heard if isinstance(message, dict)] == list(range(LINES))
    child.ended()
