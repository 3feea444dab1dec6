"""The only module that talks to Slurm: jobs are sent through submitit, and their states come from squeue."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError
from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher, SlurmJob, read_job_id

from experiments.config import durations, variation
from experiments.config.settings import CampaignSettings, suggestion
from experiments.config.stopping import STOP
from experiments.contract import Node
from experiments.run.process import ROOT
from tracking.errors import EvenhandError, WrongCall

# A controller that is down keeps its clients waiting for minutes.
PATIENCE_SECONDS = 20.0
LONGEST_BETWEEN_LOOKS_SECONDS = 10
POLL_SECONDS = 0.5
# Before a job's time is over Slurm sends a signal, up to a minute early; then the job asks to be put back into the queue.
NOTICE_SECONDS = 90
VANISHED = "VANISHED"
SHARED = "give journal=DIR and cache=DIR on a file system that this machine and all nodes share"
OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
# Why Slurm lets a job wait that it will never start. It takes such jobs, unless its configuration enforces limits.
HOPELESS = ("PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS")
# A job that Slurm requeues without end would never end: `Share` gives up where requeued jobs get nothing done.
MAX_REQUEUES = 10_000


class Queue(SlurmInfoWatcher):  # type: ignore[misc]
    """The states of jobs by squeue, which needs no accounting database; submitit's own asks sacct, and waits for ever without.

    A job that the queue no longer lists has ended long ago, or the controller has lost it.
    """

    def _make_command(self) -> list[str] | None:
        asked = sorted({job.split("_")[0] for job in self._registered - self._finished})
        listed = ["squeue", "--noheader", "--states=all", "--array", "--format=%i|%T|%N|%r"]
        return [*listed, f"--jobs={','.join(asked)}"] if asked else None

    def update(self) -> None:
        """Asks once for all jobs. Where the controller does not answer, nothing is known that was not known before."""
        self._last_status_check = time.time()
        if not (command := self._make_command()):
            return
        self._num_calls += 1
        done = _asked(command)
        if done.returncode and "Invalid job id" not in done.stderr:
            return
        waiting = self._registered - self._finished
        self._info_dict |= {job: {"State": VANISHED} for job in waiting} | self.read_info(done.stdout)
        self._finished |= {job for job in waiting if self.is_done(job, mode="cache")}

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether nothing more is to come of a job; one that is requeued is pending."""
        return self.get_state(job_id, mode=mode).partition(" ")[0] in {*OVER, VANISHED}

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """State, node and reason by job."""
        text = string.decode() if isinstance(string, bytes) else string
        rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
        return {
            "_".join(one[:2]): {"State": state, "NodeList": node, "Reason": reason}
            for job, state, node, reason in rows
            for one in read_job_id(job)
        }


SlurmJob.watcher = Queue(delay_s=LONGEST_BETWEEN_LOOKS_SECONDS)
logging.getLogger("submitit").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Sent:
    """A job. work: what it does, for the one who sent it."""

    job: SlurmJob
    work: Any

    @property
    def id(self) -> str:
        return str(self.job.job_id)

    @property
    def over(self) -> bool:
        """Whether it has left its result, or will not any more."""
        return bool(self.job.done())

    @property
    def state(self) -> str:
        """As Slurm calls it: PENDING, RUNNING, COMPLETED, CANCELLED, NODE_FAIL …"""
        return str(self.job.state).partition(" ")[0]

    @property
    def waits_for(self) -> str:
        """Why Slurm has not started it; empty where it has."""
        found = self.job.watcher.get_info(self.id, mode="cache")
        return found.get("Reason", "") if found.get("State") == "PENDING" else ""

    def result(self) -> Any:
        """What its work returned. Raises EvenhandError, which says how it ended where it did not return."""
        try:
            return self.job.result()
        except FailedJobError as error:
            trace = str(error).split("-" * 22)[1:2]  # submitit's own words stand around it
            last = _last_line(trace[0]) if trace else str(error)
            told = f"failed: {last.rpartition('tracking.errors.')[2]}"
            if last.endswith("checkpoint function returned None."):
                told = "reached its time limit again and again without a checkpoint; give it a longer time_limit"
            raise EvenhandError(f"job {self.id} {told}") from None
        except UncompletedJobError:
            raise EvenhandError(self._ended()) from None

    @property
    def saw_nothing(self) -> bool:
        """Whether it failed before its first word: its node could not open the file for it, where others can."""
        return self.state == "FAILED" and not Path(self.job.paths.stdout).exists()

    def _ended(self) -> str:
        self.job.watcher.update()
        state, node = self.state, self.job.watcher.get_info(self.id, mode="cache").get("NodeList", "")
        where = f" on {node}" if node else ""
        told = {
            "CANCELLED": f"job {self.id} was cancelled{where}",
            "NODE_FAIL": f"job {self.id} ended because its node failed ({node or 'unknown'})",
            "TIMEOUT": f"job {self.id} reached its time limit{where} (time_limit=…)",
            "OUT_OF_MEMORY": f"job {self.id} used more memory than Slurm allows it{where}",
            "PREEMPTED": f"job {self.id} gave way to another{where}",
            VANISHED: f"job {self.id} is not in Slurm's queue any more and left no result",
        }
        if self.saw_nothing:
            return f"job {self.id} could not write to {self.job.paths.folder}{where}: {SHARED}"
        said = _last_line(self.job.stderr() or self.job.stdout() or "")
        return told.get(state, f"job {self.id} ended as {state}{where}: {said[:300]}")


