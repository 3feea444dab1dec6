"""The machine: load by other programs, which repeats cells, temperature, GPUs, and its clock."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from experiments.run import machine_state
from experiments.run.journal_runs import cell_results
from experiments.run.machine_state import MachineState
from tests import neighbours
from tests.conftest import Place, set_toy_costs, titled, wait_for
from tests.experiments import small_campaigns
from tests.experiments.race import races
from tests.experiments.test_blocks import TOYS
from tests.faults.test_campaign import records
from tests.tracking.nvml import Driver, driver, library  # noqa: F401
from tracking import clock
from tracking.journal import Journal
from tracking.records import (
    OTHERS_CPU,
    OVERSUBSCRIBED,
    Metrics,
    Point,
    RunClosed,
    RunOpened,
    RunOutcome,
    StoredRun,
    Tags,
)
from tracking.sensors import load
from tracking.store import Store


def cells(place: Place) -> dict[str, list[StoredRun]]:
    """Return the runs of every cell, in the order in which they began."""
    runs: dict[str, list[StoredRun]] = {}
    for run in sorted(Store(place.uri).runs("captioning"), key=lambda run: run.start_ms):
        if run.tags["kind"] == "cell":
            runs.setdefault(titled(run), []).append(run)
    return runs


def test_steady_load_repeats_no_cell_and_is_recorded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take all CPUs, so that no other test adds to it. The frameworks sleep."""
    set_toy_costs(monkeypatch, step=0.05)
    with neighbours.busy(os.cpu_count() or 1):
        small_campaigns.measure(place, **{**TOYS, "others_limit_percent": "20"}, blocks="2")
    runs = cells(place)
    assert len(runs) == 4
    for (run,) in runs.values():
        assert run.metrics[OTHERS_CPU] > 60
        assert run.metrics[OVERSUBSCRIBED] > 20
        assert "disturbed" not in run.tags


@pytest.mark.slow  # the first cells need a quieter machine than the last
def test_cell_with_more_load_than_others_is_repeated_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt the repetition: resume runs it, though the machine is as busy, and none after."""
    set_toy_costs(monkeypatch, step=0.1)

    def opened() -> list[RunOpened]:
        runs = [record for record in records(place) if isinstance(record, RunOpened)]
        return [run for run in runs if run.tags["kind"] == "cell"]

    campaign = place.start(**{**TOYS, "others_limit_percent": "20"}, blocks="2")
    wait_for(lambda: len(opened()) == 4, 120)
    with neighbours.busy(os.cpu_count() or 1):
        wait_for(lambda: "repeats" in opened()[-1].tags, 120)
        campaign.send_signal(signal.SIGINT)
        campaign.communicate(timeout=120)
        for _ in range(2):
            place.resume()
    assert len(opened()) == 6
    ((first, *again),) = (runs for runs in cells(place).values() if len(runs) > 1)
    assert first.metrics[OTHERS_CPU] > 60
    assert "repeats" not in first.tags
    assert [run.tags["outcome"] for run in again] == ["interrupted", "ok"]
    assert {run.tags["repeats"] for run in again} == {first.tags["disturbed"]}
    excluded = small_campaigns.comparison(place)["excluded"]
    excluded = [run["code"] for run in excluded if not run["metric"]]
    assert sorted(excluded) == ["", "busy_machine"]  # the interrupted one has none


GPU = """
import json, os, time
from experiments.run.sensing import BackgroundLoad, Sensing
from tracking.records import OTHERS_GPU, Metrics, Tags
from tracking.sensors import Sensors, Window
written = []
with open(os.environ["NVML_ANSWERS"], "a") as file:
    file.write(f"pid {os.getpid()}")
load = BackgroundLoad()
with Sensing("run", Sensors(os.getpid(), "cuda"), 0.05, written.append) as sensing:
    load.begin()
    began = time.time()
    time.sleep(0.4)
    windows = [Window("", began, time.time(), 1)]
    load.end()
