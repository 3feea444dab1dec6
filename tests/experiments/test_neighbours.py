"""A neighbour's load: real busy processes beside a real campaign, whose cells are repeated and whose times are not judged."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from experiments.run.journal_runs import cell_results
from tests import neighbours
from tests.conftest import Place, titled, toy_costs, wait_for
from tests.faults.test_campaign import records
from tests.tracking.nvml import Driver, driver, library  # noqa: F401
from tracking.journal import Journal
from tracking.records import OTHERS_CPU, RunClosed, RunOpened, RunOutcome, StoredRun, Tags
from tracking.store import Store

# Two frameworks that sleep: whatever else the CPUs do is others' work. A cell's timed windows take 0.4 s or more.
TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "inference_requests": "2",
}
BUSY = "this machine was busy ("


@pytest.fixture
def slow_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in toy_costs(step=0.05).items():
        monkeypatch.setenv(name, text)


def cells(place: Place) -> dict[str, list[StoredRun]]:
    """Runs of every cell, in the order in which they began."""
    found: dict[str, list[StoredRun]] = {}
    for run in sorted(Store(place.uri).runs("captioning"), key=lambda one: one.start_ms):
        if run.tags["kind"] == "cell":
            found.setdefault(titled(run), []).append(run)
    return found


@pytest.mark.usefixtures("slow_toys")
def test_disturbed_cells_are_repeated_once_and_not_judged(place: Place) -> None:
    with neighbours.busy(1, neighbours.A_TENTH):
        done = place.run(**TOYS, blocks="1", others_limit_percent="0")
    assert done.returncode == 3, done.stderr + done.stdout
    assert BUSY in done.stdout
    assert (
        len(
            re.findall(
                r"^ +1 more cell: toy(\+twin)? · block 1 runs once more: others used ",
                done.stdout,
                re.MULTILINE,
            )
        )
        == 2
    )
    found = cells(place)
    assert set(found) == {"toy · block 1", "toy+twin · block 1"}
    for first, again in found.values():  # each once more, although the machine is as busy then
        assert first.metrics[OTHERS_CPU] > 0
        assert first.tags["disturbed"].startswith("others used ")
        assert "repeats" not in first.tags
        assert again.tags["repeats"] == first.tags["disturbed"]
    assert max(one[0].start_ms for one in found.values()) < min(
        one[1].start_ms for one in found.values()
    )
    report = json.loads((next(place.journal.iterdir()) / "report" / "comparison.json").read_text())
    timed = [row for row in report["rows"] if row["metric"] == "train/step_seconds"]
    assert [row["verdict"] for row in timed] == ["inconclusive"]
    assert timed[0]["reason"].startswith(BUSY)
    assert timed[0]["reason"].endswith("1 block: no comparison; a verdict needs 6")
    left_out = {one["name"]: one["reason"] for one in report["excluded"] if not one["metric"]}
    assert {
        name.partition(" · data=")[0]: text.partition(";")[2] for name, text in left_out.items()
    } == dict.fromkeys(found, " a later run of the same cell is used instead")
    assert all(text.startswith("others used ") for text in left_out.values())
    page = (next(place.journal.iterdir()) / "report" / "report.md").read_text()
    assert "This machine was busy (" in "\n".join(page.splitlines()[:12])


@pytest.mark.slow
@pytest.mark.usefixtures("slow_toys")
def test_resume_runs_interrupted_repetition_once(place: Place) -> None:
    """The limit is 0 %, so that the cell is beyond it however free the machine."""

    def repeating() -> bool:
        return any(isinstance(one, RunOpened) and "repeats" in one.tags for one in records(place))

    with neighbours.busy(1, neighbours.A_TENTH):
        campaign = place.start(
            **{**TOYS, "frameworks": "toy"}, blocks="1", others_limit_percent="0"
        )
        wait_for(repeating, 120)
        campaign.send_signal(signal.SIGINT)
        campaign.communicate(timeout=120)
        assert [one.tags["outcome"] for one in cells(place)["toy · block 1"]] == [
            "ok",
            "interrupted",
        ]
        for _ in range(2):
            place.resume()
            outcomes = [
                (one.tags["outcome"], "repeats" in one.tags)
                for one in cells(place)["toy · block 1"]
            ]
            assert outcomes == [("ok", False), ("interrupted", True), ("ok", True)]


GPU = """
import json, os, time
from experiments.run.sensing import BackgroundLoad
from experiments.run.sensing import Sensing
from tracking.records import OTHERS_GPU, Metrics, Tags
from tracking.sensors import Sensors, Window
written = []
with open(os.environ["NVML_ANSWERS"], "a") as file:
    file.write(f"pid {os.getpid()}")