def check(settings: CampaignSettings) -> None:
    """Raises WrongCall where Slurm does not take such jobs; sends none."""
    found = _asked(["sinfo", "--noheader", "--format=%R"])
    if found.returncode:
        raise WrongCall(f"executor=slurm: Slurm does not answer: {_first_line(found.stderr)}; ask for it where `sinfo` works")
    partitions = dict.fromkeys(found.stdout.split())
    if settings.partition and settings.partition not in partitions:
        raise WrongCall(f"partition={settings.partition} does not exist{suggestion(settings.partition, partitions)}")
    tried = _asked(["sbatch", "--test-only", *_as_options(settings), "--wrap=true"])
    if tried.returncode:
        told = _first_line(tried.stderr).removeprefix("allocation failure: ")
        raise WrongCall(f"executor=slurm: Slurm takes no job as {_as_asked(settings)}: {told}")


def send(settings: CampaignSettings, folder: Path, name: str, work: Sequence[Callable[[], Any]], **more: Any) -> list[Sent]:
    """Sends jobs, several as an array. folder: on a file system that all nodes share. name: of the jobs in the queue.

    more: options of sbatch in submitit's spelling, beside those of the settings. Raises WrongCall where Slurm does not take them.
    """
    minutes = max(1, math.ceil(durations.seconds("time_limit", settings.time_limit) / 60))
    executor = SlurmExecutor(folder, max_num_timeout=MAX_REQUEUES, python=f"{shlex.quote(sys.executable)} -P")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    asked: dict[str, Any] = {
        "job_name": name,
        "time": minutes,
        "exclusive": True,
        "array_parallelism": len(work),
        "signal_delay_s": min(NOTICE_SECONDS, 15 * minutes),
        # the first node alone is told what to do, in one task; a cell's threads go where they would without Slurm
        "srun_args": ["--nodes=1", "--ntasks=1", "--cpu-bind=none"],
        # the runner's run is the campaign's
        "setup": [f"export PYTHONPATH={shlex.quote(path)}", "unset MLFLOW_RUN_ID MLFLOW_EXPERIMENT_ID"],
        "additional_parameters": {"requeue": True, **_size(settings)},
        **{option: text for option, text in (("partition", settings.partition), ("gres", settings.gres)) if text},
        **more,
    }
    executor.update_parameters(**asked)
    try:
        jobs = executor.submit_array(work) if len(work) > 1 else [executor.submit(work[0])]
    except FailedJobError as error:
        raise WrongCall(f"executor=slurm: {_first_line(str(error))}") from None
    return [Sent(job, one) for job, one in zip(jobs, work, strict=True)]


def call(settings: CampaignSettings, folder: Path, name: str, work: Callable[[], Any], step: Callable[[str], None]) -> Any:
    """What a function returns on a node. step: is told what is waited for. Raises EvenhandError, or KeyboardInterrupt."""
    (sent,) = send(settings, folder, name, [work])
    try:
        while not sent.over:
            if sent.waits_for in HOPELESS:
                raise WrongCall(f"executor=slurm: Slurm would never start a job as {_as_asked(settings)}: {sent.waits_for}")
            step(f"job {sent.id} {sent.waits_for}".strip())
            time.sleep(POLL_SECONDS)
            if STOP.number:
                raise KeyboardInterrupt
        return sent.result()
    except EvenhandError as error:
        raise WrongCall(f"executor=slurm: {error}") if sent.saw_nothing else error from None
    finally:
        cancel([sent])


