"""Values that scripts report, with MLflow and without."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from experiments.workloads.command import reported
from experiments.workloads.command.reported import NESTED
from tracking.records import Point, StoredRun
from tracking.redaction import Redaction

LOSS = {"better": "lower", "regex": r"loss: ([0-9.]+)", "summary": "last"}


def test_a_script_reports_in_a_file_in_its_last_line_and_in_its_output(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [{"accuracy": value, "step": step} for step, value in ((1, 0.5), (2, 0.9), (3, 0.8))]
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"bad": "text", "flag": true}\n[1]\nno')
    output = 'loss: 3.5\nloss: 2.25\n{"speed": 12, "bad\\u0000name": 1}\n'
    outcomes = {"loss": LOSS, "accuracy": {**LOSS, "regex": "", "summary": "step:2"}}
    matches = reported.search([io.BytesIO(output.encode())], outcomes, Redaction())
    lines = reported.read_metrics(file, Redaction())
    values = reported.collect(lines, output, matches, outcomes)
    assert values == {"accuracy": 0.9, "loss": 2.25, "speed": 12}
    missing = reported.read_metrics(tmp_path / "missing", Redaction())
    assert reported.collect(missing, "no number\n", {}, {"loss": LOSS}) == {}
    huge = json.dumps({"loss": 10**400, "speed": 12, "step": 10**400})
    assert reported.collect(iter(()), huge, {}, {}) == {"speed": 12}


def test_the_whole_output_is_searched() -> None:
    """Values stand before megabytes of other lines, between carriage returns, and in a long line.

    A long line is left out: its parts would end inside of numbers.
    """
    noise = "another line\n" * 300_000
    bars = "loss: 0.5\rloss: 0.7\r\n"
    output = f"loss: 4 loss: 3\n{bars}{noise}loss: 1{'0' * 2**21}\nkey loss: 12\n"
    files = [io.BytesIO(b"loss: 9\xff\n"), io.BytesIO(output.encode())]
    expected = {
        ("last", "lower"): (5, 12),
        ("best", "lower"): (3, 0.5),
        ("best", "higher"): (5, 12),
        ("step:1", "lower"): (1, 4),
        ("step:9", "lower"): None,
    }
    for (summary, better), point in expected.items():
        outcomes = {"loss": {**LOSS, "summary": summary, "better": better}}
        assert reported.search(files, outcomes, Redaction()).get("loss") == point
    secret = reported.search(files, {"loss": LOSS}, Redaction(["key loss: 12"]))
    assert secret == {"loss": (4, 0.7)}


class Runs:
    """Runs of a script: a parent with a nested run, and an earlier one."""

    def tagged(self, key: str, value: str) -> list[StoredRun]:
        assert (key, value) == ("evenhand.cell", "cell-1")
        runs = [
            ("first", {"acc": 0.7, "early": 1.0}, {}),
            ("second", {"acc": 0.6}, {}),
            ("third", {"acc": 0.1, "deep": 4.0, "system/cpu": 9.0}, {NESTED: "second"}),
        ]
        return [
            StoredRun(run_id, "", "FINISHED", number, None, {}, metrics, tags)
            for number, (run_id, metrics, tags) in enumerate(runs)
        ]

    def points(self, run_id: str, key: str) -> list[Point]:
        values = {"first": [0.95, 0.7], "second": [0.5, 0.6], "third": [0.1]}[run_id]
        return [Point(key, value, step, step) for step, value in enumerate(values)][::-1]


@pytest.mark.parametrize(
    ("summary", "value"), [("last", 0.6), ("best", 0.95), ("step:0", 0.5), ("step:7", None)]
)
def test_several_runs_of_a_script(summary: str, value: float | None) -> None:
    outcomes = {"acc": {"better": "higher", "regex": "", "summary": summary}}
    metrics, tags = reported.collect_runs("cell-1", {"outcomes": outcomes}, Runs())
    assert metrics.get("acc") == value
    assert (metrics["early"], metrics["deep"]) == (1.0, 4.0)
    assert not any(name.startswith("system/") for name in metrics)
    assert tags["script_runs"] == "second,first,third"
