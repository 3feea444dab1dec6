"""Several workers that train one network: real processes, against one that has all of their images."""

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
import psutil
import pytest
from mlflow.entities import Run

from experiments.contract import CellSpec, Node
from experiments.run.cell_process import CellProcess
from experiments.studies import distributed
from experiments.workloads.distributed import check, group, proof, training
from tests import warm
from tests.conftest import Place
from tests.models.children import run_in
from tracking import provenance, tables
from tracking.errors import EvenhandError, WrongCall
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


@pytest.fixture
def framework() -> str:
    return "pytorch"


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize("scaling", ["strong", pytest.param("weak", marks=pytest.mark.slow)])
def test_two_workers_train_as_one_with_all_images(
    tmp_path: Path, framework: str, scaling: str
) -> None:
    found = proof.of(cell(tmp_path, framework, scaling=scaling), "lenet", "2", 2, "none")
    assert found.error <= found.limit == 1e-12


LOSSY = ["fp16", pytest.param("powersgd", marks=pytest.mark.slow)]
# A sum in place of a mean, wherever the hook has one.
FORGETFUL = """
import sys
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

def forgetful(hook):
    return lambda state, bucket: hook(state, bucket).then(lambda found: found.value().mul_(dist.get_world_size()))

default_hooks.fp16_compress_hook = forgetful(default_hooks.fp16_compress_hook)
powerSGD_hook.powerSGD_hook = forgetful(powerSGD_hook.powerSGD_hook)
from experiments.workloads.distributed import rank
sys.exit(rank.main())
"""


@pytest.mark.parametrize("hook", LOSSY)
def test_compression_loses_something_and_no_more_than_it_may(tmp_path: Path, hook: str) -> None:
    found = check.proven(proof.of(cell(tmp_path, "pytorch"), "lenet", f"2 {hook}", 2, hook))
    print(f"{hook}: {found.error:.1e} of the {found.measure}, at most {found.limit:.1e}")
    assert found.error > 1e-12
    assert found.limit < 0.01, "a sum in place of a mean is off by all of the way"


