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
from typing import Any, NamedTuple

import submitit
from submitit.core.utils import FailedJobError
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from experiments.config import durations, variation
from experiments.config.settings import CampaignSettings, suggestion
from experiments.config.stopping import STOP
from experiments.contract import Node
from experiments.run.cell_process import ROOT
from tracking.errors import EvenhandError, UsageError

# A controller that is down keeps its clients waiting for minutes.
PATIENCE_SECONDS = 20.0
LIST_SECONDS, POLL_SECONDS = 3.0, 0.5
# A file system that nodes write to may show a result late.
RESULT_SECONDS = 15.0
# Slurm signals a job before its time is over, up to a minute early; then the job is requeued.
NOTICE_SECONDS = 90
# `SlurmTask` gives up where requeued jobs make no progress; submitit must not before.
MAX_REQUEUES = 10_000
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
REASONS = {
    "CANCELLED": "was cancelled",
    "NODE_FAIL": "ended because its node failed",
    "TIMEOUT": "reached its time limit (time_limit=…)",
    "OUT_OF_MEMORY": "used more memory than Slurm allows it",
    "PREEMPTED": "gave way to another",
    VANISHED: "is not in Slurm's queue any more and left no result",
}

logging.getLogger("submitit").setLevel(logging.ERROR)


class JobState(NamedTuple):
    """Row of squeue. A job that is requeued is pending again."""

    state: str = ""
    node: str = ""
    reason: str = ""


@dataclass
class Queue:
    """States of jobs by squeue, which needs no accounting database as submitit's sacct does.

    A job that the queue no longer lists ended long ago, or the controller has lost it.
    """

    states: dict[str, JobState]
    listed_seconds: float = float("-inf")

    def state(self, job_id: str, *, now: bool = False) -> JobState:
        """Return a job's state, listed a few seconds ago at most."""
        waiting = [job for job, row in self.states.items() if row.state not in OVER]
        if waiting and (now or time.monotonic() > self.listed_seconds + LIST_SECONDS):
            numbers = ",".join(sorted({job.partition("_")[0] for job in waiting}))
            columns = ("--noheader", "--states=all", "--array", "--format=%i|%T|%N|%r")
            done = _run(["squeue", *columns, f"--jobs={numbers}"])
            self.listed_seconds = time.monotonic()
            if not done.returncode or "Invalid job id" in done.stderr:
                rows = [line.split("|") for line in done.stdout.splitlines()]
                listed = {row[0]: JobState(*row[1:]) for row in rows if len(row) == 4}
                self.states |= {job: listed.get(job, JobState(VANISHED)) for job in waiting}
        return self.states[job_id]


@dataclass(frozen=True)
class SubmittedJob:
    """Job with its task and the queue that lists it."""

    job: SlurmJob
    task: Any
    queue: Queue

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
    def state(self) -> str:
        """State in Slurm's terms: PENDING, RUNNING, COMPLETED, CANCELLED, NODE_FAIL and others."""
        return self.queue.state(self.id).state

    @property
    def waits_for(self) -> str:
        state = self.queue.states[self.id]
        return state.reason if state.state == PENDING else ""

    def result(self) -> Any:
        """Return the result of its task. Raises EvenhandError with the reason if there is none."""
        deadline = time.monotonic() + RESULT_SECONDS
        while not self.has_result:
            if time.monotonic() > deadline:
                raise EvenhandError(self._reason())
            time.sleep(POLL_SECONDS)
        try:
            return self.job.result()
        except FailedJobError as error:
            trace = str(error).split("-" * 22)[1:2]  # between submitit's own lines
            last = _last_line(trace[0]) if trace else str(error)
            reason = f"failed: {last.rpartition('tracking.errors.')[2]}"
            if last.endswith("checkpoint function returned None."):
                reason = (
                    "reached its time limit again and again without a checkpoint; "
                    "give it a longer time_limit"
                )
            raise EvenhandError(f"job {self.id} {reason}") from None

    @property
    def has_started(self) -> bool:
        return self.state != "FAILED" or Path(self.job.paths.stdout).exists()

    def _reason(self) -> str:
        state = self.queue.state(self.id, now=True)
        place = f" on {state.node}" if state.node else ""
        if not self.has_started:
            return (
                f"job {self.id} could not write to {self.job.paths.folder}{place}: give "
                "journal=DIR and cache=DIR on a file system that this machine and all nodes share"
            )
        if state.state in REASONS:
            return f"job {self.id} {REASONS[state.state]}{place}"
        last = _last_line(self.job.stderr() or self.job.stdout() or "")
        return f"job {self.id} ended as {state.state}{place}: {last[:300]}"


def check(settings: CampaignSettings) -> None:
    """Raise UsageError where Slurm does not take such jobs; submit none."""
    listed = _run(["sinfo", "--noheader", "--format=%R"])
    if listed.returncode:
        raise UsageError(
            f"executor=slurm: Slurm does not answer: {_first_line(listed.stderr)}; "
            "ask for it where `sinfo` works"
        )
    partitions = dict.fromkeys(listed.stdout.split())
    if settings.partition and settings.partition not in partitions:
        close = suggestion(settings.partition, partitions)
        raise UsageError(f"partition={settings.partition} does not exist{close}")
    options = [f"--{name}={value}" for name, value in _options(settings).items()]
    tried = _run(["sbatch", "--test-only", "--exclusive", *options, "--wrap=true"])
    if tried.returncode:
        reason = _first_line(tried.stderr).removeprefix("allocation failure: ")
        raise UsageError(
            f"executor=slurm: Slurm takes no job as {_as_requested(settings)}: {reason}"
        )