def cancel(sent: Sequence[Sent]) -> None:
    """Ends jobs that may still be at work or in the queue."""
    waiting = [one.id for one in sent if not one.job.paths.result_pickle.exists()]
    if waiting:
        _asked(["scancel", *waiting])


def cancel_by_name(name: str) -> None:
    """Ends what an earlier process has sent, and waits for its end. Raises WrongCall where Slurm does not answer."""
    _asked(["scancel", f"--name={name}", "--me"])
    deadline = time.monotonic() + 3 * PATIENCE_SECONDS
    while (found := _asked(["squeue", "--noheader", "--me", f"--name={name}", "--format=%i"])).stdout.strip():
        if time.monotonic() > deadline:
            raise WrongCall(f"jobs of this campaign are still ending: {', '.join(found.stdout.split())}; try again in a minute")
        time.sleep(POLL_SECONDS)
    if found.returncode:
        raise WrongCall(f"executor=slurm: Slurm does not answer: {_first_line(found.stderr)}")


def here() -> dict[str, str]:
    """Tags of the job and the node that this process runs in."""
    job = submitit.JobEnvironment().job_id
    return {"slurm.job": str(job), "slurm.node": os.environ.get("SLURMD_NODENAME", "")}


def nodes() -> tuple[Node, ...]:
    """Return those of the job that this process runs in, this one first; none where it has one.

    Raises EvenhandError where Slurm does not say.
    """
    if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) < 2:
        return ()
    here = os.environ["SLURMD_NODENAME"]
    told = _asked(["scontrol", "show", "node", "--oneliner", os.environ["SLURM_JOB_NODELIST"]])
    addresses = node_addresses(told.stdout)
    if told.returncode or here not in addresses:
        raise EvenhandError(f"Slurm does not say which nodes this job has: {_first_line(told.stderr)}")
    others = (Node(name, at, _way(name)) for name, at in addresses.items() if name != here)
    return (Node(here, addresses[here]), *others)


def node_addresses(text: str) -> dict[str, str]:
    """Return name -> address, of `scontrol show node --oneliner`."""
    return dict(re.findall(r"\bNodeName=(\S+).*?\bNodeAddr=(\S+)", text))


def _way(node: str) -> tuple[str, ...]:
    """As a step of its own, beside the one that this process is."""
    return ("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--cpu-bind=none", "--unbuffered")


def send_again(work: Callable[[], Any]) -> Any:
    """What submitit takes from a job whose time is over, to go on with after it was requeued."""
    return submitit.helpers.DelayedSubmission(work)


def _as_asked(settings: CampaignSettings) -> str:
    given = {name: getattr(settings, name) for name in ("partition", "gres", "time_limit")}
    more = _size(settings) if settings.cpus_of_a_node else {}
    return ", ".join(f"{name}={text}" for name, text in {**given, **more}.items() if text)


def _size(settings: CampaignSettings) -> dict[str, int]:
    """How many nodes a job has, and how many CPUs each of them at least, where the study knows it.

    Not by submitit's own `nodes`: it would wait for a result of every one.
    """
    cpus = max(own.cpus_of_a_node for own in variation.each(settings))
    return {"nodes": settings.nodes_of_a_job, **({"mincpus": cpus} if cpus else {})}


def _as_options(settings: CampaignSettings) -> list[str]:
    minutes = max(1, math.ceil(durations.seconds("time_limit", settings.time_limit) / 60))
    given = {"partition": settings.partition, "gres": settings.gres, "time": str(minutes)}
    given |= {name: str(count) for name, count in _size(settings).items()}
    return ["--exclusive", *(f"--{name}={text}" for name, text in given.items() if text)]


def _asked(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """One of Slurm's commands, to its end or that of our patience."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} got no answer for {PATIENCE_SECONDS:.0f} s")


def _first_line(text: str) -> str:
    """The first thing that is wrong, without the command's name."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "it says nothing")
    return re.sub(r"^(sbatch|sinfo|squeue): (error: )?", "", line)


def _last_line(text: str) -> str:
    """The last that a job said itself."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith(("srun: ", "slurmstepd: "))), "it said nothing")
