"""Several workers that train one network, compared with one that has all of their images."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import mlflow
import numpy as np
import psutil
import pytest

from experiments.contract import CellSpec, Node
from experiments.run.cell_process import CellProcess
from experiments.studies import distributed
from experiments.workloads.distributed import check, group, training
from experiments.workloads.distributed.check import Proof
from tests.cells import cell_spec
from tests.conftest import Place, wait_for
from tests.experiments import small_campaigns
from tests.experiments.datasets.folders import refused
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import RunOutcome

two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two CPUs")


def command(place: Place, **options: str) -> list[str]:
    """Return a small campaign of one and two workers."""
    settings = {"frameworks": "pytorch", "steps": "12", **options}
    return small_campaigns.command(place, "distributed", **settings)


def cell(folder: Path, framework: str, **options: object) -> CellSpec[distributed.Settings]:
    """Return a cell with two workers of LeNet on 12 images."""
    parameters = {"worker_count": 2, "hook": "none", "group": "2", **options}
    values = {"batch_size": 12, "timing": "step"}
    spec = cell_spec(folder, "distributed", framework, "cpu", 1, values)
    spec.path.mkdir(parents=True)
    settings = distributed.Settings(**{**vars(spec.settings), **parameters})
    return CellSpec(**{**vars(spec), "settings": settings})


@pytest.mark.parametrize(
    ("framework", "scaling"),
    [
        ("tensorflow", "strong"),  # PyTorch: the campaign below
        pytest.param("tensorflow", "weak", marks=pytest.mark.slow),
        pytest.param("pytorch", "weak", marks=pytest.mark.slow),
    ],
)
def test_two_workers_train_as_one_with_all_images(
    tmp_path: Path, framework: str, scaling: str
) -> None:
    proof = check.run_proof(cell(tmp_path, framework, scaling=scaling), "lenet", "2", 2, "none")
    assert proof.error <= proof.limit == 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["fp16", "powersgd"])
def test_compression_loses_at_most_its_limit(tmp_path: Path, hook: str) -> None:
    proof = check.proven(check.run_proof(cell(tmp_path, "pytorch"), "lenet", f"2 {hook}", 2, hook))
    print(f"{hook}: {proof.error:.1e} of the {proof.measure}, at most {proof.limit:.1e}")
    assert 1e-12 < proof.error <= proof.limit < 0.01


# A sum in place of a mean in every hook.
FORGETFUL = """
import sys
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

def multiply(future):
    return future.value().mul_(dist.get_world_size())

def forgetful(hook):
    return lambda state, bucket: hook(state, bucket).then(multiply)

default_hooks.fp16_compress_hook = forgetful(default_hooks.fp16_compress_hook)
powerSGD_hook.powerSGD_hook = forgetful(powerSGD_hook.powerSGD_hook)
from experiments.workloads.distributed import rank
sys.exit(rank.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["fp16", "powersgd"])
def test_hook_that_forgets_to_divide_is_refused(
    tmp_path: Path, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{tmp_path}/forgetful.py"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    proof = check.run_proof(cell(tmp_path, "pytorch"), "lenet", f"2 {hook}", 2, hook)
    # twice the steps: off by as much as one worker has moved
    assert proof.error == pytest.approx(1, rel=0.01)
    with pytest.raises(EvenhandError):
        check.proven(proof)


def test_proof_beyond_its_limit_is_refused() -> None:
    proof = Proof("pytorch", "lenet", "2 fp16", 2, "fp16", 5, "way of the weights", 1.0, 0.002)
    assert check.proven(dataclasses.replace(proof, error=0.001)).error == 0.001
    with pytest.raises(EvenhandError, match="compression=fp16") as error:
        check.proven(proof)
    assert error.value.code is ErrorCode.NOT_EQUAL


@pytest.mark.parametrize(("workers", "size"), [(2, 1e-2), (4, 1e-2), (3, 1e-6)])
def test_limit_of_fp16_is_the_error_of_rounding(workers: int, size: float) -> None:
    # the hook by hand; gradients of 1e-6 are below the normal range of fp16
    gradients = np.random.default_rng(workers).normal(0, size, (workers, 20_000))
    total = np.zeros(20_000, np.float16)
    for gradient in gradients:
        total += gradient.astype(np.float16) / np.float16(workers)
    mean = gradients.mean(axis=0)
    way = check.STEPS * check.RATE * np.linalg.norm(mean)  # equal steps
    error = check.STEPS * check.RATE * np.linalg.norm(total.astype(np.float64) - mean) / way
    limit = check.most_lost("fp16", workers, 20_000, float(way))
    assert error < limit < 40 * error, (error, limit)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize(
    ("phase", "blow", "victim", "reason"),
    [
        ("training", signal.SIGKILL, 1, "worker 1 was killed by SIGKILL"),
        ("training", signal.SIGSTOP, 1, "worker 1 is stopped"),
        ("training", signal.SIGSTOP, 0, "killed by SIGKILL"),
        ("training without exchange", signal.SIGKILL, 1, "worker 1 was killed by SIGKILL"),
        ("training without exchange", signal.SIGSTOP, 1, "worker 1 is stopped"),
        ("training without exchange", signal.SIGSTOP, 0, "killed by SIGKILL"),
    ],
)
@pytest.mark.slow
def test_worker_that_dies_or_freezes_fails_the_cell(
    tmp_path: Path, framework: str, phase: str, blow: signal.Signals, victim: int, reason: str
) -> None:
    steps = 100_000 if phase == "training" else 8_000  # without exchange: so many that it lasts
    workers: list[psutil.Process] = []
    hit_at = list[float]()

    def on_step(progress: str, done: int, total: int | None) -> None:
        del total
        if progress == phase and done > 5 and not workers:
            workers.extend([psutil.Process(running.pid), *psutil.Process(running.pid).children()])
            workers[victim].send_signal(blow)
            hit_at.append(time.monotonic())

    def hangs() -> str:
        return "the cell hangs" if hit_at and time.monotonic() - hit_at[0] > 60 else ""

    running = CellProcess(
        cell(tmp_path, framework, steps=steps, patience_seconds=8.0), lambda _: None, on_step
    )
    closed = running.run(why_stop=hangs)
    assert not hangs()
    assert closed.outcome == RunOutcome.FAILED
    assert reason in closed.reason
    assert not psutil.wait_procs(workers, timeout=20)[1], "a worker is left"


def test_port_of_a_worker_is_reserved_until_its_framework_listens(tmp_path: Path) -> None:
    with group.reserved(cell(tmp_path, "pytorch"), 2) as (addresses, _):
        ports = [int(address.removeprefix("127.0.0.1:")) for address in addresses]
        assert len({*ports}) == 2
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("", ports[1]))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", ports[1]))
            server.listen()
            with socket.create_connection(("127.0.0.1", ports[1]), 5):
                pass


