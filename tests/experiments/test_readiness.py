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
from tests.conftest import Place, titled, toy_costs, wait_for
from tests.faults.test_campaign import records
from tests.tracking.nvml import UUIDS, Driver, driver, library  # noqa: F401
from tracking.records import RunOpened
from tracking.store import Store

LOOK = """
import dataclasses, json
from experiments.run.machine_state import MachineProbe
idle = MachineProbe("cuda").idle()
print(json.dumps([dataclasses.asdict(idle), idle.troubles, idle.metrics]))
"""


def cpu_seconds() -> dict[int, float]:
    """CPU seconds of every process of this machine so far, in user and kernel mode."""
    times = ((one.pid, one.info["cpu_times"]) for one in psutil.process_iter(["cpu_times"]))
    return {pid: used.user + used.system for pid, used in times if used}


def test_others_work_is_seen_and_named_and_ours_is_not() -> None:
    look, before = machine_state.MachineProbe("cpu"), cpu_seconds()
    with neighbours.busy(1) as (pid,):
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            sum(range(10_000))
        idle, after = look.idle(), cpu_seconds()
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


def test_the_idle_gpu_and_who_else_is_on_it(driver: Driver) -> None:
    driver.answers(pid=1, celsius=38, milliwatts=60_000)
    idle, troubles, metrics = json.loads(driver.python(LOOK))
    assert idle["celsius"]["gpu_0"] == 38
    assert any(
        line.startswith("the GPU was not free at the start: ") and "(1) computed there" in line
        for line in troubles
    )
    assert metrics["idle/gpu_0/temperature_celsius"] == 38


def test_every_gpu_in_use_is_looked_at(driver: Driver) -> None:
    driver.answers({"1.pid": 1, "1.celsius": 45, "2.pid": 1}, cards=3, milliwatts=60_000)
    script = LOOK.replace('MachineProbe("cuda")', 'MachineProbe("cuda", WORKERS)')
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


def test_a_cell_waits_until_the_gpu_is_as_cool_as_at_the_start(driver: Driver) -> None:
    driver.answers(celsius=43)
    assert json.loads(driver.python(WAIT.replace("LIMIT", "5"))) == ["", []]
    driver.answers(celsius=58)
    cooling = threading.Timer(2.5, lambda: driver.answers(celsius=42))
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


def test_a_gpu_that_not_all_see_is_left_alone(
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

    code, output = ended(device="cuda")
    assert code == 2, output
    assert "toy: device 'cuda': the toy framework sees no GPU here" in output
    code, output = ended(device="auto", cool_down_seconds="0")
    assert code == 3, output
    assert (
        "! no GPU for toy, so all run on the CPU; README.md says how each gets to the GPU" in output
    )
    (cell,) = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    assert cell.params["device"] == "cpu"


def test_a_campaign_beside_a_gpu(
    place: Place,
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in {**driver.environment, **toy_costs(step=0.1)}.items():
        monkeypatch.setenv(name, text)
    driver.answers(celsius=40, pid=1)
    synthetic = {"data": "synthetic", "vocabulary": "60", "length": "8"}
    campaign = started(
        place,
        driver,
        frameworks="toy",
        blocks="2",
        device="cpu",
        cool_down_seconds="2",
        **synthetic,
    )
    wait_for(
        lambda: any(
            isinstance(one, RunOpened) and one.tags["kind"] == "cell" for one in records(place)
        ),
        120,
    )
    driver.answers(celsius=58, clock_limits=0x20)
    output, _ = campaign.communicate(timeout=120)
    assert campaign.returncode == 3, output
    warning = "the GPU was not free at the start: "
    assert f"! {warning}" in output
    runs = {titled(run): run for run in Store(place.uri).runs("captioning")}
    first, second = runs["toy · block 1"], runs["toy · block 2"]
    assert runs["captioning demo"].metrics["idle/gpu_0/temperature_celsius"] == 40
    assert "gpu_0 40 °C" in second.tags["idle"]
    assert "still gpu_0 58 °C (started at 40) after 2 s" in (
        first.tags.get("cool_down"),
        second.tags["cool_down"],
    )
    assert second.metrics["system/gpu_0_temperature_celsius"] == 58
    assert second.metrics["gpu/temperature_celsius_max"] == 58
    assert "software thermal slowdown in 100 % of samples" in second.tags["throttled"]
    assert "energy/joules" not in second.metrics  # of a GPU that does not compute here
    assert warning in second.tags["warnings"]
    assert second.tags["gpu"] == "Test GPU (driver 600.00)"


def test_a_campaign_on_one_of_two_gpus(
    place: Place,
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the variable to the cell's process, its sensors and its run; what would make its figures wrong is refused."""
    own = {
        "CUDA_VISIBLE_DEVICES": "1",
        "EVENHAND_TOY_GPU": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "backend:native",
    }
    for name, text in {**driver.environment, **toy_costs(step=0.05), **own}.items():
        monkeypatch.setenv(name, text)
    driver.answers({"1.celsius": 80}, cards=2)
    given = {
        "frameworks": "toy",
        "blocks": "1",
        "device": "auto",
        "data": "synthetic",
        "vocabulary": "60",
        "length": "8",
    }
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    refused = started(place, driver, **given)
    output, _ = refused.communicate(timeout=120)
    assert refused.returncode == 2, output
    assert "CUDA_LAUNCH_BLOCKING=1 is set: every kernel is then waited for" in output
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")
    campaign = started(place, driver, **given)
    output, _ = campaign.communicate(timeout=120)
    assert campaign.returncode == 3, output
    (cell,) = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    assert cell.params["device"] == "cuda"
    assert cell.tags["gpu.uuid"] == UUIDS[1]
    assert cell.tags["gpu"] == "Test GPU (driver 600.00)"
    assert cell.tags["inherited.PYTORCH_CUDA_ALLOC_CONF"] == "backend:native"
    assert cell.metrics["system/gpu_1_temperature_celsius"] == 80
    assert not any(name.startswith("system/gpu_0") for name in cell.metrics)
    (environment,) = place.journal.glob("*/cells/block-*/*/environment.json")
    variables = json.loads(environment.read_text())["variables"]
    expected = {
        "CUDA_VISIBLE_DEVICES": UUIDS[1],
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    assert variables.items() >= expected.items()
