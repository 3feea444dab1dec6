"""Access to Slurm: submitit submits jobs, and squeue lists their states."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from experiments.config import durations, variation
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.config.stopping import STOP
from experiments.contract import Node
from experiments.run.cell_process import ROOT
from tracking.errors import ErrorCode, EvenhandError, UsageError

# A controller that is down keeps its clients waiting for minutes.
PATIENCE_SECONDS = 20.0
LIST_SECONDS, POLL_SECONDS = 3.0, 0.5
# A file system that nodes write to may show a result late.
RESULT_SECONDS = 15.0
# Slurm signals a job before its time is over, up to a minute early; then the job is requeued.
NOTICE_SECONDS = 90
# Then a job fails: it may make no progress. `--resume` continues a longer campaign.
MAX_REQUEUES = 30
PRIVATE = 0o700  # permissions of a folder
PENDING, VANISHED = "PENDING", "VANISHED"
OVER = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
    VANISHED,
}
# Reasons for which a job waits forever. Slurm takes such jobs, unless configured otherwise.
HOPELESS = (
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
)
logging.getLogger("submitit").setLevel(logging.ERROR)


@dataclass
class Task:
    """Task of a job, which submitit runs; the job is requeued and goes on when its time is over.

    Attributes:
        work: Does the work of the job.
    """

    work: Callable[[Display], Any]

    def __call__(self) -> Any:
        added, _, path = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
        if added == str(ROOT):  # by `submit`; processes of the job would inherit it
            os.environ["PYTHONPATH"] = path
        STOP.hold()
        STOP.watch()
        with Display() as display:
            return self.work(display)

    def checkpoint(self) -> Any:
        return submitit.helpers.DelayedSubmission(self)


@dataclass
class SubmittedJob:
    """Job, and its row of squeue when that was last asked. One that is requeued is pending again.

    A job that the queue no longer lists ended long ago, or the controller has lost it.
    """

    job: SlurmJob
    state: str = ""
    node: str = ""
    reason: str = ""

    @property
    def id(self) -> str:
        return str(self.job.job_id)

    @property
    def has_result(self) -> bool:
        folder = self.job.paths.folder
        with suppress(OSError):  # makes a network file system list the folder anew
            folder.chmod(folder.stat().st_mode)
        return bool(self.job.paths.result_pickle.exists())

    @property
    def is_over(self) -> bool:
        return self.has_result or self.state in OVER

    @property
    def waits_for(self) -> str:
        return self.reason if self.state == PENDING and self.reason != "None" else ""

    def result(self) -> Any:
        """Return the result of its task. Raises EvenhandError with the reason if there is none."""
        deadline = time.monotonic() + RESULT_SECONDS
        while not self.has_result:
            if time.monotonic() > deadline:
                list_states([self])
                raise EvenhandError(
                    ErrorCode.CHILD_FAILED,
                    f"job {self.id} ended as {self.state} on {self.node or 'no node'}, without a "
                    f"result in {self.job.paths.folder}, which every node must be able to write: "
                    f"{_tail(self.job.stderr() or self.job.stdout() or '')}",
                )
            time.sleep(POLL_SECONDS)
        try:
            return self.job.result()
        except FailedJobError as error:
            trace = str(error).split("-" * 22)[1:2]  # between submitit's own lines
            raise EvenhandError(
                ErrorCode.CHILD_FAILED, f"job {self.id} failed: {_tail(trace[0])}"
            ) from None


def list_states(jobs: Sequence[SubmittedJob]) -> None:
    """Ask squeue, which needs no accounting database as submitit's sacct does."""
    waiting = {job.id: job for job in jobs if job.state not in OVER}
    if not waiting:
        return
    numbers = ",".join(sorted({number.partition("_")[0] for number in waiting}))
    columns = ("--noheader", "--states=all", "--array", "--format=%i|%T|%N|%r")
    done = _run(["squeue", *columns, f"--jobs={numbers}"])
    if not done.returncode or "Invalid job id" in done.stderr:
        rows = [line.split("|") for line in done.stdout.splitlines()]
        listed = {row[0]: row[1:] for row in rows if len(row) == 4}
        for number, job in waiting.items():
            job.state, job.node, job.reason = listed.get(number, (VANISHED, "", ""))


