"""Throughput that TPE finds in a tenth of the cells of a grid that was measured once."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import optuna

from experiments.studies import grid
from experiments.sweep import search, space

# Every cell of the grid, one block:
# python -m experiments grid --threads 1 --blocks 1 --phases train --seconds 0.3 --models resnet18,mobilenet_v2
#   --image_sizes 32,40,48 --batch_sizes 2,4,6,8,12,16,20,24,28,32,40,48,56,64,80,96    and the same with --threads 2
RESPONSE = Path(__file__).with_name("grid_response.csv")
SEARCH = "framework=pytorch|tensorflow,model=resnet18|mobilenet_v2,image_size=32..48:8,threads=1..2,batch_size=2..96:log"
SEEDS, ENOUGH, SHARE = 20, 18, 0.95


def measured() -> dict[tuple[str, str, int, int], dict[int, float]]:
    """framework, model, image_size, threads → batch size → examples per second."""
    response: dict[tuple[str, str, int, int], dict[int, float]] = {}
    with RESPONSE.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["framework"], row["model"], int(row["image_size"]), int(row["threads"]))
            response.setdefault(key, {})[int(row["batch_size"])] = float(row["examples_per_second"])
    return response


def test_tpe_finds_the_best_throughput_in_a_tenth_of_the_cells() -> None:
    cells = measured()
    best = max(value for sizes in cells.values() for value in sizes.values())
    tenth = sum(map(len, cells.values())) // 10
    assert tenth >= 30
    dimensions = space.parse(SEARCH, grid.Settings)

    def best_found(seed: int) -> float:
        study = optuna.create_study(
            direction="maximize", sampler=search.SAMPLERS["tpe"](dimensions, seed)
        )
        for _ in range(tenth):
            trial = study.ask()
            values = search.suggest(trial, dimensions)
            sizes = cells[
                tuple(values[name] for name in ("framework", "model", "image_size", "threads"))
            ]  # type: ignore[index]
            size = min(
                sizes,
                key=lambda measured_size: abs(math.log(measured_size / int(values["batch_size"]))),
            )  # the nearest that was measured
            study.tell(trial, sizes[size])
        return float(study.best_value)

    shares = [best_found(seed) / best for seed in range(SEEDS)]
    text = ", ".join(f"{share:.3f}" for share in sorted(shares))
    print(f"shares of the best after {tenth} trials: {text}")
    assert sum(share >= SHARE for share in shares) >= ENOUGH, sorted(shares)
