"""Campaigns of one block, which end in seconds, on a machine that need not be idle."""

import json
import sys
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from experiments.cli.codes import NO_VERDICT
from tests.conftest import Place
from tracking.reader import stored_run

SMALL = {
    "threads": "1",
    "figures": "false",
    "blocks": "1",
    "others_limit_percent": "100",
    "sensor_seconds": "0.1",
}


def required(study: str) -> dict[str, str]:
    """Return the settings without which an experiment has nothing to measure."""
    return {"level": '["a=true", "b=false"]'} if study == "race" else {}


def command(place: Place, study: str, **options: str) -> list[str]:
    settings = {"cache": str(place.cache), "journal": str(place.journal), **SMALL, **options}
    flags = (f"--{name}={text}" for name, text in settings.items())
    return [sys.executable, "-m", "experiments", study, *flags]


def run(place: Place, study: str, **options: str) -> str:
    """Run a campaign whose cells all end well; return its output."""
    done = place.call(*command(place, study, **options))
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    return done.stdout


def measure(place: Place, code: int = NO_VERDICT, **options: str) -> str:
    """Run captioning with the quick settings and these to an exit code; return its output."""
    done = place.run(**options)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def comparison(place: Place) -> dict[str, Any]:
    """Return the newest result, with its rows by metric."""
    reports = place.journal.glob("*/report/comparison.json")
    newest = max(reports, key=lambda path: path.stat().st_mtime)
    result: dict[str, Any] = json.loads(newest.read_text())
    return {**result, "rows": {row["metric"]: row for row in result["rows"]}}


def cells(place: Place) -> list[Run]:
    """Return the runs of cells, in the order of their start, with all their metrics."""
    client = MlflowClient(place.uri)
    order = ["attributes.start_time"]
    runs = list(client.search_runs(["1"], "tags.kind = 'cell'", order_by=order))
    for run in runs:
        run.data.metrics.update(stored_run(run).metrics)  # those that MLflow does not show, too
    return runs


def report(place: Place) -> str:
    return next(place.journal.glob("*/report/report.md")).read_text()
