"""Races of small commands, on a machine that need not be idle."""

from __future__ import annotations

import sys

from mlflow import MlflowClient
from mlflow.entities import Run

from experiments.cli.codes import NO_VERDICT
from tests.conftest import Place
from tests.experiments.small_campaigns import SMALL, comparison
from tracking.technical import unpack_tags

__all__ = ["by_level", "cells", "command", "comparison", "run", "tags"]
QUICK = {
    **{name: text for name, text in SMALL.items() if name != "threads"},
    "cool_down_seconds": "0",
    "cold": "true",
    "device": "cpu",
}


def command(place: Place, *levels: str, **options: str) -> list[str]:
    settings = {"cache": str(place.cache), "journal": str(place.journal), **QUICK, **options}
    texts = [f"--level={level}" for level in levels]
    flags = [f"--{name}={text}" for name, text in settings.items()]
    return [sys.executable, "-m", "experiments", "race", *texts, *flags]


def run(place: Place, *levels: str, code: int = NO_VERDICT, **options: str) -> str:
    """Run a race that ends with an exit code; return its output. One block has no verdict."""
    done = place.call(*command(place, *levels, **options))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def cells(place: Place, kind: str = "cell") -> list[Run]:
    """Return the runs of a race's cells, in the order of their start."""
    client = MlflowClient(place.uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(
        client.search_runs(ids, f"tags.kind = '{kind}'", order_by=["attributes.start_time"])
    )


def by_level(place: Place) -> dict[str, Run]:
    """Return the last cell of each treatment."""
    return {run.data.tags["treatment"]: run for run in cells(place)}


def tags(run: Run) -> dict[str, str]:
    return unpack_tags(run.data.tags)
