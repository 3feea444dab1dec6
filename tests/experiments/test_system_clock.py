"""The system's clock is set while cells run: every process of a campaign sees it jump, and no cell ends before it began."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import Place, toy_costs, wait_for
from tests.experiments.test_until_settled import TOYS
from tracking import clock, journal
from tracking.records import Metrics, RunClosed, RunOpened
from tracking.store import Store

HOUR_MS = 3_600_000
# Python runs it when a process starts: the parent, its cells, and what they start.
SITE = """
import os, time
real = time.time
def jumping():
    try:
        with open(os.environ["SET_BACK"]) as file:
            return real() - float(file.read() or 0)
    except OSError:
        return real()
time.time = jumping
"""


def start(place: Place, *command: str) -> subprocess.Popen[str]:
    (place.folder / "site").mkdir(exist_ok=True)
    (place.folder / "site" / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(place.folder / "site"), place.environment["PYTHONPATH"]])
    own = {"PYTHONPATH": path, "SET_BACK": str(place.folder / "seconds"), **toy_costs(step=0.2)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        env={**place.environment, **own},
        cwd=place.folder,
        stdout=pipe,
        stderr=subprocess.STDOUT,
        text=True,
    )


def spans(folder: Path) -> list[tuple[int, int]]:
    """When each run of the campaign but its own began and ended, in the order of the journal."""
    began: dict[str, int] = {}
    found = []
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened) and record.tags["kind"] != "campaign":
            began[record.run] = record.time_ms
        elif isinstance(record, RunClosed) and record.run in began:
            found.append((began[record.run], record.time_ms))
    return found


def cells(folder: Path) -> list[RunOpened]:
    return [
        one
        for one in journal.read_all(folder)
        if isinstance(one, RunOpened) and one.tags["kind"] == "cell"
    ]


@pytest.mark.slow
def test_clock_set_back_is_reported(place: Place) -> None:
    """While a cell runs, and once more before a resumption."""
    given = {**TOYS, "blocks": "1"}
    running = start(place, *place.command("captioning", **given))

    def first_cell_is_timed() -> bool:
        began = [one.run for folder in place.journal.glob("*") for one in cells(folder)]
        told = (
            one
            for folder in place.journal.glob("*")
            for one in journal.read_all(folder)
            if isinstance(one, Metrics)
        )
        return any(one.run in began for one in told)

    wait_for(first_cell_is_timed, 120)  # it has six steps and more of 0.2 s to go
    (place.folder / "seconds").write_text("3600")
    said, _ = running.communicate(timeout=240)
    assert running.returncode == 3, said
    (folder,) = place.journal.glob("*")
    _check(place, folder, said, 2)

    (place.folder / "seconds").write_text("7200")
    options = [
        "captioning",
        "--resume=last",
        "--blocks=2",
        f"--cache={place.cache}",
        f"--journal={place.journal}",
    ]
    resumed = start(place, place.command()[0], "-m", "experiments", *options)
    said, _ = resumed.communicate(timeout=240)
    assert resumed.returncode == 3, said
    _check(place, folder, said, 4)


def _check(place: Place, folder: Path, said: str, count: int) -> None:
    assert "! the system clock was set back by" in said
    found = spans(folder)
    assert len(cells(folder)) == count
    assert all(0 <= end - begin < HOUR_MS / 2 for begin, end in found), found
    assert all(one[1] <= other[0] for one, other in pairwise(found)), found
    of = {run.run_id: run for run in Store(place.uri).runs("captioning")}
    (campaign,) = (run for run in of.values() if run.tags["kind"] == "campaign")
    assert "the system clock was set back by" in campaign.tags["warnings"]
    assert campaign.end_ms is not None
    assert campaign.start_ms <= found[0][0]
    assert found[-1][1] <= campaign.end_ms
    for cell in (run for run in of.values() if run.tags["kind"] == "cell"):
        assert cell.metrics["cpu/utilization_percent_mean"] >= 0, "sensors were read while timed"


@pytest.mark.parametrize(
    ("moved", "said"), [(-3_600.0, 3_600.0), (-1.0, 0.0), (0.5, 0.0), (120.0, -120.0)]
)
def test_clock_jump_differs_from_drift(
    monkeypatch: pytest.MonkeyPatch, moved: float, said: float
) -> None:
    """moved: by which the system's clock is set."""
    system = clock.time.time
    own = clock.Clock()
    before = own.now()
    monkeypatch.setattr(clock.time, "time", lambda: system() + moved)
    assert own.set_back() == pytest.approx(said, abs=0.1)
    assert own.set_back() == 0
    assert 0 <= own.now() - before < 10
