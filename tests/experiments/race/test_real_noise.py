"""Races of a command against itself, slowed by a known share, on a quiet and on a noisy machine.

`pytest -n 0 -s -m slow tests/experiments/race/test_real_noise.py` prints the table of
docs/comparison.md. It takes an hour of a machine on which nothing else runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys

import pytest

from experiments.comparison.verdicts.decision import Decision
from tests import neighbours
from tests.conftest import Place

WORK = """
import sys
total = 0
for at in range(int(4_000_000 * float(sys.argv[1]))):
    total += at & 7
"""
RACES = int(os.environ.get("EVENHAND_TEST_RACES", "10"))
SHOWN = (Decision.DIFFERENT, Decision.SIZE_OPEN, Decision.WITHIN_MARGIN)


def race(place: Place, slowdown: float, number: int) -> dict[str, object]:
    """Return the row of the wall time of `new`, which does so many times the work of `old`."""
    (place.folder / "work.py").write_text(WORK)
    command = f"{shlex.quote(sys.executable)} work.py"
    journal = place.folder / f"journal-{number}"
    options = {"until": "settled", "blocks": "6", "max_blocks": "40", "seed": str(number)}
    options |= {"journal": str(journal), "cache": str(place.cache)}
    done = place.call(
        *(sys.executable, "-m", "experiments", "race"),
        *(f"--level=old={command} 1", f"--level=new={command} {slowdown}"),
        *(f"--{name}={text}" for name, text in options.items()),
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    (report,) = journal.glob("*/report/comparison.json")
    rows = json.loads(report.read_text())["rows"]
    return next(row for row in rows if row["metric"] == "wall_seconds")


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(
    ("is_noisy", "slowdown", "count", "codes", "least"),
    [
        (False, 1.05, RACES, (Decision.DIFFERENT,), 0.9),
        (True, 1.10, RACES, (Decision.DIFFERENT,), 1.0),
        (True, 1.05, RACES, (Decision.DIFFERENT, Decision.SIZE_OPEN), 0.8),
        (True, 1.00, 2 * RACES, SHOWN, 0.0),
    ],
)
def test_planted_slowdown_is_found(
    place: Place,
    is_noisy: bool,
    slowdown: float,
    count: int,
    codes: tuple[Decision, ...],
    least: float,
) -> None:
    """Find what was planted; of twenty A/A races, at most one shows a difference."""
    neighbour = neighbours.busy(1, neighbours.BURSTS) if is_noisy else contextlib.nullcontext()
    rows = []
    with neighbour:
        for number in range(count):
            rows.append(race(place, slowdown, number))
            keys = ("n_blocks", "estimate", "ci_low", "ci_high", "verdict")
            print(is_noisy, slowdown, *(rows[-1][key] for key in keys), flush=True)
    shown = [row for row in rows if row["decision"] in codes and row["estimate"] > 1]
    blocks = sum(row["n_blocks"] for row in rows) / count
    print(f"| {is_noisy} | {slowdown} | {len(shown)} of {count} | {blocks:.0f} |", flush=True)
    if slowdown == 1:
        assert sum(row["decision"] in codes for row in rows) <= max(1, count // 20)
    else:
        assert len(shown) >= least * count