def check(settings: CampaignSettings) -> None:
    """Raise UsageError where Slurm does not take such jobs; submit none."""
    options = _arguments(settings)
    test = _run(["sbatch", "--test-only", "--exclusive", *options, "--wrap=true"])
    if test.returncode:
        raise UsageError(
            ErrorCode.UNSUPPORTED,
            f"executor=slurm: Slurm takes no job with {' '.join(options)}: {_tail(test.stderr)}",
        )


def submit(
    settings: CampaignSettings,
    folder: Path,
    run_id: str,
    tasks: Sequence[Callable[[], Any]],
    **more: Any,
) -> list[SubmittedJob]:
    """Submit jobs, several as an array.

    Args:
        settings: Whose options of sbatch the jobs have.
        folder: On a file system that all nodes share. Only its owner may read it from now on: the
            tasks can contain secrets of the user.
        run_id: Of the campaign's run, by which `cancel` finds the jobs.
        tasks: Of each job.
        more: Options of sbatch in addition to those of the settings.

    Raises:
        UsageError: If Slurm does not take them.
    """
    python = f"{shlex.quote(sys.executable)} -P"
    executor = SlurmExecutor(folder, max_num_timeout=MAX_REQUEUES, python=python)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    folder.chmod(PRIVATE)
    options = _options(settings)
    parameters: dict[str, Any] = {
        "job_name": _name(run_id),
        "time": options["time"],
        "array_parallelism": len(tasks),
        "signal_delay_s": min(NOTICE_SECONDS, 15 * options["time"]),
        # one task on the first node; a cell's threads go where they would without Slurm
        "srun_args": ["--nodes=1", "--ntasks=1", "--cpu-bind=none"],
        # the runner's run is the campaign's
        "setup": [
            # a node without this folder would import an installed version instead
            f"(cd {shlex.quote(str(ROOT / 'experiments'))}) || exit",
            f"export PYTHONPATH={shlex.quote(path)}",
            "unset MLFLOW_RUN_ID MLFLOW_EXPERIMENT_ID",
        ],
        # nodes, too: with submitit's own setting it would wait for a result of every one
        "additional_parameters": {"requeue": True, "exclusive": True, **options, **more},
    }
    executor.update_parameters(**parameters)
    try:
        jobs = executor.submit_array(tasks) if len(tasks) > 1 else [executor.submit(tasks[0])]
    except FailedJobError as error:
        raise UsageError(ErrorCode.UNSUPPORTED, f"executor=slurm: {_tail(str(error))}") from None
    return [SubmittedJob(job) for job in jobs]


def forget_tasks(folder: Path) -> None:
    """Remove the tasks of jobs that have ended, which can contain secrets of the user."""
    for path in folder.glob("*_submitted.pkl"):
        path.unlink(missing_ok=True)


def follow(jobs: Sequence[SubmittedJob]) -> Generator[list[SubmittedJob]]:
    """Yield the jobs that are not over, again and again, and at last an empty list.

    Jobs that still run or wait when it is closed are cancelled.
    """
    running, listed = list(jobs), float("-inf")
    try:
        while True:
            if time.monotonic() > listed + LIST_SECONDS:
                list_states(running)
                listed = time.monotonic()
            running = [job for job in running if not job.is_over]
            yield running
            if not running:
                return
            time.sleep(POLL_SECONDS)
    finally:
        if ids := [job.id for job in jobs if not job.job.paths.result_pickle.exists()]:
            _run(["scancel", *ids])


