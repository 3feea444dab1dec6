"""Several workers that train one network, compared with one that has all of their images."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import psutil
import pytest
from mlflow.entities import Run

from experiments.contract import CellSpec, Node
from experiments.run.cell_process import CellProcess
from experiments.studies import distributed
from experiments.workloads.distributed import check, group, proof, training
from experiments.workloads.distributed.proof import Proof
from tests import warm
from tests.conftest import Place
from tracking import tables
from tracking.errors import EvenhandError, UsageError
from tracking.records import RunOutcome

two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two CPUs")


def command(place: Place, **given: str) -> tuple[str, ...]:
    """A small campaign of one and two workers, which needs no idle machine."""
    asked = {
        "frameworks": "pytorch",
        "steps": "12",
        "figures": "false",
        "others_limit_percent": "100",
        **given,
    }
    asked |= {"journal": str(place.journal), "cache": str(place.cache)}
    return (
        sys.executable,
        "-m",
        "experiments",
        "distributed",
        *(f"--{name}={text}" for name, text in asked.items()),
    )


def cell(folder: Path, framework: str, **given: object) -> CellSpec:
    own = {"model": "lenet", "worker_count": 2, "hook": "none", "group": "2", **given}
    settings = {**dataclasses.asdict(distributed.Settings(batch_size=12)), **own}
    spec = CellSpec(
        "run",
        "distributed",
        "measure",
        framework,
        "cpu",
        1,
        0,
        settings,
        {},
        str(folder),
        "cell",
        str(folder / "no"),
    )
    spec.path.mkdir()
    return spec


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
    result = proof.run_proof(cell(tmp_path, framework, scaling=scaling), "lenet", "2", 2, "none")
    assert result.error <= result.limit == 1e-12


@pytest.mark.slow  # by default: fp16 in the campaign below
@pytest.mark.parametrize("hook", ["fp16", "powersgd"])
def test_compression_loses_at_most_its_limit(tmp_path: Path, hook: str) -> None:
    result = check.proven(proof.run_proof(cell(tmp_path, "pytorch"), "lenet", f"2 {hook}", 2, hook))
    print(f"{hook}: {result.error:.1e} of the {result.measure}, at most {result.limit:.1e}")
    assert 1e-12 < result.error <= result.limit < 0.01


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
    result = proof.run_proof(cell(tmp_path, "pytorch"), "lenet", f"2 {hook}", 2, hook)
    # twice the steps: off by as much as one worker has moved
    assert result.error == pytest.approx(1, rel=0.01)
    with pytest.raises(EvenhandError, match=f"compression={hook} do not train as one does"):
        check.proven(result)


def test_proof_beyond_its_limit_is_refused() -> None:
    result = Proof("pytorch", "lenet", "2 fp16", 2, "fp16", 5, "way of the weights", 1.0, 0.002)
    assert check.proven(dataclasses.replace(result, error=0.001)).error == 0.001
    with pytest.raises(EvenhandError, match="compression=fp16 do not train as one does"):
        check.proven(result)


@pytest.mark.parametrize(("workers", "size"), [(2, 1e-2), (4, 1e-2), (3, 1e-6)])
def test_limit_of_fp16_is_the_error_of_rounding(workers: int, size: float) -> None:
    # the hook by hand; gradients of 1e-6 are below the normal range of fp16
    rng = np.random.default_rng(workers)
    mean_error, steps = np.zeros(20_000), []
    for _ in range(proof.STEPS):
        gradients = rng.normal(0, size, (workers, 20_000))
        total = np.zeros(20_000, np.float16)
        for gradient in gradients:
            total += gradient.astype(np.float16) / np.float16(workers)
        mean = gradients.mean(axis=0)
        steps.append(proof.RATE * np.linalg.norm(mean))
        mean_error += proof.RATE * (total.astype(np.float64) - mean)
    single = proof.Trained({"weight": np.zeros(20_000)}, np.array(steps))
    error, limit = np.linalg.norm(mean_error) / sum(steps), proof.most_lost("fp16", workers, single)
    assert error < limit < 40 * error, (error, limit)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize(
    ("phase", "blow", "victim", "reason"),
    [
        ("training", signal.SIGKILL, 1, "worker 1 was killed by SIGKILL"),
        ("training", signal.SIGSTOP, 1, "worker 1 is stopped"),
        ("training", signal.SIGSTOP, 0, "killed by SIGKILL"),
        ("alone", signal.SIGKILL, 1, "worker 1 was killed by SIGKILL"),
        ("alone", signal.SIGSTOP, 1, "worker 1 is stopped"),
        ("alone", signal.SIGSTOP, 0, "killed by SIGKILL"),
    ],
)
@pytest.mark.slow
def test_a_worker_that_dies_or_freezes_fails_the_cell(
    tmp_path: Path, framework: str, phase: str, blow: signal.Signals, victim: int, reason: str
) -> None:
    steps = 100_000 if phase == "training" else 8_000  # without exchange: so many that it lasts
    workers: list[psutil.Process] = []
    hit = list[float]()

    def on_step(progress: str, done: int, total: int | None) -> None:
        del total
        if progress == phase and done > 5 and not workers:
            workers.extend([psutil.Process(running.pid), *psutil.Process(running.pid).children()])
            workers[victim].send_signal(blow)
            hit.append(time.monotonic())

    def hangs() -> str:
        return "the cell hangs" if hit and time.monotonic() - hit[0] > 60 else ""

    running = CellProcess(
        cell(tmp_path, framework, steps=steps, patience_seconds=8.0), lambda _: None, on_step
    )
    closed = running.run(why_stop=hangs)
    assert not hangs()
    assert closed.outcome == RunOutcome.FAILED
    assert reason in closed.reason
    assert not psutil.wait_procs(workers, timeout=20)[1], "no worker is left"


def test_the_port_of_a_worker_is_reserved_until_its_framework_listens_there(tmp_path: Path) -> None:
    with group.reserved(cell(tmp_path, "pytorch"), 2) as rendezvous:
        ports = [int(address.removeprefix("127.0.0.1:")) for address in rendezvous.addresses]
        assert len({*ports}) == 2
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("", ports[1]))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", ports[1]))
            server.listen()
            with socket.create_connection(("127.0.0.1", ports[1]), 5):
                pass


def test_addresses_are_those_of_the_nodes_and_the_first_that_of_the_rendezvous(
    tmp_path: Path,
) -> None:
    nodes = Node("n1", "10.0.0.1"), Node("n2", "10.0.0.2", ("srun",))
    for rendezvous, first in (("", "10.0.0.1"), ("10.9.0.1", "10.9.0.1")):
        spec = dataclasses.replace(cell(tmp_path, "pytorch", rendezvous=rendezvous), nodes=nodes)
        spec.path.rmdir()
        with group.reserved(spec, 4) as rendezvous:
            hosts = [address.partition(":")[0] for address in rendezvous.addresses]
        assert hosts == [first, first, "10.0.0.2", "10.0.0.2"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_workers_on_another_node_are_started_by_its_command_and_die_with_their_input(
    tmp_path: Path, framework: str
) -> None:
    other = Node("n2", "127.0.0.1", ("env", "SLURMD_NODENAME=n2"))
    spec = dataclasses.replace(cell(tmp_path, framework), nodes=(Node("n1", "127.0.0.1"), other))
    result = proof.run_proof(spec, "lenet", "2", 2, "none")
    assert result.error <= result.limit == 1e-12
    with (
        group.reserved(spec, 2) as rendezvous,
        group.started(spec, rendezvous, [1]) as workers,
    ):
        assert workers[0].child.receive(60)
        process = psutil.Process(workers[0].child.pid)
        assert process.environ()["SLURMD_NODENAME"] == "n2"
        workers[0].child.close_input()
        assert process.wait(10) == 1


def test_a_cell_whose_workers_do_not_join_ends_though_native_code_holds_the_lock() -> None:
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
    last = done.stderr.splitlines()[-1]
    assert last == "waiting for the other workers to join, at most 0.5 s"


@pytest.mark.parametrize(
    ("blow", "reason"), [("kill", "was killed by SIGKILL"), ("suspend", "is stopped")]
)
def test_a_worker_that_dies_or_freezes_before_all_are_ready_is_told_at_once(
    tmp_path: Path, blow: str, reason: str
) -> None:
    spec = cell(tmp_path, "pytorch")
    with (
        group.reserved(spec, 2) as rendezvous,
        group.started(spec, rendezvous, [1]) as workers,
    ):
        process = psutil.Process(workers[0].child.pid)
        getattr(process, blow)()
        with pytest.raises(EvenhandError, match=f"worker 1 {reason}"):
            group.meet(workers, 30)
    assert not psutil.pid_exists(process.pid)


class Counted:
    """A worker whose steps take a thousandth of a second at least; it counts them between two meetings."""

    def __init__(self) -> None:
        self.apart = [0]

    def step(self, _: object, *, alone: bool) -> float:
        assert alone
        self.apart[-1] += 1
        time.sleep(0.001)
        return 0.0

    def gathered(self, values: list[float]) -> np.ndarray:
        self.apart.append(0)
        return np.array([values, [2 * value for value in values]])  # another worker, half as fast


def test_workers_meet_every_so_often_where_they_exchange_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "TOGETHER_SECONDS", 0.02)
    group, told = Counted(), []
    seconds = training.timed_alone(group, None, 75, 0.001, told.append)  # type: ignore[arg-type]
    assert len(seconds) == 75
    assert told == list(range(1, 76))
    # as many steps as the slower one makes in that time: a frozen worker is waited for after no more of them
    assert group.apart == [0, 10, 10, 10, 10, 10, 10, 10, 5, 0]


def test_groups_and_their_parts() -> None:
    asked = distributed.Settings(workers=(1, 2), compression=("none", "fp16"))
    found = {
        name: distributed.groups(asked.workers, asked.compression, name)
        for name in ("pytorch", "tensorflow")
    }
    assert found["pytorch"] == {"1": (1, "none"), "2": (2, "none"), "2 fp16": (2, "fp16")}
    assert found["tensorflow"] == {"1": (1, "none"), "2": (2, "none")}
    assert [distributed.rows(64, scaling, 4) for scaling in ("strong", "weak")] == [16, 64]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": (1, 1_024)}, "more than the"),
        ({"workers": (2,)}, "is the baseline"),
        ({"frameworks": ("keras-jax",)}, "not trained on several workers"),
        ({"pairing": "interleaved"}, "take pairing=sequential"),
        ({"batch_size": 63}, "not shared evenly among workers=2"),
        ({"device": "cuda"}, "device=cuda: each of workers=2 needs a GPU"),
    ],
)
def test_groups_that_cannot_be_trained_are_refused(
    settings: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed.provenance, "gpus", list)
    with pytest.raises(UsageError, match=message):
        distributed.treatments(distributed.Settings(timing="step", **settings))  # type: ignore[arg-type]


STEPS = 100  # which last long enough to be killed among them


@dataclass(frozen=True)
class Hit:
    """Campaign whose first cell with two workers has lost one of them."""

    place: Place
    code: int
    said: str
    worker: psutil.Process

    def runs(self, kind: str, **tags: str) -> list[Run]:
        asked = " and ".join(
            f"tags.{name} = '{text}'" for name, text in {"kind": kind, **tags}.items()
        )
        return list(mlflow.MlflowClient(self.place.uri).search_runs(["1"], asked))

    def report(self, name: str) -> str:
        return next(self.place.journal.glob(f"*/report/{name}")).read_text()


def hit(place: Place, framework: str, blow: signal.Signals, **given: str) -> Hit:
    begun = place.begin(*command(place, frameworks=framework, steps=str(STEPS), **given))
    worker = _worker_that_trains(place.journal, begun)
    worker.send_signal(blow)
    return Hit(place, begun.wait(900), begun.said, worker)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, empty_store: Path) -> Hit:
    """In PyTorch, by SIGKILL, which is noticed at once whatever the patience."""
    folder = tmp_path_factory.mktemp("killed")
    shutil.copy(empty_store, folder / "mlflow.db")
    place = Place(folder, shared_cache, f"sqlite:///{folder}/mlflow.db")
    given = {"compression": "none,fp16", "sensor_seconds": "0.1", "patience_seconds": "300"}
    given["blocks"] = "1"
    return hit(place, "pytorch", signal.SIGKILL, **given)


@two_cpus
def test_steps_of_every_worker_are_stored(killed: Hit) -> None:
    cells = {run.data.params["group"]: run for run in killed.runs("cell", outcome="ok")}
    assert "1" in cells
    assert len(cells) == 2, "one of the cells with two workers has lost one"
    # the same images, in float32: after a few hundred steps rounding has grown to a few 1e-4
    losses = [run.data.metrics["train/loss"] for run in cells.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for level, run in cells.items():
        workers = int(level[0])
        path = Path(run.info.artifact_uri, "ranks.parquet")
        ranks = pd.DataFrame(tables.read(path, ("rank", "phase", "seconds")))
        assert len(ranks) == workers * 2 * (10 + STEPS)
        steps = ranks[(ranks["rank"] == 0) & (ranks["phase"] == "train")].seconds
        assert run.data.metrics["train/step_seconds"] == pytest.approx(steps[10:].median())
    assert "Speed-up by workers" not in killed.report("report.md"), "one block has no speed-up"


@two_cpus
def test_proofs_are_stored_with_the_campaign_and_its_cells(killed: Hit) -> None:
    (campaign,) = killed.runs("campaign")
    assert campaign.data.tags["workers_parity"] == "within what compression may lose"
    proofs = json.loads(Path(campaign.info.artifact_uri, "workers_parity.json").read_text())
    exact, lossy = proofs
    assert (exact["level"], exact["hook"], exact["steps"]) == ("2", "none", 5)
    assert (lossy["level"], lossy["hook"], lossy["steps"]) == ("2 fp16", "fp16", 5)
    assert exact["error"] <= exact["limit"] == 1e-12 < lossy["error"] <= lossy["limit"] < 0.01
    cells = {
        run.data.params["group"]: run.data.metrics for run in killed.runs("cell", outcome="ok")
    }
    for proof_ in proofs:
        if metrics := cells.get(proof_["level"]):
            assert metrics["check/weights_error"] == proof_["error"]
            assert metrics["check/weights_error_limit"] == proof_["limit"]
    assert "check/weights_error" not in cells["1"]
    row = f"| fp16 | {lossy['error']:.1e} | {lossy['limit']:.1e} |"
    assert row in killed.report("report.md")


@two_cpus
def test_dead_worker_costs_a_cell_and_not_the_campaign(killed: Hit) -> None:
    _check_lost_cell(killed, "was killed by SIGKILL", cells=3, blocks=1)


@two_cpus
@pytest.mark.slow
def test_frozen_worker_costs_a_cell_and_not_the_campaign(place: Place) -> None:
    # noticed after the patience, within which the workers of a busy machine have to start
    found = hit(place, "pytorch", signal.SIGSTOP, blocks="2", patience_seconds="60")
    _check_lost_cell(found, "is stopped", cells=4, blocks=2)


def _check_lost_cell(found: Hit, reason: str, *, cells: int, blocks: int) -> None:
    assert found.code == 1, found.said  # a cell failed
    assert len(found.runs("cell")) == cells
    (failed,) = found.runs("cell", outcome="failed")
    assert failed.data.params["group"] in ("2", "2 fp16")
    assert f"worker 1 {reason}" in failed.data.tags["outcome_reason"]
    assert len(found.runs("cell", outcome="ok")) == cells - 1
    assert not psutil.pid_exists(found.worker.pid)
    rows = json.loads(found.report("comparison.json"))["rows"]
    levels = {
        row["b"]: row["n_blocks"] for row in rows if row["metric"] == "train/examples_per_second"
    }
    lost = failed.data.params["group"]
    assert levels == {level: blocks - (level == lost) for level in levels}


def _worker_that_trains(journal: Path, campaign: warm.Process) -> psutil.Process:
    """The second worker of the first cell that has two, once it is connected to the first."""
    until = time.monotonic() + 600
    while time.monotonic() < until and campaign.poll() is None:
        for log in journal.glob("*/cells/*/*/worker_1_of_2.log"):  # no longer those of the proof
            for one in psutil.process_iter():
                with contextlib.suppress(psutil.Error, OSError):
                    writes_it = Path(f"/proc/{one.pid}/fd/2").readlink() == log.resolve()
                    if (
                        writes_it
                        and len([at for at in one.net_connections() if at.status == "ESTABLISHED"])
                        > 1
                    ):
                        return one
        time.sleep(0.02)
    pytest.fail(f"no second worker came: {campaign.said}")