neighbours = BackgroundLoad()
with Sensing("run", Sensors(os.getpid(), "cuda"), 0.05, written.append) as sensing:
    neighbours.begin()
    began = time.time()
    time.sleep(0.4)
    windows = [Window("", began, time.time(), 1)]
    neighbours.end()
neighbours.on_gpu = sensing.others_on_gpu(windows)
told = [neighbours.log("run", limit, written.append) for limit in (99.9, 100.0)]
tags = [one.values.get("disturbed") for one in written if isinstance(one, Tags)]
points = [point for one in written if isinstance(one, Metrics) for point in one.points]
logged = [point.value for point in points if point.key == OTHERS_GPU]
print(json.dumps([told, tags, logged, neighbours.metrics.get(OTHERS_GPU)]))
"""


def test_other_process_on_gpu_disturbs_cell(driver: Driver) -> None:
    driver.answers()
    told, _, logged, latest = json.loads(driver.python(GPU))
    assert (told, logged, latest) == (["", ""], [0.0, 0.0], 0.0)
    driver.answers(other_pid=os.getpid())
    (text, off), tags, logged, latest = json.loads(driver.python(GPU))
    assert (logged, latest) == ([100.0, 100.0], 100.0), "what the comparison reads"
    assert (
        text
        == f"others computed on the GPU in 100 % of samples: {psutil.Process().name()} ({os.getpid()})"
    )
    assert text in tags
    assert off == "", "others_limit_percent=100 lets others do what they do"


def test_journal_has_results_of_disturbed_cells(tmp_path: Path) -> None:
    """One that is owed a repeat, one that has had it, one whose repeat failed, one that nobody disturbed."""
    kept, disturbed = Journal(tmp_path), "others used 30 % of all CPUs"
    told = (
        ("owed", 1, False, "ok"),
        ("had", 2, False, "ok"),
        ("had", 3, True, "ok"),
        ("broken", 4, False, "ok"),
    )
    for key, number, repeat, outcome in (
        *told,
        ("broken", 5, True, "failed"),
        ("free", 6, False, "ok"),
    ):
        tags = {"cell": key, **({"repeats": disturbed} if repeat else {})}
        kept.append(RunOpened(str(number), number, "e", key, tags))
        if key != "free":
            kept.append(Tags(str(number), {"disturbed": disturbed}))
        kept.append(RunClosed(str(number), number, outcome))
    kept.close()
    ended = cell_results(tmp_path)
    assert all(end.outcome == RunOutcome.OK for end in ended.values())
    assert {key: (end.disturbed, end.repeat) for key, end in ended.items()} == {
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
    """20 times A/A, six blocks each: a difference beyond the margin between frameworks that cost the same is a false verdict."""
    for name, text in toy_costs(step=0.02).items():
        monkeypatch.setenv(name, text)
    cheap = {
        **TOYS,
        "bleu_images": "1",
        "epochs": "1",
        "steps_per_epoch": "12",
        "blocks": "6",
        "others_limit_percent": "10",
    }
    wrong, unsettled = [], 0
    with neighbours.busy(os.cpu_count() or 1):
        for seed in range(20):
            done = place.run(**cheap, seed=str(seed))
            assert done.returncode in (0, 3), done.stderr
    for folder in place.journal.iterdir():
        for row in json.loads((folder / "report" / "comparison.json").read_text())["rows"]:
            wrong += [row] if row["verdict"] in ("faster", "slower", "higher", "lower") else []
            unsettled += BUSY in row["reason"]
    assert wrong == []
    assert unsettled >= 20, "the load was there"
