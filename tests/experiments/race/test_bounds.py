"""Bounds of what follows a command: time, memory, and what is at the places of its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, Place, are_gone, wait_for
from tests.experiments.race import races

BACKTRACKS = "(?:a+)+c|loss: ([0-9])"


def write_race(place: Place, levels: dict[str, str], timeout: str = "", regex: str = "") -> None:
    head = f"[defaults]\ntimeout = '{timeout}'\n" if timeout else ""
    tables = [f"[levels.{name}]\ncommand = '''{text}'''\n" for name, text in levels.items()]
    outcome = f"[outcomes.loss]\nbetter = 'lower'\nregex = '{regex}'\n" if regex else ""
    (place.folder / "race.toml").write_text(head + "".join(tables) + outcome)


def is_cell(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "experiments.cell" in process.cmdline()
    return False


def cell_of(campaign: int) -> psutil.Process:
    def find() -> list[psutil.Process]:
        children = psutil.Process(campaign).children()
        return [child for child in children if is_cell(child)]

    wait_for(lambda: bool(find()), 60)
    return find()[0]


def test_expression_that_backtracks_ends_at_the_timeout(place: Place) -> None:
    """The two outputs and a value are there all the same."""
    levels = {"bad": f"echo {'a' * 60}b; echo err >&2", "good": "echo loss: 1"}
    write_race(place, levels, timeout="3s", regex=BACKTRACKS)
    began = time.monotonic()
    done = place.call(*races.command(place, file="race.toml"))
    assert time.monotonic() - began < 60
    assert done.returncode == 1, done.stdout + done.stderr
    runs = races.by_level(place)
    bad, good = races.tags(runs["bad"]), races.tags(runs["good"])
    assert (bad["outcome"], bad["end"], bad["exit_code"]) == ("failed", "timeout", "0")
    assert (good["outcome"], good["end"]) == ("ok", "exit")
    assert runs["good"].data.metrics["loss"] == 1
    (printed,) = place.journal.glob("*/cells/*-bad/*/stdout.txt")
    assert printed.read_text() == f"{'a' * 60}b\n"


def test_missing_files_and_folders_in_their_place_are_one_line(place: Place) -> None:
    levels = {
        "folder": "mkdir $EVENHAND_METRICS",
        "removed": "rm -r $(dirname $EVENHAND_METRICS)",
    }
    write_race(place, levels)
    done = place.call(*races.command(place, file="race.toml"))
    assert done.returncode == 1, done.stdout + done.stderr
    tags = {name: races.tags(run) for name, run in races.by_level(place).items()}
    outcomes = {name: tag["outcome"] for name, tag in tags.items()}
    assert outcomes == {"folder": "failed", "removed": "ok"}
    assert "EVENHAND_METRICS" in tags["folder"]["outcome_reason"]
    assert "Traceback" not in done.stdout + done.stderr


def test_large_file_of_metrics_is_refused(place: Place) -> None:
    write_race(place, {"large": "truncate -s 200M $EVENHAND_METRICS"})
    began = time.monotonic()
    done = place.call(*races.command(place, file="race.toml"))
    assert time.monotonic() - began < 60
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{200 * 2**20:,}" in races.tags(races.by_level(place)["large"])["outcome_reason"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_cell_that_reads_results_ends_with_its_campaign(place: Place, number: int) -> None:
    """There is no timeout, and an expression that does not end."""
    write_race(place, {"bad": f"echo {'a' * 60}b"}, regex=BACKTRACKS)
    process = place.begin(*races.command(place, file="race.toml"))
    cell = cell_of(process.pid)

    def family() -> list[psutil.Process]:
        return [cell, *cell.children(recursive=True)]

    wait_for(lambda: max(process.cpu_times().user for process in family()) > 2, 60)
    processes = family()
    os.kill(process.pid, number)
    wait_for(lambda: are_gone(processes), 15)
    process.communicate(timeout=30)


STUCK = """
import signal
from experiments.workloads.command import run
run.MAX_END_SECONDS = 1
signal.signal(signal.SIGTERM, run._interrupt_once)
try:
    signal.raise_signal(signal.SIGTERM)
finally:
    open("pipe")
"""


def test_cell_whose_end_waits_is_ended_by_the_kernel(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", STUCK], cwd=tmp_path, env=environment, timeout=30)
    assert done.returncode == -signal.SIGALRM


def test_store_that_a_command_removes_is_reported_in_lines(place: Place) -> None:
    write_race(place, {"removes": "rm mlflow.db*", "good": "true"})
    done = place.call(*races.command(place, file="race.toml"))
    assert "Traceback" not in done.stdout + done.stderr
    assert "replay" in done.stdout + done.stderr