@pytest.mark.parametrize("hook", LOSSY)
def test_a_hook_that_forgets_to_divide_is_refused(
    tmp_path: Path, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{tmp_path}/forgetful.py"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    found = proof.of(cell(tmp_path, "pytorch"), "lenet", f"2 {hook}", 2, hook)
    assert found.error == pytest.approx(1, rel=0.01), (
        "twice the steps: off by as much as one worker has moved"
    )
    with pytest.raises(EvenhandError, match=f"compression={hook} do not train as one does"):
        check.proven(found)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("size", [1e-2, 1e-6])
def test_the_limit_of_fp16_is_what_rounding_can_do(workers: int, size: float) -> None:
    # the hook by hand, on gradients that share nothing; those of 1e-6 are below what fp16 has in full
    rng = np.random.default_rng(workers)
    mean_error, steps = np.zeros(20_000), []
    for _ in range(proof.STEPS):
        own = rng.normal(0, size, (workers, 20_000))
        total = np.zeros(20_000, np.float16)
        for one in own:
            total += one.astype(np.float16) / np.float16(workers)
        steps.append(proof.RATE * np.linalg.norm(own.mean(axis=0)))
        mean_error += proof.RATE * (total.astype(np.float64) - own.mean(axis=0))
    one = proof.Trained({"weight": np.zeros(20_000)}, np.array(steps))
    error, limit = np.linalg.norm(mean_error) / sum(steps), proof.most_lost("fp16", workers, one)
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
    with group.reserved(cell(tmp_path, "pytorch"), 2) as meeting:
        ports = [int(address.removeprefix("127.0.0.1:")) for address in meeting.addresses]
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
        with group.reserved(spec, 4) as meeting:
            hosts = [address.partition(":")[0] for address in meeting.addresses]
        assert hosts == [first, first, "10.0.0.2", "10.0.0.2"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_workers_on_another_node_are_started_by_its_command_and_die_with_their_input(
    tmp_path: Path, framework: str
) -> None:
    other = Node("n2", "127.0.0.1", ("env", "SLURMD_NODENAME=n2"))
    spec = dataclasses.replace(cell(tmp_path, framework), nodes=(Node("n1", "127.0.0.1"), other))
    result = proof.of(spec, "lenet", "2", 2, "none")
    assert result.error <= result.limit == 1e-12
    with (
        group.reserved(spec, 2) as meeting,
        group.started(spec, meeting, [1]) as workers,
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
        group.reserved(spec, 2) as meeting,
        group.started(spec, meeting, [1]) as workers,
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
    ("given", "said"),
    [
        ({"workers": (1, 1_024)}, "more than the"),
        ({"workers": (2,)}, "is the baseline"),
        ({"frameworks": ("keras-jax",)}, "not trained on several workers"),
        ({"pairing": "interleaved"}, "take pairing=sequential"),
    ],
)
def test_groups_that_cannot_be(given: dict[str, object], said: str) -> None:
    with pytest.raises(WrongCall, match=said):
        distributed.treatments(distributed.Settings(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [("--strategy=one_process", "strategy=one_process"), ("--device=cuda", "device=cuda")],
)
def test_variants_for_gpus_are_refused_in_one_line_where_there_is_none(
    place: Place, given: str, said: str
) -> None:
    done = place.call(
        sys.executable, "-m", "experiments", "distributed", given, f"--journal={place.journal}"
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert said in line
    assert "GPU" in line


@pytest.mark.skipif(
    bool(provenance.gpus()), reason="on a machine with GPUs DataParallel takes them"
)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_replicas_in_one_process_make_the_steps_of_one_worker(framework: str) -> None:
    # TensorFlow on two devices of one CPU; DataParallel calls the network as it is where no GPU is
    done = run_in(framework, "-m", "tests.experiments.replicas", framework)
    error, alone = json.loads(done.stdout.splitlines()[-1])
    assert error <= 1e-12
    assert alone > 0


STEPS = 100  # which last long enough to be killed among them


@dataclass(frozen=True)
class Hit:
    """A campaign of two blocks whose first two workers to train have lost one of them. said: by the command."""

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
    begun = place.begin(
        *command(place, frameworks=framework, blocks="2", steps=str(STEPS), **given)
    )
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
    return hit(place, "pytorch", signal.SIGKILL, **given)


@two_cpus
def test_every_workers_steps_are_kept_and_one_block_tells_no_speed_up(killed: Hit) -> None:
    cells = {run.data.params["group"]: run for run in killed.runs("cell", outcome="ok")}
    assert set(cells) == {"1", "2", "2 fp16"}
    # the same images, in float32: after a few hundred steps rounding has grown to a few 1e-4
    assert cells["1"].data.metrics["train/loss"] == pytest.approx(
        cells["2"].data.metrics["train/loss"], rel=1e-3
    )
    for level, run in cells.items():
        workers = int(level[0])
        found = tables.read(
            Path(run.info.artifact_uri, "ranks.parquet"), ("rank", "phase", "seconds")
        )
        assert len(found["seconds"]) == workers * 2 * (10 + STEPS)
        steps = [
            s
            for s, rank, of in zip(found["seconds"], found["rank"], found["phase"], strict=True)
            if (rank, of) == (0, "train")
        ]
        assert run.data.metrics["train/step_seconds"] == pytest.approx(np.median(steps[10:]))
    report = killed.report("report.md")
    assert "Workers against one, before measuring" in report
    assert [
        title for title in ("Speed-up by workers", "Communication overhead") if title in report
    ] == []


@two_cpus
def test_what_was_proven_stands_in_the_campaign_and_in_its_cells(killed: Hit) -> None:
    (campaign,) = killed.runs("campaign")
    assert campaign.data.tags["workers_parity"] == "within what compression may lose"
    proofs = json.loads(Path(campaign.info.artifact_uri, "workers_parity.json").read_text())
    assert [(one["level"], one["hook"], one["steps"]) for one in proofs] == [
        ("2", "none", 5),
        ("2 fp16", "fp16", 5),
    ]
    assert all(one["error"] <= one["limit"] for one in proofs)
    cells = {
        run.data.params["group"]: run.data.metrics for run in killed.runs("cell", outcome="ok")
    }
    for one in proofs:
        assert cells[one["level"]]["check/weights_error"] == one["error"]
        assert cells[one["level"]]["check/weights_error_limit"] == one["limit"]
    assert "check/weights_error" not in cells["1"]
    assert f"| fp16 | {proofs[1]['error']:.1e} | {proofs[1]['limit']:.1e} |" in killed.report(
        "report.md"
    )


@two_cpus
def test_a_dead_worker_costs_a_cell_and_not_the_campaign(killed: Hit) -> None:
    _costs_a_cell(killed, "was killed by SIGKILL", cells=6)


# A frozen worker is noticed after the patience, within which the workers of a busy machine have to start.
BLOWS = [
    ("pytorch", signal.SIGSTOP, "is stopped", "60"),
    ("tensorflow", signal.SIGKILL, "was killed by SIGKILL", "300"),
    ("tensorflow", signal.SIGSTOP, "is stopped", "60"),
]


@two_cpus
@pytest.mark.slow
@pytest.mark.parametrize(("framework", "blow", "reason", "patience"), BLOWS)
def test_a_dead_or_frozen_worker_costs_a_cell_and_not_the_campaign(
    place: Place, framework: str, blow: signal.Signals, reason: str, patience: str
) -> None:
    _costs_a_cell(hit(place, framework, blow, patience_seconds=patience), reason, cells=4)


def _costs_a_cell(found: Hit, reason: str, *, cells: int) -> None:
    assert found.code == 1, found.said  # a cell failed
    assert len(found.runs("cell")) == cells
    (failed,) = found.runs("cell", outcome="failed")
    assert failed.data.params["group"] in ("2", "2 fp16")
    assert f"worker 1 {reason}" in failed.data.tags["outcome_reason"]
    assert len(found.runs("cell", outcome="ok")) == cells - 1
    assert not psutil.pid_exists(found.worker.pid)
    rows = json.loads(found.report("comparison.json"))["rows"]
    blocks = {
        row["b"]: row["n_blocks"] for row in rows if row["metric"] == "train/examples_per_second"
    }
    assert blocks == {level: 1 if level == failed.data.params["group"] else 2 for level in blocks}


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
