"""Races on a real Slurm, which these tests start. A default test is in `test_slurm.py`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from experiments.cli.codes import CONDITION_HOLDS, NO_VERDICT
from experiments.config import virtual_environments
from experiments.run.backends.slurm import REQUEUED
from tests import slurm
from tests.conftest import PYTHONPATH, Place, are_gone, wait_for
from tests.experiments.command import repository
from tests.experiments.command.packages import install_only_from, make_tiny
from tests.experiments.race import races
from tests.slurm import Slurm
from tests.warm import Process

pytestmark = [pytest.mark.slow, pytest.mark.debian(package="slurm-wlm")]
PYTHON = shlex.quote(sys.executable)
ON_SLURM = {
    "executor": "slurm",
    "partition": "main",
    "others_limit_percent": "100",
    "figures": "false",
}
SECRET = "geheim-1234"
# A command that asks to be killed: it and its child in another session ignore SIGTERM.
STUBBORN = "trap '' TERM; setsid sleep {0} & echo $API_TOKEN; touch started; sleep {0}"
VERSIONS = """
[defaults]
cwd = "project"
[levels.old]
command = "python work.py"
commit = "v1"
requirements = ["tiny==1.0"]
[levels.new]
command = "python work.py"
commit = "v2"
requirements = ["tiny==2.0"]
"""
CONDITIONS = f"""
[levels.hangs]
command = "echo stuck >&2; sleep 300"
timeout = "1s"
[levels.leaves]
command = "setsid sleep 301 & echo '{{\\"speed\\": 4}}' >> $EVENHAND_METRICS"
[levels.allocates]
command = "{PYTHON} a.py & {PYTHON} a.py & wait"
[levels.variables]
command = "env; echo the key is $API_TOKEN"
env = {{API_TOKEN = "{SECRET}"}}
"""
LOGS = """
import mlflow, time
with mlflow.start_run():
    for step, value in enumerate([0.6, 0.9, 0.7]):
        mlflow.log_metric("score", value, step=step)
time.sleep(2)
"""
SCORE = """
[levels.a]
command = "python work.py"
commit = "v1"
[levels.b]
command = "python work.py"
[outcomes]
primary = ["score"]
[outcomes.score]
better = "higher"
summary = "best"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=2) as cluster:
        yield cluster


def race(place: Place, *levels: str, **options: str) -> list[str]:
    return races.command(place, *levels, **{**ON_SLURM, **options})


def resume(place: Place, **options: str) -> list[str]:
    folders = (f"--cache={place.cache}", f"--journal={place.journal}")
    flags = [f"--{name}={text}" for name, text in options.items()]
    return [sys.executable, "-m", "experiments", "race", *folders, "--resume=last", *flags]


def outcomes(place: Place) -> list[tuple[str, str, str]]:
    """Return level, block and outcome of every run of a cell."""
    runs = races.cells(place)
    return sorted(
        (run.data.tags["treatment"], run.data.tags["block"], races.tags(run).get("outcome", ""))
        for run in runs
    )


def processes(*words: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if set(words) <= set(process.info["cmdline"] or [])
    ]


