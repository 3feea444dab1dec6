"""State of the machine before the first cell: load, temperature, visible GPUs."""

from __future__ import annotations

import json
import os
import threading
import time

import psutil
import pytest

from experiments.run import machine_state
from experiments.run.machine_state import MachineState
from tests import neighbours
from tests.conftest import Place
from tests.tracking.nvml import Driver, driver, library  # noqa: F401
from tracking.sensors import load

OBSERVE = """
import dataclasses, json
from experiments.run.machine_state import observe
from tracking.sensors import load
state = observe(load.take_snapshot(), "cuda", WORKERS)
print(json.dumps([dataclasses.asdict(state), state.troubles, state.metrics]))
"""


def cpu_seconds() -> dict[int, float]:
    """Return the CPU seconds of every process of this machine so far."""
    times = ((entry.pid, entry.info["cpu_times"]) for entry in psutil.process_iter(["cpu_times"]))
    return {pid: used.user + used.system for pid, used in times if used}


def test_load_by_others_is_named() -> None:
    began, before = load.take_snapshot(), cpu_seconds()
    with neighbours.busy(1) as (pid,):
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            sum(range(10_000))
        state, after = machine_state.observe(began, "cpu"), cpu_seconds()
    assert state.others_percent > 10  # a fifth of a core at least, also where other tests run
    assert state.troubles
    if state.busiest:  # ours, or another that worked as much: never a wrong name
        busiest = int(state.busiest.rpartition("(")[2].rstrip(")"))
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        assert busiest not in ours
        assert after[busiest] - before.get(busiest, 0.0) >= 0.9 * after[pid]
    quiet = MachineState(others_percent=9.0)
    assert quiet.troubles == ()
    assert quiet.metrics == {"idle/others_cpu_percent": 9.0}


def test_gpus_of_a_cell_are_observed_with_their_other_processes(driver: Driver) -> None:
    driver.answers({"1.pid": 1, "1.celsius": 45, "2.pid": 1}, cards=3, milliwatts=60_000)
    visible = {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    single, pair = (
        json.loads(driver.python(OBSERVE.replace("WORKERS", n), **visible)) for n in "12"
    )
    assert [len(state["on_gpu"]) for state, *_ in (single, pair)] == [0, 1]
    assert any("(1)" in line for line in pair[1])
    for (state, _, metrics), expected in (
        (single, {"gpu_0": 61}),
        (pair, {"gpu_0": 61, "gpu_1": 45}),
    ):
        celsius = {name: value for name, value in state["celsius"].items() if "gpu" in name}
        assert celsius == expected
        assert metrics["idle/gpu_0/temperature_celsius"] == 61


WAIT = """
import json
from experiments.run.machine_state import cool_down
from tracking.sensors import Sensors
warm = []
sensors = Sensors(device="cuda")
text = cool_down({"gpu_0": 40.0}, sensors, LIMIT, lambda name, _: not warm.append(name))
print(json.dumps([text, warm]))
"""


def test_cool_down_waits_for_start_temperature(driver: Driver) -> None:
    driver.answers(celsius=43)
    assert json.loads(driver.python(WAIT.replace("LIMIT", "5"))) == ["", []]
    driver.answers(celsius=58)
    threading.Timer(1.0, lambda: driver.answers(celsius=42)).start()
    text, warm = json.loads(driver.python(WAIT.replace("LIMIT", "60")))
    assert "gpu_0 58" in text
    assert warm
    driver.answers(celsius=58)
    text, _ = json.loads(driver.python(WAIT.replace("LIMIT", "1")))
    assert text.startswith("still gpu_0 58")


def test_invisible_gpu_is_refused_with_what_repairs_it(
    place: Place, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show a GPU that the framework cannot reach, as plain `tensorflow` without CUDA libraries."""
    for name, text in driver.environment.items():
        monkeypatch.setenv(name, text)
    settings = {"frameworks": "toy", "blocks": "1", "data": "synthetic", "vocabulary": "60"}
    settings |= {"length": "8", "device": "auto", "cool_down_seconds": "0"}
    process = place.begin(*driver.loaded(place.command("captioning", **settings)))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "toy does not see Test GPU" in output
    assert "setup" in output
    assert "--device cpu" in output


def test_state_of_another_version_is_read() -> None:
    state = MachineState.from_values({"others_percent": 3.0, "watts": {"package": 9.0}})
    assert state == MachineState(others_percent=3.0)
