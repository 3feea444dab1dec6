"""Framework of another distribution: its entry point, contract, and stated costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PYTHONPATH, ROOT

# It drops nothing and decays the one array that it trains.
NOT_ITS_OWN = {
    "check_dropout_is_on_only_in_training",
    "check_sgd_is_the_textbooks",
}


def python(
    *arguments: str, path: str = PYTHONPATH, **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(
        [sys.executable, *arguments],
        env=variables,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


def plugin(folder: Path, value: str) -> str:
    """Return a path on which a distribution has the entry point."""
    (folder / "other-1.dist-info").mkdir()
    (folder / "other-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: other\nVersion: 1\n"
    )
    (folder / "other-1.dist-info" / "entry_points.txt").write_text(
        f"[evenhand.frameworks]\nother = {value}\n"
    )
    return os.pathsep.join([PYTHONPATH, str(folder)])


def test_toy_keeps_its_contract() -> None:
    done = python("-m", "tests.models.framework_checks", "toy")
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    assert {check for check, trouble in outcomes.items() if trouble} == NOT_ITS_OWN


def test_framework_needs_its_entry_point() -> None:
    listed = "from models import frameworks; print('toy' in frameworks.available())"
    assert [python("-c", listed, path=path).stdout for path in (PYTHONPATH, str(ROOT))] == [
        "True\n",
        "False\n",
    ]


def test_proofs_depend_on_its_code() -> None:
    script = "from experiments.run import parity_cache; print(parity_cache._code())"
    digests = {python("-c", script, path=path).stdout for path in (PYTHONPATH, str(ROOT))}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere.at_all", "No module named 'nowhere'"),
        ("json", "'VARIANTS'"),
        ("models.frameworks.pytorch", "'pytorch'"),
    ],
)
def test_wrong_entry_point_is_one_line(tmp_path: Path, value: str, reason: str) -> None:
    task = {"request": {"model": "lenet", "rules": []}, "side": {"framework": "toy"}, "threads": 1}
    words = ("-m", "models.parity", "toy", str(tmp_path / "out"), json.dumps(task))
    done = python(*words, path=plugin(tmp_path, value))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert value in done.stderr
    assert reason in done.stderr


COSTS = """
import json, sys, time
import numpy as np
import models
from models.contract import Batch, OptimizerConfig
from models.frameworks import open_framework
framework = open_framework("toy", device="cpu", threads=1, precision="float32", seed=0)
module = models.spec("lenet")
network = framework.build("lenet", module.Spec())
pictures = np.zeros((4, 28, 28, 1), np.float32)
batch = Batch((pictures,), np.zeros(4, np.int32), np.ones(4, np.float32))
optimizer = framework.optimizer(network, OptimizerConfig("adam", 0.1))
moments = [time.perf_counter()]
placed = framework.place(batch)
moments.append(time.perf_counter())
framework.train_step(network, optimizer, batch)
moments.append(time.perf_counter())
framework.synchronise()
moments.append(time.perf_counter())
loss = framework.train_step(network, optimizer, placed)
moments.append(time.perf_counter())
float(loss)
moments.append(time.perf_counter())
print(json.dumps(moments))
"""


EVENTS = "start build copy copy launch step update synchronise launch step update read"
COPY, LAUNCH, STEP, UPDATE, READ = 0.03, 0.01, 0.1, 0.04, 0.05


def test_costs_are_spent_and_recorded(tmp_path: Path) -> None:
    costs = {"copy": COPY, "launch": LAUNCH, "step": STEP, "update": UPDATE, "read": READ}
    events = tmp_path / "events"
    variables = {"EVENHAND_TOY_COSTS": json.dumps({"toy": costs})}
    done = python("-c", COSTS, EVENHAND_TOY_EVENTS=str(events), **variables)
    start, placed, launched, synchronised, again, read = json.loads(done.stdout)
    # a sleep is never short, and may be long where other tests run
    assert placed - start >= COPY
    assert launched - placed >= COPY + LAUNCH, "copied once more, since that batch was not placed"
    assert synchronised - placed >= COPY + LAUNCH + STEP + UPDATE
    assert again - synchronised >= LAUNCH
    assert read - synchronised >= LAUNCH + STEP + READ
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert " ".join(line["event"] for line in lines) == EVENTS
    for line in lines:  # a difference of two floats
        assert line["ended"] - line["began"] >= costs.get(line["event"], 0.0) - 1e-6