def test_environments_and_commits_are_made_before_jobs_on_two_nodes(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, project = on_cluster.folder / "wheels", on_cluster.folder / "project"
    for version in ("1.0", "2.0"):
        make_tiny(wheels, version)
        work = f"import tiny; assert tiny.VERSION == '{version}'\n"
        repository.commit(project, f"v{version[0]}", work=work)
    install_only_from(wheels, monkeypatch)
    (on_cluster.folder / "race.toml").write_text(VERSIONS)
    cache = on_cluster.folder / "cache"
    options = {"blocks": "4", "nodes": "2", "cold": "false", "cache": str(cache)}
    done = on_cluster.call(*race(on_cluster, file="race.toml", **options))
    assert done.returncode == NO_VERDICT, done.stdout + done.stderr
    assert outcomes(on_cluster) == [
        (level, str(block), "ok") for level in ("new", "old") for block in range(1, 5)
    ]
    cells, warm_ups = races.cells(on_cluster), races.cells(on_cluster, "warm_up")
    nodes = {
        block: {races.tags(run)["slurm.node"] for run in cells if run.data.tags["block"] == block}
        for block in ("1", "2", "3", "4")
    }
    assert all(len(of_block) == 1 for of_block in nodes.values()), nodes
    # every node has had every command before its first cell
    first = {node: min(_starts(cells, node)) for node in ("n1", "n2")}
    for node, start in first.items():
        assert len(_starts(warm_ups, node)) == 2
        assert max(_starts(warm_ups, node)) < start
    assert len(list((cache / virtual_environments.FOLDER).glob("*/pyvenv.cfg"))) == 2
    assert repository.worktrees(project) == []


def _starts(runs: list[races.Run], node: str) -> list[int]:
    return [run.info.start_time for run in runs if races.tags(run)["slurm.node"] == node]


def test_timeout_memory_outlived_processes_and_variables_in_a_job(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 80_000_000
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("MY_PASSWORD", "inherited-5678")
    (on_cluster.folder / "a.py").write_text(f"x = bytearray({size}); import time; time.sleep(1)")
    (on_cluster.folder / "race.toml").write_text(CONDITIONS)
    done = on_cluster.call(*race(on_cluster, file="race.toml"))
    assert done.returncode == 1, done.stdout + done.stderr
    runs = races.by_level(on_cluster)
    hangs, leaves = races.tags(runs["hangs"]), races.tags(runs["leaves"])
    assert (hangs["outcome"], hangs["end"]) == ("failed", "timeout")
    assert "stuck" in hangs["outcome_reason"]
    assert (leaves["outcome"], runs["leaves"].data.metrics["speed"]) == ("ok", 4)
    assert leaves["outlived"].startswith("1 process ")
    assert are_gone([*processes("sleep", "300"), *processes("sleep", "301")])
    peak = runs["allocates"].data.metrics["memory/peak_tree_bytes"]
    assert 2 * size < peak < 2 * size + 60_000_000
    (printed,) = on_cluster.journal.glob("*/cells/*-variables/*/stdout.txt")
    lines = printed.read_text().splitlines()
    assert {"MINE=1", "MY_PASSWORD=***", "API_TOKEN=***", "the key is ***"} <= set(lines)
    assert f"PYTHONPATH={PYTHONPATH}" in lines  # without what jobs and cells add


def test_secrets_are_only_in_files_of_the_owner_and_not_for_long(
    on_cluster: Place, cluster: Slurm
) -> None:
    folder = on_cluster.folder / "race"
    folder.mkdir()
    command = "touch started; while [ ! -e go ]; do sleep 0.1; done"
    (folder / "race.toml").write_text(
        f"[levels.a]\ncommand = '{command}'\nenv = {{API_TOKEN = '{SECRET}'}}\n"
    )
    parent = on_cluster.begin(*race(on_cluster, file=str(folder / "race.toml")))
    try:
        wait_for(lambda: (folder / "started").exists(), 120)
        (job,) = cluster.jobs()
        assert SECRET not in cluster.ask("scontrol", "show", "job", "--details", job)
        assert SECRET not in cluster.ask("scontrol", "write", "batch_script", job, "-")
        assert _files_with_secret(cluster.folder) == []
        (task,) = _files_with_secret(on_cluster.journal)
        assert task.name == f"{job}_submitted.pkl"
        assert task.parent.stat().st_mode & 0o777 == 0o700
        (folder / "go").touch()
        parent.communicate(timeout=120)
    finally:
        parent.kill()
    assert _files_with_secret(on_cluster.folder) == [folder / "race.toml"]
    assert _files_with_secret(cluster.folder) == []


def _files_with_secret(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


def test_cancelled_job_ends_the_command_and_resume_runs_it(
    on_cluster: Place, cluster: Slurm
) -> None:
    folder = on_cluster.folder
    level = f"a=test -e go || {{ {STUBBORN.format(302)}; }}"
    parent = on_cluster.begin(*race(on_cluster, level))
    try:
        wait_for(lambda: (folder / "started").exists(), 120)
        (job,) = cluster.jobs()
        running = processes("sleep", "302")
        assert len(running) == 2
        cluster.ask("scancel", job)
        output, _ = parent.communicate(timeout=120)
    finally:
        parent.kill()
    assert parent.returncode == 1, output
    wait_for(lambda: are_gone(running), 30)
    assert outcomes(on_cluster) == [("a", "1", "interrupted")]
    wait_for(lambda: cluster.jobs() == {}, 60)
    (folder / "go").touch()
    done = on_cluster.call(*resume(on_cluster))
    assert done.returncode == NO_VERDICT, done.stdout + done.stderr
    assert outcomes(on_cluster) == [("a", "1", "interrupted"), ("a", "1", "ok")]


def test_interrupted_campaign_ends_its_jobs(
    on_cluster: Place, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    parent = on_cluster.begin(*race(on_cluster, f"a={STUBBORN.format(303)}"))
    try:
        wait_for(lambda: (on_cluster.folder / "started").exists(), 120)
        running = processes("sleep", "303")
        parent.send_signal(signal.SIGINT)
        parent.communicate(timeout=120)
    finally:
        parent.kill()
    assert are_gone(running)
    assert cluster.jobs() == {}
    assert outcomes(on_cluster) == [("a", "1", "interrupted")]
    assert _files_with_secret(on_cluster.folder) == []


@pytest.mark.timeout(600)
def test_resume_after_a_killed_campaign_collects_jobs_with_commits_and_runs_in_mlflow(
    on_cluster: Place, cluster: Slurm
) -> None:
    project = on_cluster.folder / "project"
    repository.commit(project, "v1", work=LOGS)
    (project / "race.toml").write_text(SCORE)
    options = {"file": str(project / "race.toml"), "blocks": "4", "nodes": "2"}
    parent = on_cluster.begin(*race(on_cluster, **options))
    try:
        wait_for(lambda: _has_ended(parent, on_cluster, 1), 300)
    finally:
        parent.kill()
        parent.wait(60)
    (worktree,) = repository.worktrees(project)
    wait_for(lambda: cluster.jobs() == {}, 300)  # the jobs go on without the campaign's process
    # another race of the repository does not remove what orphaned jobs may use
    other = on_cluster.call(*races.command(on_cluster, file=options["file"], blocks="1"))
    assert other.returncode == NO_VERDICT, other.stdout + other.stderr
    assert repository.worktrees(project) == [worktree]
    (name,) = (path.parent.name for path in on_cluster.journal.glob("*/jobs"))
    words = [word for word in resume(on_cluster) if not word.startswith("--resume")]
    done = on_cluster.call(*words, f"--resume={name}")
    assert done.returncode == NO_VERDICT, done.stdout + done.stderr
    cells = [run for run in races.cells(on_cluster) if "slurm.job" in races.tags(run)]
    assert sorted((run.data.tags["treatment"], run.data.tags["block"]) for run in cells) == [
        (level, str(block)) for level in ("a", "b") for block in range(1, 5)
    ], "each ran once"
    assert {races.tags(run)["outcome"] for run in cells} == {"ok"}
    assert {run.data.metrics["score"] for run in cells} == {0.9}
    assert not list(on_cluster.journal.glob("*/jobs/submitted/*_submitted.pkl"))


def _has_ended(parent: Process, place: Place, count: int) -> bool:
    assert parent.poll() is None, parent.output
    return sum(end == "ok" for _, _, end in outcomes(place)) >= count


def test_slower_command_fails_the_call_and_stops_when_it_is_settled(
    on_cluster: Place, cluster: Slurm
) -> None:
    levels = ("base=sleep 0.1", "head=sleep 0.6")
    options = {"until": "settled", "blocks": "6", "max_blocks": "12", "cold": "false"}
    done = on_cluster.call(*race(on_cluster, *levels, **options, fail_if="slower:wall_seconds"))
    assert done.returncode == CONDITION_HOLDS, done.stdout + done.stderr
    warm_ups = [races.tags(run)["slurm.node"] for run in races.cells(on_cluster, "warm_up")]
    assert len(warm_ups) == 2  # later jobs run on the node that has had them
    assert {races.tags(run)["slurm.node"] for run in races.cells(on_cluster)} == set(warm_ups)


@pytest.mark.timeout(600)
def test_requeued_job_continues_without_its_warm_ups(on_cluster: Place, cluster: Slurm) -> None:
    """Run for 100 s: Slurm ends a job of two minutes after 60 to 90 s, a command after 15 s."""
    options = {"time_limit": "2m", "blocks": "3", "cold": "false"}
    done = on_cluster.begin(*race(on_cluster, "a=sleep 10", "b=sleep 400", **options))
    try:
        done.communicate(timeout=500)
    finally:
        done.kill()
    ends = outcomes(on_cluster)
    for block in map(str, range(1, 4)):
        assert ("a", block, "ok") in ends
        assert ("b", block, "failed") in ends
    tags = [races.tags(run) for run in races.cells(on_cluster)]
    assert {tag["end"] for tag in tags if tag["outcome"] == "failed"} == {"timeout"}
    assert REQUEUED in {tag.get("outcome_reason") for tag in tags}
    warm_ups = [races.tags(run)["outcome"] for run in races.cells(on_cluster, "warm_up")]
    assert sorted(end for end in warm_ups if end != "interrupted") == ["failed", "ok"]


@pytest.mark.skipif(os.getuid() != 0, reason="a node with its own mount needs root")
def test_folder_that_nodes_do_not_share_is_one_line(on_cluster: Place, cluster: Slurm) -> None:
    local = on_cluster.folder / "local"
    (local / "project").mkdir(parents=True)
    (on_cluster.folder / "race.toml").write_text(
        "[levels.a]\ncommand = 'true'\ncwd = 'local/project'\n"
    )
    with cluster.without(local):
        done = on_cluster.call(*race(on_cluster, file="race.toml"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stdout + done.stderr
    assert str(local / "project") in done.stderr
    assert races.cells(on_cluster) == []


def test_dry_run_starts_no_job(on_cluster: Place, cluster: Slurm) -> None:
    query = ("squeue", "--noheader", "--states=all", "--format=%i")
    before = cluster.ask(*query)
    done = on_cluster.call(*race(on_cluster, "a=sleep 1", dry_run="true"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.ask(*query) == before