def submit(
    settings: CampaignSettings,
    folder: Path,
    name: str,
    tasks: Sequence[Callable[[], Any]],
    **more: Any,
) -> list[SubmittedJob]:
    """Submit jobs, several as an array.

    Args:
        settings: Whose options of sbatch the jobs have.
        folder: On a file system that all nodes share.
        name: Of the jobs in the queue.
        tasks: Of each job.
        more: Options of sbatch in addition to those of the settings.

    Raises:
        UsageError: If Slurm does not take them.
    """
    python = f"{shlex.quote(sys.executable)} -P"
    executor = SlurmExecutor(folder, max_num_timeout=MAX_REQUEUES, python=python)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    options = _options(settings)
    parameters: dict[str, Any] = {
        "job_name": name,
        "time": options["time"],
        "array_parallelism": len(tasks),
        "signal_delay_s": min(NOTICE_SECONDS, 15 * options["time"]),
        # one task on the first node; a cell's threads go where they would without Slurm
        "srun_args": ["--nodes=1", "--ntasks=1", "--cpu-bind=none"],
        # the runner's run is the campaign's
        "setup": [
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
        raise UsageError(f"executor=slurm: {_first_line(str(error))}") from None
    queue = Queue({str(job.job_id): JobState() for job in jobs})
    return [SubmittedJob(job, task, queue) for job, task in zip(jobs, tasks, strict=True)]


def follow(jobs: Sequence[SubmittedJob]) -> Generator[list[SubmittedJob]]:
    """Yield the jobs that are not over, again and again, and at last an empty list.

    Jobs that still run or wait when it is closed are cancelled.
    """
    running = list(jobs)
    try:
        while True:
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
    name: str,
    task: Callable[[], Any],
    step: Callable[[str], None],
) -> Any:
    """Return what a function returns on a node.

    Args:
        settings: Whose options of sbatch the job has.
        folder: On a file system that all nodes share.
        name: Of the job in the queue.
        task: The function.
        step: Shows what is waited for.

    Raises:
        EvenhandError: If it fails.
        KeyboardInterrupt: If a signal came.
    """
    (job,) = submit(settings, folder, name, [task])
    with closing(follow([job])) as rounds:
        for _ in rounds:
            if job.waits_for in HOPELESS:
                raise UsageError(
                    "executor=slurm: Slurm would never start a job as "
                    f"{_as_requested(settings)}: {job.waits_for}"
                )
            step(f"job {job.id} {job.waits_for}".strip())
            if STOP.number:
                raise KeyboardInterrupt
        try:
            return job.result()
        except EvenhandError as error:
            if job.has_started:
                raise
            raise UsageError(f"executor=slurm: {error}") from None


def cancel_by_name(name: str) -> None:
    """Cancel the jobs of an earlier process and wait. Raises UsageError if Slurm does not answer."""
    _run(["scancel", f"--name={name}", "--me"])
    deadline = time.monotonic() + 3 * PATIENCE_SECONDS
    query = ["squeue", "--noheader", "--me", f"--name={name}", "--format=%i"]
    while (listed := _run(query)).stdout.strip():
        if time.monotonic() > deadline:
            ids = ", ".join(listed.stdout.split())
            raise UsageError(
                f"jobs of this campaign are still ending: {ids}; try again in a minute"
            )
        time.sleep(POLL_SECONDS)
    if listed.returncode:
        raise UsageError(f"executor=slurm: Slurm does not answer: {_first_line(listed.stderr)}")


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
            f"Slurm does not say which nodes this job has: {_first_line(shown.stderr)}"
        )
    step = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--unbuffered")
    others = (
        Node(name, address, (*step, f"--nodelist={name}"))
        for name, address in addresses.items()
        if name != this
    )
    return (Node(this, addresses[this]), *others)


def requeued(task: Callable[[], Any]) -> Any:
    """Return what submitit takes from a job whose time is over, to go on after it is requeued."""
    return submitit.helpers.DelayedSubmission(task)


def _as_requested(settings: CampaignSettings) -> str:
    values = {name: getattr(settings, name) for name in ("partition", "gres", "time_limit")}
    if settings.cpus_of_a_node:
        options = _options(settings)
        values |= {name: options.get(name) for name in ("nodes", "mincpus")}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value)


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
    except subprocess.TimeoutExpired:
        reason = f"{command[0]} got no answer for {PATIENCE_SECONDS:.0f} s"
        return subprocess.CompletedProcess(command, 1, "", reason)


def _first_line(text: str) -> str:
    """Return the first error of one of Slurm's commands, without the command's name."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "it says nothing")
    return re.sub(r"^(sbatch|sinfo|squeue): (error: )?", "", line)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own_lines = [line for line in lines if not line.startswith(("srun: ", "slurmstepd: "))]
    return own_lines[-1] if own_lines else "it said nothing"