def test_rendezvous_replaces_the_address_of_the_first_node(tmp_path: Path) -> None:
    nodes = Node("n1", "10.0.0.1"), Node("n2", "10.0.0.2", ("srun",))
    spec = dataclasses.replace(cell(tmp_path, "pytorch"), nodes=nodes)
    for setting, first in (("", "10.0.0.1"), ("10.9.0.1", "10.9.0.1")):
        settings = dataclasses.replace(spec.settings, rendezvous=setting)
        spec = dataclasses.replace(spec, settings=settings)
        with group.reserved(spec, 4) as (addresses, _):
            hosts = [address.partition(":")[0] for address in addresses]
        assert hosts == [first, first, "10.0.0.2", "10.0.0.2"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_worker_on_another_node_dies_with_its_input(tmp_path: Path, framework: str) -> None:
    other = Node("n2", "127.0.0.1", ("env", "SLURMD_NODENAME=n2"))
    spec = dataclasses.replace(cell(tmp_path, framework), nodes=(Node("n1", "127.0.0.1"), other))
    proof = check.run_proof(spec, "lenet", "2", 2, "none")
    assert proof.error <= proof.limit == 1e-12
    with (
        group.reserved(spec, 2) as rendezvous,
        group.started(spec, rendezvous, [1]) as workers,
    ):
        assert workers[0].child.receive(60)
        process = psutil.Process(workers[0].child.pid)
        assert process.environ()["SLURMD_NODENAME"] == "n2"
        workers[0].child.close_input()
        assert process.wait(10) == 1


def test_join_ends_in_time_though_native_code_holds_the_lock() -> None:
    code = (
        "import ctypes\n"
        "from experiments.workloads.distributed import training\n"
        "with training.ended_after(0.5):\n"
        "    ctypes.PyDLL(None).sleep(60)\n"  # PyDLL: without letting go of the lock
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert "0.5 s" in done.stderr.splitlines()[-1]


def test_suspended_worker_is_noticed_before_all_are_ready(tmp_path: Path) -> None:
    """The campaign below loses one by SIGKILL."""
    spec = cell(tmp_path, "pytorch")
    with group.reserved(spec, 2) as rendezvous, group.started(spec, rendezvous, [1]) as workers:
        process = psutil.Process(workers[0].child.pid)
        process.suspend()
        with pytest.raises(EvenhandError, match=r"worker 1 .*stopped") as error:
            group.meet(workers, 30)
    assert error.value.code is ErrorCode.CHILD_FAILED
    assert not psutil.pid_exists(process.pid)


class CountingWorker:
    """Worker that counts its steps between two meetings; the other one is half as fast."""

    def __init__(self) -> None:
        self.steps = [0]

    def step(self, _: object, *, is_local: bool) -> float:
        assert is_local
        self.steps[-1] += 1
        return 0.0

    def gathered(self, values: list[float]) -> np.ndarray:
        self.steps.append(0)
        return np.array([values, [2 * value for value in values]])


def test_workers_without_exchange_meet_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TOGETHER_SECONDS", 0.02)
    worker, reported = CountingWorker(), list[int]()
    seconds = training.time_without_exchange(worker, None, 75, 0.001, reported.append)  # type: ignore[arg-type]
    assert len(seconds) == 75
    assert reported == list(range(1, 76))
    assert worker.steps == [0, 10, 10, 10, 10, 10, 10, 10, 5], "the slower one's steps in that time"


def test_only_pytorch_compresses_between_several_workers() -> None:
    levels = {
        name: distributed.groups((1, 2), ("none", "fp16"), name)
        for name in ("pytorch", "tensorflow")
    }
    assert levels["pytorch"] == {"1": (1, "none"), "2": (2, "none"), "2 fp16": (2, "fp16")}
    assert levels["tensorflow"] == {"1": (1, "none"), "2": (2, "none")}
    assert [distributed.rows(64, scaling, 4) for scaling in ("strong", "weak")] == [16, 64]


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"workers": (1, 1_024)}, ErrorCode.TOO_LARGE, "workers=1024"),
        ({"workers": (2,)}, ErrorCode.MISSING_VALUE, "workers, compression"),
        ({"frameworks": ("keras-jax",)}, ErrorCode.UNSUPPORTED, "keras-jax"),
        ({"pairing": "interleaved"}, ErrorCode.CONFLICT, "pairing=sequential"),
        ({"batch_size": 63}, ErrorCode.INVALID_VALUE, "workers=2"),
        ({"device": "cuda"}, ErrorCode.NO_DEVICE, "workers=2"),
    ],
)
def test_groups_that_cannot_be_trained_are_refused(
    settings: dict[str, object], code: ErrorCode, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed.provenance, "gpus", list)
    with refused(code, named):
        distributed.treatments(distributed.Settings(timing="step", **settings))  # type: ignore[arg-type]