def call(
    settings: CampaignSettings,
    folder: Path,
    task: Callable[[], Any],
    step: Callable[[str], None],
) -> Any:
    """Return what a function returns on a node.

    Args:
        settings: Whose options of sbatch the job has.
        folder: On a file system that all nodes share.
        task: The function.
        step: Shows what is waited for.

    Raises:
        UsageError: If there is no result.
        KeyboardInterrupt: If a signal came.
    """
    (job,) = submit(settings, folder, "check", [task])
    with closing(follow([job])) as rounds:
        for _ in rounds:
            if job.waits_for in HOPELESS:
                options = " ".join(_arguments(settings))
                raise UsageError(
                    ErrorCode.UNSUPPORTED,
                    f"executor=slurm: a job with {options} would never start: {job.waits_for}",
                )
            step(f"job {job.id} {job.waits_for}".strip())
            if STOP.number:
                raise KeyboardInterrupt
        try:
            return job.result()
        except EvenhandError as error:
            raise UsageError(error.code, f"executor=slurm: {error}") from None


def cancel(folder: Path, run_id: str) -> None:
    """Cancel the jobs that an earlier process submitted with this folder, and wait.

    Raises:
        UsageError: If some remain.
    """
    name = _name(run_id)
    _run(["scancel", f"--name={name}", "--me"])
    deadline = time.monotonic() + 3 * PATIENCE_SECONDS
    query = ["squeue", "--noheader", "--me", f"--name={name}", "--format=%i"]
    while True:
        listed = _run(query)
        if not listed.returncode and not listed.stdout.strip():
            forget_tasks(folder)
            return
        if listed.returncode or time.monotonic() > deadline:
            raise UsageError(
                ErrorCode.IN_USE,
                f"executor=slurm: jobs named {name} may still run; try again in a minute: "
                f"{_tail(listed.stdout + listed.stderr)}",
            )
        time.sleep(POLL_SECONDS)


def here() -> dict[str, str]:
    """Return tags of the job and the node that this process runs in."""
    job = submitit.JobEnvironment().job_id
    return {"slurm.job": str(job), "slurm.node": os.environ.get("SLURMD_NODENAME", "")}


def nodes() -> tuple[Node, ...]:
    """Return the nodes of the job that this process runs in, this one first; none if it has one.

    Raises:
        EvenhandError: If Slurm does not list them.
    """
    if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) < 2:
        return ()
    this = os.environ["SLURMD_NODENAME"]
    shown = _run(["scontrol", "show", "node", "--oneliner", os.environ["SLURM_JOB_NODELIST"]])
    addresses = dict(re.findall(r"\bNodeName=(\S+).*?\bNodeAddr=(\S+)", shown.stdout))
    if shown.returncode or this not in addresses:
        raise EvenhandError(
            ErrorCode.UNREACHABLE, f"Slurm lists no nodes of this job: {_tail(shown.stderr)}"
        )
    step = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--unbuffered")
    others = (
        Node(name, address, (*step, f"--nodelist={name}"))
        for name, address in addresses.items()
        if name != this
    )
    return (Node(this, addresses[this]), *others)


def _name(run_id: str) -> str:
    return f"evenhand-{run_id[:12]}"


def _arguments(settings: CampaignSettings) -> list[str]:
    return [f"--{name}={value}" for name, value in _options(settings).items()]


def _options(settings: CampaignSettings) -> dict[str, Any]:
    options = {
        "time": max(1, math.ceil(durations.seconds("time_limit", settings.time_limit) / 60)),
        "nodes": settings.nodes_of_a_job,
        "partition": settings.partition,
        "gres": settings.gres,
        "mincpus": max(level.cpus_of_a_node for level in variation.each(settings)),
    }
    return {name: value for name, value in options.items() if value}


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _tail(text: str) -> str:
    """Return the end of an output as one line."""
    return " ".join(text.split())[-300:] or "no output"
