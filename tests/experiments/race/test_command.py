"""Execution of a command: its times, its memory, its processes and its end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.workloads.command import process_tree
from tests.conftest import ROOT, Place, are_gone, cell_processes, wait_for
from tests.experiments.race import races
from tests.tracking.nvml import Driver, driver, library  # noqa: F401

EXECUTE = """
import dataclasses, json, math, sys, tempfile
from pathlib import Path
from experiments.workloads.command.run import execute
inputs = {"name": "x", "cwd": sys.argv[2], "variables": json.loads(sys.argv[4]),
          "timeout_seconds": float(sys.argv[3]), "command": sys.argv[1]}
with tempfile.TemporaryFile() as file:
    finished = execute(inputs, Path(sys.argv[2]), file, file, float(sys.argv[5]))
print(json.dumps(dataclasses.asdict(finished)))
"""


def execute(
    tmp_path: Path, command: str, timeout: str = "inf", delay: float = 0.0, **variables: str
) -> dict[str, Any]:
    arguments = [command, str(tmp_path), timeout, json.dumps(variables), str(delay)]
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    finished: dict[str, Any] = json.loads(done.stdout)
    return finished


def python(tmp_path: Path, name: str, code: str) -> str:
    (tmp_path / name).write_text(code)
    return f"{sys.executable} {tmp_path / name}"


def test_injected_delay_is_a_share_of_wall_time_and_no_cpu_time(tmp_path: Path) -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    finished = execute(tmp_path, f"{python(tmp_path, 'burn.py', burn)}; exit 7", delay=1.0)
    assert finished["exit_code"] == 7
    assert 0.3 <= finished["user_seconds"] + finished["system_seconds"] < 0.8
    assert finished["wall_seconds"] >= 0.6


def test_memory_is_that_of_all_processes_together(tmp_path: Path) -> None:
    """And not that of the process that starts them, which a fork begins with."""
    size = 80_000_000
    meeting = f"""
import os, time
from pathlib import Path
x = bytearray({size})
Path({str(tmp_path)!r}, f"{{os.getpid()}}.ready").touch()
until = time.monotonic() + 20
while len(list(Path({str(tmp_path)!r}).glob("*.ready"))) < 2 and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.4)
"""
    single = python(tmp_path, "a.py", meeting)
    finished = execute(tmp_path, f"{single} & {single} & wait")
    assert finished["memory_method"] == "pss"
    assert 2 * size < finished["peak_bytes"] < 2 * size + 60_000_000
    assert execute(tmp_path, "sleep 0.3")["peak_bytes"] < 10e6


def test_children_that_outlive_the_command_are_reported_counted_and_ended(tmp_path: Path) -> None:
    burn = (
        "import os, time\nread, write = os.pipe()\nif os.fork() == 0:\n os.setsid()\n"
        " end = time.process_time() + 0.3\n while time.process_time() < end: pass\n"
        " os.write(write, b'x')\n time.sleep(60)\nos.read(read, 1)\n"
    )
    finished = execute(tmp_path, python(tmp_path, "left.py", burn))
    assert finished["exit_code"] == 0
    (left,) = finished["left"]
    assert not psutil.pid_exists(int(left.rpartition("(")[2].rstrip(")")))
    assert finished["wall_seconds"] < 30
    assert finished["user_seconds"] + finished["system_seconds"] >= 0.3


def test_a_timeout_ends_the_whole_tree(tmp_path: Path) -> None:
    began = time.monotonic()
    command = "trap '' TERM; setsid sleep 71.5 & sleep 71.5"
    assert execute(tmp_path, command, timeout="0.3")["exit_code"] is None
    assert time.monotonic() - began < 20
    processes = psutil.process_iter(["cmdline"])
    assert are_gone([each for each in processes if "71.5" in (each.info["cmdline"] or [])])


def test_the_command_gets_the_users_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # evenhand's own default
    execute(tmp_path, "env > seen.txt", MINE="1")
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen.txt").read_text().splitlines())
    assert {"MINE": "1", "EVENHAND_METRICS": f"{tmp_path}/metrics.jsonl"}.items() <= seen.items()
    assert not {"PYTHONPATH", "MLFLOW_DISABLE_TELEMETRY"} & seen.keys()


def test_a_kernel_without_lists_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        assert child.pid in process_tree.descendants()
        monkeypatch.setattr(process_tree, "PROC", Path("/nowhere"))
        assert child.pid in process_tree.descendants()
        child.kill()


HOLD = """
import os, subprocess, sys, time
if sys.argv[1:]:
    with open(os.environ["NVML_ANSWERS"], "a") as answers:
        answers.write(f"child_pid {os.getpid()}\\nchild_bytes {float(sys.argv[1]):.0f}\\n")
    time.sleep(0.5)
else:
    subprocess.run([sys.executable, __file__, "7.5e8"], start_new_session=True)
"""


@pytest.mark.slow
def test_memory_on_the_gpu_is_that_of_the_commands_processes(
    place: Place, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of the command holds 750 MB; another program's process is not counted."""
    for name, text in driver.environment.items():
        monkeypatch.setenv(name, text)
    driver.answers(other_pid=os.getpid(), other_bytes=3e9)
    level = f"holds={python(place.folder, 'hold.py', HOLD)}"
    process = place.begin(*driver.loaded(races.command(place, level, device="cuda")))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 3, output
    (cell,) = races.cells(place)
    (metrics,) = place.journal.glob("*/cells/*/*/metrics.json")
    assert json.loads(metrics.read_text())["memory/peak_device_process_bytes"] == 7.5e8
    assert "not_available.gpu_0_process_memory" not in races.tags(cell)


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
    cells: list[psutil.Process] = []

    def has_begun() -> bool:
        cells.extend(cell_processes(campaign))
        return bool(cells)

    wait_for(has_begun, 60)
    return cells[0]


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

    def busiest_seconds() -> float:
        try:
            return float(max(process.cpu_times().user for process in family()))
        except psutil.NoSuchProcess:  # one that the start has left
            return 0

    wait_for(lambda: busiest_seconds() > 2, 60)
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
        assert process_tree.end_leftovers(folder).endswith(f": sleep ({processes[0].pid})")
        assert [process.poll() is None for process in processes] == [False, True]
        assert process_tree.end_leftovers(folder) == ""
    finally:
        for process in processes:
            process.kill()
            process.wait()