def ranks(place: Place) -> list[psutil.Process]:
    """Return the workers of a place's cells, besides the first of each."""
    processes = psutil.process_iter(["cmdline", "cwd"])
    return [
        process
        for process in processes
        if "experiments.workloads.distributed.rank" in (process.info["cmdline"] or ())
        and process.info["cwd"] == str(place.folder)
    ]


@two_cpus
def test_dead_worker_costs_a_cell_and_not_the_campaign(place: Place) -> None:
    """Lose a worker by SIGKILL, which is noticed at once regardless of the patience."""
    options = {"steps": "40", "patience_seconds": "300", "blocks": "2"}
    campaign = place.begin(*command(place, **options))
    cells = place.journal.glob
    wait_for(lambda: any(cells("*/cells/*/*/worker_1_of_2.log")) and bool(ranks(place)), 600)
    (worker,) = ranks(place)
    worker.kill()
    assert campaign.wait(900) == 1, campaign.output  # a cell failed
    assert not psutil.pid_exists(worker.pid)
    runs = small_campaigns.cells(place)
    (failed,) = (run.data for run in runs if run.data.tags["outcome"] == "failed")
    assert failed.params["group"] == "2"
    assert "worker 1 was killed by SIGKILL" in failed.tags["outcome_reason"]
    trained = [run.data for run in runs if run.data.tags["outcome"] == "ok"]
    assert len(trained) == 3
    check_proof(place, {run.params["group"]: run.metrics for run in trained})


def check_proof(place: Place, cells: Mapping[str, Mapping[str, float]]) -> None:
    """Check that a cell with two workers has the proof of the campaign."""
    (campaign,) = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'campaign'")
    assert campaign.data.tags["workers_parity"] == "equal"
    path = Path(campaign.info.artifact_uri, "workers_parity.json")
    (proof,) = json.loads(path.read_text())
    assert (proof["level"], proof["hook"], proof["steps"]) == ("2", "none", 5)
    assert proof["error"] <= proof["limit"] == 1e-12
    # the same images, in float32: after a few hundred steps rounding has grown to a few 1e-4
    assert cells["1"]["train/loss"] == pytest.approx(cells["2"]["train/loss"], rel=1e-3)
    assert cells["2"]["check/weights_error"] == proof["error"]
    assert cells["2"]["check/weights_error_limit"] == proof["limit"]
    assert cells["2"]["train/alone_step_seconds"] > 0
    assert cells["2"]["check/workers"] == 2
    assert "check/weights_error" not in cells["1"]
