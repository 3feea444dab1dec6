"""Workers that are started again from their last checkpoint: real processes of torchrun, real kills."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from experiments.campaign import process
from experiments.campaign.process import Child
from experiments.cell.contract import CellSpec
from experiments.studies import distributed
from models import frameworks
from tests import forks
from tests.experiments.test_distributed import cell
from tracking.errors import WrongCall
from tracking.records import Metrics, RunClosed, RunOutcome, Tags

STEPS, WARMUP, EVERY = 120, 10, 10


@dataclass
class Measured:
    """What a cell has told. went_on: the first step told after each blow."""

    outcome: str = ""
    reason: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    went_on: list[int] = field(default_factory=list)


def workers_of(spec: CellSpec) -> list[psutil.Process]:
    """Torchrun's workers by rank: its own processes, whoever began torchrun."""
    mine = [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-1:] == [str(spec.path / "told.json")]]
    return sorted(mine, key=lambda one: int(one.environ()["RANK"]))


def measured(spec: CellSpec, *blows: Callable[[psutil.Process], None]) -> Measured:
    """A cell to its end. Each blow is struck at its second worker, once that has trained beyond a checkpoint."""
    found, waiting, struck = Measured(), list(blows), False
    child, everyone, began = Child(spec, spec.path / "log"), set[psutil.Process](), time.monotonic()
    while child.open:
        for message in child.listen(0.5):
            if isinstance(message, RunClosed):
                found.outcome, found.reason = message.outcome, message.reason
            elif isinstance(message, Tags):
                found.tags |= message.values
            elif isinstance(message, Metrics):
                found.metrics |= {point.key: point.value for point in message.points}
            elif isinstance(message, dict) and message.get("progress") == "build":
                struck = False
            elif isinstance(message, dict) and message.get("progress") == "training" and not struck:
                if len(found.went_on) < len(blows) - len(waiting):
                    found.went_on.append(message["done"])
                if message["done"] > 2 * EVERY and waiting:
                    workers = workers_of(spec)
                    everyone |= {psutil.Process(child.pid), workers[0].parent(), *workers}
                    waiting.pop(0)(workers[1])
                    struck = True
        if time.monotonic() - began > 300:
            child.stop()
            pytest.fail("the cell hangs")
    if not found.outcome:
        closed = child.ended()
        found.outcome, found.reason = closed.outcome, closed.reason
    assert not psutil.wait_procs(everyone, timeout=20)[1], "no process is left"
    return found


def test_workers_go_on_from_the_last_checkpoint_after_a_kill_and_end_with_the_weights_of_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"steps": STEPS, "batch_size": 32, "warmup_steps": WARMUP, "patience_seconds": 20.0}
    for name in ("calm", "hit"):
        (tmp_path / name).mkdir()
    # cells and torchrun are forks that need not import PyTorch anew, and so are workers without torchrun; its own are processes
    monkeypatch.setattr(process, "subprocess", forks.Subprocess(forks.server(), "pytorch"))
    calm = measured(cell(tmp_path / "calm", "pytorch", **given))
    hit = measured(
        cell(tmp_path / "hit", "pytorch", **given, max_restarts=2, checkpoint_steps=EVERY), lambda worker: worker.kill()
    )
    assert (calm.outcome, hit.outcome) == (RunOutcome.OK, RunOutcome.OK), calm.reason + hit.reason
    assert (calm.metrics["check/restarts"], "workers.restarts" in calm.tags) == (0, False)
    assert (hit.metrics["check/restarts"], hit.tags["workers.restarts"]) == (1, "1")
    assert hit.went_on[0] > EVERY, "the steps before the checkpoint were not made again"
    assert hit.tags["weights.digest"] == calm.tags["weights.digest"]  # the same to the bit
    assert hit.metrics["train/loss"] == calm.metrics["train/loss"]  # the mean over all steps, those before the kill among them
    assert not list((tmp_path / "hit" / "cell").glob("*.safetensors")), "the checkpoint goes with its cell"


@pytest.mark.slow
def test_a_kill_more_than_max_restarts_fails_the_cell_with_the_reason(tmp_path: Path) -> None:
    spec = cell(tmp_path, "pytorch", steps=STEPS, batch_size=32, max_restarts=1, checkpoint_steps=EVERY)
    found = measured(spec, lambda worker: worker.kill(), lambda worker: worker.kill())
    assert found.outcome == RunOutcome.FAILED
    assert "worker 1 was killed by SIGKILL, after 1 restart (max_restarts=1)" in found.reason


@pytest.mark.slow
def test_a_frozen_worker_is_replaced_after_the_patience(tmp_path: Path) -> None:
    spec = cell(tmp_path, "pytorch", steps=STEPS, batch_size=32, max_restarts=1, checkpoint_steps=EVERY, patience_seconds=8.0)
    found = measured(spec, lambda worker: worker.send_signal(signal.SIGSTOP))
    assert found.outcome == RunOutcome.OK, found.reason
    assert found.tags["workers.restarts"] == "1"


@pytest.mark.slow
def test_torchrun_and_its_workers_die_with_the_cell(tmp_path: Path) -> None:
    spec = cell(tmp_path, "pytorch", steps=STEPS, batch_size=32, max_restarts=1, checkpoint_steps=EVERY)
    found = measured(spec, lambda worker: worker.parent().parent().kill())
    assert "was killed by SIGKILL" in found.reason


def test_random_numbers_go_on_where_they_were() -> None:
    import torch

    own = frameworks.workers("pytorch")
    torch.manual_seed(3)
    state = own.random_state()
    first = torch.rand(1_000).numpy()
    torch.rand(7)
    own.draw_from(state)
    assert np.array_equal(torch.rand(1_000).numpy(), first)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"frameworks": ("pytorch", "tensorflow")}, "max_restarts=1: tensorflow cannot be started again in the middle"),
        ({"frameworks": ("pytorch",), "compression": ("none", "powersgd")}, "take compression=none or fp16"),
    ],
)
def test_restarts_that_cannot_be(given: dict[str, object], said: str) -> None:
    with pytest.raises(WrongCall, match=said):
        distributed.treatments(distributed.Settings(workers=(1,), max_restarts=1, **given))  # type: ignore[arg-type]
