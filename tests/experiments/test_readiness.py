"""Is the machine free and cool: real load, a GPU whose answers are told, and a campaign that is refused."""

from __future__ import annotations

import json
import os
import threading
import time

import psutil
import pytest

from experiments.run import machine_state
from experiments.run.machine_state import MachineState
from tests import neighbours, warm
from tests.conftest import Place
from tests.tracking.nvml import UUIDS, Driver, driver, library  # noqa: F401
from tracking.sensors import load
from tracking.store import Store

LOOK = """
import dataclasses, json
from experiments.run.machine_state import observe
from tracking.sensors import load
idle = observe(load.look(), "cuda")
print(json.dumps([dataclasses.asdict(idle), idle.troubles, idle.metrics]))
"""


def cpu_seconds() -> dict[int, float]:
    """CPU seconds of every process of this machine so far, in user and kernel mode."""
    times = ((one.pid, one.info["cpu_times"]) for one in psutil.process_iter(["cpu_times"]))
    return {pid: used.user + used.system for pid, used in times if used}


def test_load_by_others_is_named() -> None:
    began, before = load.look(), cpu_seconds()
    with neighbours.busy(1) as (pid,):
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            sum(range(10_000))
        idle, after = machine_state.observe(began, "cpu"), cpu_seconds()
    assert idle.others_percent > 10  # a fifth of a core at least, also where other tests run
    if idle.busiest:  # ours, or what worked as much beside it: never a wrong name
        named = int(idle.busiest.rpartition("(")[2].rstrip(")"))
        assert named not in {
            os.getpid(),
            *(child.pid for child in psutil.Process().children(recursive=True)),
        }
        assert after[named] - before.get(named, 0.0) >= 0.9 * after[pid]
    assert "the CPU was not free at the start: others used" in idle.troubles[0]
    alone = MachineState(others_percent=9.0)
    assert alone.troubles == ()
    assert alone.metrics == {"idle/others_cpu_percent": 9.0}


def test_idle_gpu_lists_other_processes(driver: Driver) -> None:
    driver.answers(pid=1, celsius=38, milliwatts=60_000)
    idle, troubles, metrics = json.loads(driver.python(LOOK))
    assert idle["celsius"]["gpu_0"] == 38
    assert any(
        line.startswith("the GPU was not free at the start: ") and "(1) computed there" in line
        for line in troubles
    )
    assert metrics["idle/gpu_0/temperature_celsius"] == 38


def test_every_gpu_of_a_cell_is_observed(driver: Driver) -> None:
    driver.answers({"1.pid": 1, "1.celsius": 45, "2.pid": 1}, cards=3, milliwatts=60_000)
    script = LOOK.replace('"cuda")', '"cuda", WORKERS)')
    alone, pair = (
        json.loads(driver.python(script.replace("WORKERS", count), CUDA_VISIBLE_DEVICES="0,1,2"))
        for count in "12"
    )
    assert alone[0]["on_gpu"] == []
    assert [name for name in alone[0]["celsius"] if name.startswith("gpu")] == ["gpu_0"]
    assert len(pair[0]["on_gpu"]) == 1
    assert (pair[0]["celsius"]["gpu_0"], pair[0]["celsius"]["gpu_1"]) == (61, 45)


WAIT = """
import json
from experiments.run.machine_state import cool_down
from tracking.sensors import Sensors
said = []
text = cool_down({"gpu_0": 40.0}, Sensors(device="cuda"), LIMIT, lambda warm, waited: said.append(warm) or True)
print(json.dumps([text, said]))
"""


def test_cool_down_waits_for_start_temperature(driver: Driver) -> None:
    driver.answers(celsius=43)
    assert json.loads(driver.python(WAIT.replace("LIMIT", "5"))) == ["", []]
    driver.answers(celsius=58)
    cooling = threading.Timer(1.0, lambda: driver.answers(celsius=42))
    cooling.start()
    text, said = json.loads(driver.python(WAIT.replace("LIMIT", "60")))
    assert text.startswith("gpu_0 58 °C (started at 40), waited ")
    assert said
    driver.answers(celsius=58)
    text, _ = json.loads(driver.python(WAIT.replace("LIMIT", "1")))
    assert text.startswith("still gpu_0 58 °C (started at 40) after 1 s")


def started(place: Place, driver: Driver, **given: str) -> warm.Process:
    """A campaign that sees the driver; its cells are started anew, and the loader finds it in their environment."""
    return place.begin(*driver.loaded(place.command("captioning", **given)))


def test_invisible_gpu_moves_campaign_to_cpu(
    place: Place,
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver shows a GPU, and the framework cannot reach it: what plain `tensorflow` does, which brings no CUDA libraries."""
    for name, text in driver.environment.items():
        monkeypatch.setenv(name, text)
    synthetic = {
        "frameworks": "toy",
        "blocks": "1",
        "data": "synthetic",
        "vocabulary": "60",
        "length": "8",
    }

    def ended(**given: str) -> tuple[int, str]:
        process = started(place, driver, **synthetic, **given)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    code, output = ended(device="auto", cool_down_seconds="0")
    assert code == 3, output
    assert (
        "! no GPU for toy, so all run on the CPU; README.md says how each gets to the GPU" in output
    )
    (cell,) = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    assert cell.params["device"] == "cpu"
