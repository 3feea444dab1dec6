"""Load by other programs: cells are repeated, and their times are not judged."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from experiments.run.journal_runs import cell_results
from tests import neighbours
from tests.conftest import Place, set_toy_costs, titled, wait_for
from tests.faults.test_campaign import records
from tests.tracking.nvml import Driver, driver, library  # noqa: F401
from tracking.journal import Journal
from tracking.records import OTHERS_CPU, RunClosed, RunOpened, RunOutcome, StoredRun, Tags
from tracking.store import Store

# Two frameworks that sleep: all work on the CPUs is that of others.
TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "inference_requests": "2",
    "bleu_images": "1",
    "epochs": "1",
}


def cells(place: Place) -> dict[str, list[StoredRun]]:
    """Return the runs of every cell, in the order in which they began."""
    runs: dict[str, list[StoredRun]] = {}
    for run in sorted(Store(place.uri).runs("captioning"), key=lambda run: run.start_ms):
        if run.tags["kind"] == "cell":
            runs.setdefault(titled(run), []).append(run)
    return runs


def test_disturbed_cells_are_repeated_once_and_not_judged(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, step=0.1)
    with neighbours.busy(1, neighbours.A_TENTH):
        done = place.run(**TOYS, blocks="1", others_limit_percent="0")
    assert done.returncode == 3, done.stderr + done.stdout
    runs = cells(place)
    assert set(runs) == {"toy · block 1", "toy+twin · block 1"}
    for first, again in runs.values():  # each once more, although the machine is as busy then
        assert first.metrics[OTHERS_CPU] > 0
        assert first.tags["disturbed"]
        assert "repeats" not in first.tags
        assert again.tags["repeats"] == first.tags["disturbed"]
        marks = [set(run.name.split(" · ")) & {"disturbed", "repeated"} for run in (first, again)]
        assert marks[0] == {"disturbed"}
        assert "repeated" in marks[1]
    firsts, repeats = zip(*runs.values(), strict=True)
    assert max(run.start_ms for run in firsts) < min(run.start_ms for run in repeats)
    report = json.loads((next(place.journal.iterdir()) / "report" / "comparison.json").read_text())
    (timed,) = (row for row in report["rows"] if row["metric"] == "train/step_seconds")
    assert timed["verdict"] == "inconclusive"
    excluded = {run["code"] for run in report["excluded"] if not run["metric"]}
    assert excluded == {"busy_machine"}


@pytest.mark.slow
def test_resume_runs_interrupted_repetition_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take a limit of 0 %: the cell is beyond it however free the machine is."""
    set_toy_costs(monkeypatch, step=0.1)

    def outcomes() -> list[tuple[str, bool]]:
        tags = [run.tags for run in cells(place)["toy · block 1"]]
        return [(each["outcome"], "repeats" in each) for each in tags]

    with neighbours.busy(1, neighbours.A_TENTH):
        settings = {**TOYS, "frameworks": "toy", "blocks": "1", "others_limit_percent": "0"}
        campaign = place.start(**settings)
        wait_for(
            lambda: any(
                "repeats" in record.tags
                for record in records(place)
                if isinstance(record, RunOpened)
            ),
            120,
        )
        campaign.send_signal(signal.SIGINT)
        campaign.communicate(timeout=120)
        interrupted = [("ok", False), ("interrupted", True)]
        assert outcomes() == interrupted
        for _ in range(2):
            place.resume()
            assert outcomes() == [*interrupted, ("ok", True)]


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
reasons = [load.log("run", limit, written.append) for limit in (99.9, 100.0)]
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
    journal, disturbed = Journal(tmp_path), "others used 30 % of all CPUs"
    runs = [
        ("owed", False, "ok"),
        ("had", False, "ok"),
        ("had", True, "ok"),
        ("broken", False, "ok"),
        ("broken", True, "failed"),
        ("free", False, "ok"),
    ]
    for number, (key, is_repeat, outcome) in enumerate(runs):
        tags = {"cell": key, **({"repeats": disturbed} if is_repeat else {})}
        journal.append(RunOpened(str(number), number, "e", key, tags))
        if key != "free":
            journal.append(Tags(str(number), {"disturbed": disturbed}))
        journal.append(RunClosed(str(number), number, outcome))
    journal.close()
    results = cell_results(tmp_path)
    assert {result.outcome for result in results.values()} == {RunOutcome.OK}
    assert {key: (result.disturbed, result.repeat) for key, result in results.items()} == {
        "owed": (disturbed, False),
        "had": (disturbed, True),
        "broken": (disturbed, False),
        "free": ("", False),
    }


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_background_load_causes_no_false_verdict(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run A/A 20 times, six blocks each: a difference beyond the margin is a false verdict."""
    set_toy_costs(monkeypatch, step=0.02)
    settings = {**TOYS, "steps_per_epoch": "12", "blocks": "6", "others_limit_percent": "10"}
    with neighbours.busy(os.cpu_count() or 1):
        for seed in range(20):
            done = place.run(**settings, seed=str(seed))
            assert done.returncode in (0, 3), done.stderr
    reports = [folder / "report" / "comparison.json" for folder in place.journal.iterdir()]
    rows = [row for report in reports for row in json.loads(report.read_text())["rows"]]
    assert not [row for row in rows if row["verdict"] in ("faster", "slower", "higher", "lower")]
    assert sum("busy" in row["reason"] for row in rows) >= 20, "the load was present"
