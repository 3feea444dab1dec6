"""Cells and campaigns of a race that are killed: nothing of their commands goes on running."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from experiments.workloads.command import leftovers
from tests.conftest import ROOT, Place, are_gone, wait_for
from tests.experiments.race import races

# In its first run a child in a session of its own, whose parent has ended, stays with the command.
SCRIPT = """
import os, pathlib, time
if not pathlib.Path("first.txt").exists():
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.write(write, str(os.getpid()).encode())
        time.sleep(300)
    os.wait()
    pathlib.Path("first.txt").write_text(os.read(read, 20).decode())
    time.sleep(300)
"""
BACKTRACKS = f"[levels.bad]\ncommand = 'echo {'a' * 60}b'\n"
BACKTRACKS += "[outcomes.loss]\nbetter = 'lower'\nregex = '(?:a+)+c|([0-9])'\n"


def cell_of(campaign: int) -> psutil.Process:
    def find() -> list[psutil.Process]:
        children = psutil.Process(campaign).children()
        commands = {child: child.as_dict(["cmdline"])["cmdline"] for child in children}
        return [
            child for child, words in commands.items() if "experiments.workloads" in (words or ())
        ]

    wait_for(lambda: bool(find()), 60)
    return find()[0]


def start(place: Place) -> tuple[int, psutil.Process, list[psutil.Process]]:
    """Start a race; return its id, the first cell, and the processes of that cell's command."""
    (place.folder / "stays.py").write_text(SCRIPT)
    level = f"stays={shlex.quote(sys.executable)} stays.py; exit 0"
    process = place.begin(*races.command(place, level, "nap=sleep 0.1"))
    first = place.folder / "first.txt"
    wait_for(lambda: first.exists() and bool(first.read_text()), 60)
    cell = cell_of(process.pid)
    processes = cell.children(recursive=True)
    assert len(processes) == 3  # the shell, the script and its child
    assert int(first.read_text()) in {process.pid for process in processes}
    return process, cell, processes


def test_a_killed_cell_leaves_no_process(place: Place) -> None:
    process, cell, processes = start(place)
    cell.kill()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert are_gone(processes)
    runs = {name: races.tags(run) for name, run in races.by_level(place).items()}
    assert {name: run["outcome"] for name, run in runs.items()} == {"stays": "failed", "nap": "ok"}
    assert runs["stays"]["outlived"].startswith("3 processes")
    assert "outlived" not in runs["nap"]


@pytest.mark.slow
@pytest.mark.parametrize("cell_too", [False, True])
def test_a_killed_campaign_goes_on_without_processes_of_before(
    place: Place, *, cell_too: bool
) -> None:
    """A cell ends its command with its campaign, unless it was killed before: then resume does."""
    process, cell, processes = start(place)
    campaign = psutil.Process(process.pid)
    if cell_too:
        campaign.suspend()  # so that it does not see its cell's end
        cell.kill()
    campaign.kill()
    process.communicate(timeout=30)
    if cell_too:
        assert not any(are_gone([orphan]) for orphan in processes)
    else:
        wait_for(lambda: are_gone(processes), 15)
    folders = [f"--cache={place.cache}", f"--journal={place.journal}"]
    done = place.call(sys.executable, "-m", "experiments", "race", *folders, "--resume=last")
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    assert are_gone(processes)
    (run,) = races.cells(place, "campaign")
    warnings = races.tags(run).get("warnings", "")
    assert all((str(orphan.pid) in warnings) == cell_too for orphan in processes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_cell_that_reads_results_ends_with_its_campaign(place: Place, number: int) -> None:
    """There is no timeout, and an expression that does not end."""
    (place.folder / "race.toml").write_text(BACKTRACKS)
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


def test_processes_are_recognized_by_the_folder_in_their_environment(tmp_path: Path) -> None:
    folder = tmp_path / "campaign"
    ours, others = folder / "cells/a/metrics.jsonl", tmp_path / "campaign2/metrics.jsonl"
    processes = [
        subprocess.Popen(["sleep", "60"], env={**os.environ, "EVENHAND_METRICS": str(path)})
        for path in (ours, others)
    ]
    try:
        assert leftovers.end(folder).endswith(f": sleep ({processes[0].pid})")
        assert [process.poll() is None for process in processes] == [False, True]
        assert leftovers.end(folder) == ""
    finally:
        for process in processes:
            process.kill()
            process.wait()
