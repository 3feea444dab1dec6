"""Ten campaigns log to one server at once, against ten that log the same with MLflow's own client.

pytest -n 0 -s -m slow tests/load
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psycopg2
import pytest

from tests.conftest import ROOT, Server
from tests.load.writer import BATCHES, POINTS, RUNS
from tests.tracking.postgres import Postgres
from tracking.store import Store

CAMPAIGNS, ROUNDS = 10, 3


def together(how: str, server: Server, folder: Path, number: int) -> dict[str, np.ndarray]:
    """Return the costs of ten writers at once."""
    command = [sys.executable, "-m", "tests.load.writer", how, server.uri, str(folder)]
    started = [
        subprocess.Popen([*command, f"{number}-{i}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for i in range(CAMPAIGNS)
    ]
    costs = [json.loads(writer.communicate(timeout=600)[0].splitlines()[-1]) for writer in started]
    return {key: np.hstack([cost[key] for cost in costs]) for key in costs[0]}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_ten_campaigns_log_as_fast_as_bare_clients(postgres: Postgres, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    database = postgres.database("load")
    server = Server(tmp_path / "server", database, workers=2)
    try:
        Store(server.uri).experiment_id("load")
        ratios: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            order = ("ours", "bare") if number % 2 else ("bare", "ours")
            costs = {how: together(how, server, tmp_path, number) for how in order}
            for name, figure in FIGURES.items():
                ratio = figure(costs["ours"]) / figure(costs["bare"])
                ratios.setdefault(name, []).append(ratio)
    finally:
        server.kill()
    print()
    for name, values in ratios.items():
        print(f"| {name} | " + ", ".join(f"{value:.3g}" for value in values) + " |")
    runs = CAMPAIGNS * ROUNDS * RUNS
    assert counted(database) == dict.fromkeys(order, (runs, runs * BATCHES * POINTS)), (
        "none lost, none twice"
    )
    assert max(ratios["a writer's wait for one batch, p95"]) < 0.1
    assert max(ratios["until everything is on the server"]) < 1.1


FIGURES = {
    "a writer's wait for one batch, p95": lambda costs: float(np.quantile(costs["waits"], 0.95)),
    "a writer's longest wait": lambda costs: float(np.max(costs["waits"])),
    "one call of log_batch, p95": lambda costs: float(np.quantile(costs["calls"], 0.95)),
    "calls of log_batch": lambda costs: float(len(costs["calls"])),
    "until everything is written down": lambda costs: float(np.max(costs["written"])),
    "until everything is on the server": lambda costs: float(np.max(costs["took"])),
    "memory of a writer, peak": lambda costs: float(np.max(costs["memory"])),
}


def counted(database: str) -> dict[str, tuple[int, int]]:
    """Return the number of cell runs and of their points, by writer."""
    query = """SELECT split_part(r.name, '-', 1), count(DISTINCT r.run_uuid), count(*)
               FROM runs r JOIN metrics m USING (run_uuid)
               WHERE r.name ~ '^(ours|bare)-[0-9]+-[0-9]+-[0-9]+$' AND r.status = 'FINISHED'
               GROUP BY 1"""
    with (
        psycopg2.connect(database.replace("postgresql+psycopg2://", "postgresql://")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(query)
        return {how: (runs, points) for how, runs, points in cursor.fetchall()}
