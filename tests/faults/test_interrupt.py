"""Ctrl-C: nothing stays open, and what is printed continues the work when it is pasted into a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import QUICK, ROOT, Place, toy_costs, wait_for
from tracking.store import Store

# Without pictures there is nothing to extract first.
SHORT = {**QUICK, "data": "synthetic", "vocabulary": "60", "length": "8", "frameworks": "toy"}


def begin(command: list[str], place: Place, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Started anew. A process group of its own, as a shell makes one for every job; the terminal's Ctrl-C goes to all of it."""
    log = place.folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=place.environment,
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # a test in the background has it ignored
        )
    return process, log


def statuses(place: Place, *experiments: str) -> dict[str, str]:
    """Kind of every run, with its name where it has no kind yet -> status."""
    store = Store(place.uri)
    return {
        run.tags.get("kind", run.name): run.status
        for name in experiments
        for run in store.runs(name)
    }


def test_printed_resume_command_works(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place.folder / "a user's own"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "__init__.py").write_text("raise SystemExit('not these')")
    script = place.folder / "bin" / "evenhand"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom experiments.cli.main import run\nsys.exit(run())\n"
    )
    script.chmod(0o755)
    for name, text in toy_costs(step=0.05).items():
        monkeypatch.setenv(name, text)
    settings = {
        **SHORT,
        "epochs": "10",
        "blocks": "1",
        "cache": str(place.cache),
        "journal": "my journal",
    }
    process, log = begin(
        [str(script), "captioning", *(f"--{name}={text}" for name, text in settings.items())],
        place,
        folder,
    )

    def measuring() -> bool:
        assert process.poll() is None, log.read_text()
        return "cell" in statuses(place, "captioning")

    wait_for(measuring, 120)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT, log.read_text()
    line = log.read_text().splitlines()[-1]
    assert line.startswith(
        "evenhand: stopped by SIGINT; finished cells are kept. Continue with: cd "
    )
    assert set(statuses(place, "captioning").values()) <= {"KILLED", "FINISHED"}
    environment = {
        name: text for name, text in place.environment.items() if name != "MLFLOW_TRACKING_URI"
    }
    pasted = ["sh", "-c", line.partition("Continue with: ")[2]]
    again = subprocess.run(
        pasted, cwd="/", env=environment, capture_output=True, text=True, timeout=180
    )
    assert again.returncode == 3, again.stdout + again.stderr  # one block: no verdict
    assert statuses(place, "captioning")["campaign"] == "FINISHED"


def half_imported(process: psutil.Process) -> bool:
    """Whether this is a campaign's process that has done half of its imports; one that has ended meanwhile is none."""
    try:
        return "experiments" in process.cmdline() and process.cpu_times().user > 0.3
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("reached", ["launch", "campaign"])
def test_interrupted_mlflow_run_leaves_no_open_run(place: Place, reached: str) -> None:
    """launch: our process is at its imports, below the runner's run; campaign: our run has just been made, and has no cell yet.

    Before it starts our process, MLflow itself leaves its run open: that is not ours to end.
    """
    settings = {**SHORT, "cache": str(place.cache), "journal": str(place.journal)}
    parameters = [part for name, text in settings.items() for part in ("-P", f"{name}={text}")]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "run",
        str(ROOT),
        "-e",
        "captioning",
        "--env-manager",
        "local",
        *parameters,
    ]
    store = Store(place.uri)
    store.experiment_id(
        "captioning"
    )  # made beforehand, so that looking for it does not race with making it
    process = place.begin(*command)

    def there() -> bool:
        assert process.poll() is None, process.said
        if reached == "campaign":
            return bool(list(store.runs("captioning")))
        below = psutil.Process(process.pid).children(recursive=True)
        return any(map(half_imported, below))

    wait_for(there, 120)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(120) != 0
    found = statuses(place, "Default", "captioning")
    assert found
    assert "RUNNING" not in found.values(), (found, process.said)
    assert ("campaign" in found) == (reached == "campaign")
