"""Ctrl-C: no run stays open, and the printed command continues the work in a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any

import psutil
import pytest

from tests.conftest import QUICK, ROOT, Place, set_toy_costs, wait_for
from tracking.store import Store

# Without pictures there is nothing to extract first.
SHORT = {**QUICK, "data": "synthetic", "vocabulary": "60", "length": "8", "frameworks": "toy"}


def statuses(place: Place, *experiments: str) -> dict[str, str]:
    """Return kind (or name, of a run without a kind) -> status of every run."""
    store = Store(place.uri)
    runs = [run for name in experiments for run in store.runs(name)]
    return {run.tags.get("kind", run.name): run.status for run in runs}


def test_printed_resume_command_works(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, script = place.folder / "a user's own", place.folder / "bin" / "evenhand"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "__init__.py").write_text("raise SystemExit('not these')")
    script.parent.mkdir()
    code = "import sys\nfrom experiments.cli.main import run\nsys.exit(run())\n"
    script.write_text(f"#!{sys.executable}\n{code}")
    script.chmod(0o755)
    set_toy_costs(monkeypatch, step=0.05)
    settings = {**SHORT, "epochs": "25", "blocks": "1", "cache": str(place.cache)}
    options = [f"--{name}={text}" for name, text in (settings | {"journal": "my journal"}).items()]
    # As a shell does for every job: Ctrl-C goes to the group. A job in the background ignores it.
    handler = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    group: Any = {"start_new_session": True, "preexec_fn": handler}
    log, command = place.folder / "output.log", [str(script), "captioning", *options]
    with log.open("wb") as output:
        streams = {"stdout": output, "stderr": output}
        process = subprocess.Popen(command, env=place.environment, cwd=folder, **streams, **group)

    def has_a_cell() -> bool:
        assert process.poll() is None, log.read_text()
        files = folder.glob("my journal/*/records.jsonl")
        return any(b'"kind":"cell"' in path.read_bytes() for path in files)

    wait_for(has_a_cell, 120)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT, log.read_text()
    assert set(statuses(place, "captioning").values()) <= {"KILLED", "FINISHED"}
    printed = log.read_text().splitlines()[-1].partition("Continue with: ")[2]
    environment = {**place.environment}
    del environment["MLFLOW_TRACKING_URI"]
    again = subprocess.run(["sh", "-c", printed], cwd="/", env=environment, capture_output=True)
    assert again.returncode == 3, again.stdout + again.stderr  # one block: no verdict
    assert statuses(place, "captioning")["campaign"] == "FINISHED"


def is_half_imported(process: psutil.Process) -> bool:
    """Return True if this is a campaign's process that has done half of its imports."""
    try:
        return "experiments" in process.cmdline() and process.cpu_times().user > 0.3
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("moment", ["launch", "campaign"])
def test_interrupted_mlflow_run_leaves_no_open_run(place: Place, moment: str) -> None:
    """Interrupt while the child imports (launch), and when the campaign has just been opened.

    Before it starts the child, MLflow itself leaves its run open.
    """
    settings = {**SHORT, "cache": str(place.cache), "journal": str(place.journal)}
    parameters = [part for name, text in settings.items() for part in ("-P", f"{name}={text}")]
    command = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "captioning"]
    store = Store(place.uri)
    store.experiment_id("captioning")  # two processes that create it at once fail in MLflow
    process = place.begin(*command, "--env-manager", "local", *parameters)

    def is_reached() -> bool:
        assert process.poll() is None, process.output
        if moment == "campaign":
            return bool(list(store.runs("captioning")))
        return any(map(is_half_imported, psutil.Process(process.pid).children(recursive=True)))

    wait_for(is_reached, 120)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(120) != 0
    states = statuses(place, "Default", "captioning")
    assert states
    assert "RUNNING" not in states.values(), (states, process.output)
    assert ("campaign" in states) == (moment == "campaign")
