"""Cells of a race that are killed: nothing of their commands goes on running."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from experiments.workloads.command import leftovers
from tests.conftest import Place, are_gone, wait_for
from tests.experiments.race import races
from tracking.technical import unpack_tags

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


def command(place: Place, *options: str) -> list[str]:
    (place.folder / "stays.py").write_text(SCRIPT)
    level = f"stays={shlex.quote(sys.executable)} stays.py; exit 0"
    return [*races.command(place, level, "nap=sleep 0.1"), *options]


def started(place: Place, campaign: psutil.Process) -> tuple[psutil.Process, list[psutil.Process]]:
    """Return the cell of the command's first run, and the processes of that command."""
    first = place.folder / "first.txt"
    wait_for(lambda: first.exists() and bool(first.read_text()), 60)
    cell = next(child for child in campaign.children() if "experiments.cell" in child.cmdline())
    processes = cell.children(recursive=True)
    assert len(processes) == 3  # the shell, the script and its child
    assert int(first.read_text()) in {process.pid for process in processes}
    return cell, processes


def test_a_killed_cell_leaves_no_process(place: Place) -> None:
    process = place.begin(*command(place))
    cell, processes = started(place, psutil.Process(process.pid))
    cell.kill()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert are_gone(processes)
    runs = {name: races.tags(run) for name, run in races.by_level(place).items()}
    assert {name: run["outcome"] for name, run in runs.items()} == {"stays": "failed", "nap": "ok"}
    assert runs["stays"]["outlived"].startswith("3 processes")
    assert "outlived" not in runs["nap"]


@pytest.mark.slow
def test_a_killed_campaign_and_cell_leave_processes_until_resume(place: Place) -> None:
    process = place.begin(*command(place))
    campaign = psutil.Process(process.pid)
    cell, processes = started(place, campaign)
    campaign.suspend()  # so that it does not see its cell's end
    cell.kill()
    campaign.kill()
    process.communicate(timeout=30)
    assert not any(are_gone([orphan]) for orphan in processes)
    folders = [f"--cache={place.cache}", f"--journal={place.journal}"]
    done = place.call(sys.executable, "-m", "experiments", "race", *folders, "--resume=last")
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    assert are_gone(processes)
    (run,) = races.cells(place, "campaign")
    warnings = unpack_tags(run.data.tags)["warnings"]
    assert all(str(orphan.pid) in warnings for orphan in processes)


def test_processes_are_recognized_by_the_folder_in_their_environment(tmp_path: Path) -> None:
    folder = tmp_path / "campaign"
    ours, others = folder / "cells/a/metrics.jsonl", tmp_path / "campaign2/metrics.jsonl"
    calls = {
        "ours": (["sleep", "60"], ours),
        "others": (["sleep", "60"], others),
        "cleared": (["env", "-i", "sleep", "60"], ours),
    }
    processes = {
        name: subprocess.Popen(words, env={**os.environ, "EVENHAND_METRICS": str(path)})
        for name, (words, path) in calls.items()
    }
    wait_for(lambda: psutil.Process(processes["cleared"].pid).name() == "sleep", 10)
    try:
        assert leftovers.end(folder).endswith(f": sleep ({processes['ours'].pid})")
        running = {name for name, process in processes.items() if process.poll() is None}
        assert running == {"others", "cleared"}
        assert leftovers.end(folder) == ""
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
