"""Execution of a command: its times, its memory, its processes and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.workloads.command import process_tree
from tests.conftest import ROOT, Place, are_gone
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
ALLOCATE = "x = bytearray({size}); import time; time.sleep(0.4)"


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
    single = python(tmp_path, "a.py", ALLOCATE.format(size=size))
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