load.on_gpu = sensing.others_on_gpu(windows)
usual = {OTHERS_GPU: 0.0}
reasons = [load.log("run", usual, limit, written.append) for limit in (99.9, 100.0)]
points = [point for record in written if isinstance(record, Metrics) for point in record.points]
logged = [point.value for point in points if point.key == OTHERS_GPU]
print(json.dumps([reasons, logged, load.metrics.get(OTHERS_GPU)]))
"""


def test_other_process_on_gpu_disturbs_cell(driver: Driver) -> None:
    driver.answers()
    assert json.loads(driver.python(GPU)) == [["", ""], [0.0, 0.0], 0.0]
    driver.answers(other_pid=os.getpid())
    (reason, without_limit), *percents = json.loads(driver.python(GPU))
    assert percents == [[100.0, 100.0], 100.0]
    assert f"{psutil.Process().name()} ({os.getpid()})" in reason
    assert without_limit == ""


def test_journal_has_results_of_disturbed_cells(tmp_path: Path) -> None:
    journal, disturbed = Journal(tmp_path), "others used 30 % of the CPU"
    runs = [("owed", 0, "ok"), ("had", 0, "ok"), ("had", 1, "ok")]
    runs += [("broken", 0, "ok"), ("broken", 1, "failed"), ("free", 0, "ok")]
    for number, (key, is_repeat, outcome) in enumerate(runs):
        tags = {"cell": key, **({"repeats": disturbed} if is_repeat else {})}
        journal.append(RunOpened(str(number), number, "e", key, tags))
        if key != "free":
            journal.append(Tags(str(number), {"disturbed": disturbed}))
        journal.append(Metrics(str(number), (Point(OTHERS_CPU, number, 0, 0),), detail=True))
        journal.append(RunClosed(str(number), number, outcome))
    journal.close()
    results = cell_results(tmp_path)
    assert {result.outcome for result in results.values()} == {RunOutcome.OK}
    assert {
        key: (result.metrics[OTHERS_CPU], result.disturbed, result.repeat)
        for key, result in results.items()
    } == {
        "owed": (0, disturbed, False),
        "had": (2, disturbed, True),
        "broken": (3, disturbed, False),
        "free": (5, "", False),
    }


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_planted_difference_is_found_by_a_race_next_to_bursts_of_load(place: Place) -> None:
    """Count 8 % further; a burst makes either command about a third slower."""
    steps = 110_000_000
    levels = [f"{name}={sys.executable} -c 'sum(range({count}))'" for name, count in
              (("old", steps), ("new", int(1.08 * steps)))]  # fmt: skip
    options = {"blocks": "40", "margin": "0.01", "others_limit_percent": "10"}
    with neighbours.busy(1, neighbours.BURSTS):
        races.run(place, *levels, **options, code=0)
    row = races.comparison(place)["rows"]["wall_seconds"]
    assert (row["b"], row["verdict"]) == ("new", "slower")
    assert row["ci_low"] < 1.08 < row["ci_high"]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_background_load_causes_no_false_verdict(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run A/A 20 times, six blocks each: a difference beyond the margin is a false verdict."""
    set_toy_costs(monkeypatch, step=0.02)
    settings = {**TOYS, "blocks": "6", "others_limit_percent": "10"}
    with neighbours.busy(os.cpu_count() or 1):
        for seed in range(20):
            done = place.run(**settings, seed=str(seed))
            assert done.returncode in (0, 3), done.stderr
    reports = [folder / "report" / "comparison.json" for folder in place.journal.iterdir()]
    rows = [row for report in reports for row in json.loads(report.read_text())["rows"]]
    assert not [row for row in rows if row["verdict"] in ("faster", "slower", "higher", "lower")]
    assert sum("other programs" in row["reason"] for row in rows) >= 20, "the load was present"


# ---- state of the machine before the first cell, and its clock

OBSERVE = """
import dataclasses, json
from experiments.run.machine_state import observe
from tracking.sensors import load
state = observe(load.take_snapshot(), "cuda", WORKERS)
print(json.dumps([dataclasses.asdict(state), state.troubles, state.metrics]))
"""


def test_load_by_others_is_observed() -> None:
    began = load.take_snapshot()
    with neighbours.busy(1):
        time.sleep(0.8)
        state = machine_state.observe(began, "cpu")
    assert state.others_percent > 10  # a fifth of a core at least, also where other tests run
    assert state.troubles
    quiet = MachineState(others_percent=9.0)
    assert quiet.troubles == ()
    assert quiet.metrics == {"idle/others_cpu_percent": 9.0}
    assert MachineState.from_values({"others_percent": 9.0, "of_another_version": {}}) == quiet


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
    settings = {"frameworks": "toy", "blocks": "1", "device": "auto", "cool_down_seconds": "0"}
    process = place.begin(*driver.loaded(place.command("captioning", **{**TOYS, **settings})))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "toy does not see Test GPU" in output
    assert "setup" in output
    assert "--device cpu" in output


@pytest.mark.parametrize(
    ("moved", "reported"), [(-3_600.0, 3_600.0), (-1.0, 0.0), (0.5, 0.0), (120.0, -120.0)]
)
def test_clock_jump_differs_from_drift(
    monkeypatch: pytest.MonkeyPatch, moved: float, reported: float
) -> None:
    system_time = clock.time.time
    campaign_clock = clock.Clock()
    before = campaign_clock.now()
    monkeypatch.setattr(clock.time, "time", lambda: system_time() + moved)
    assert campaign_clock.set_back() == pytest.approx(reported, abs=0.1)
    assert campaign_clock.set_back() == 0
    assert 0 <= campaign_clock.now() - before < 10
