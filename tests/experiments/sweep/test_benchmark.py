"""Throughput that TPE finds in a tenth of the cells of a grid that was measured once."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import optuna

from experiments.studies import grid
from experiments.sweep import search, space

# Every cell of the grid, one block, once more with --threads 2:
# python -m experiments grid --threads 1 --blocks 1 --phases train --seconds 0.3
#   --models resnet18,mobilenet_v2 --image_sizes 32,40,48
#   --batch_sizes 2,4,6,8,12,16,20,24,28,32,40,48,56,64,80,96
RESPONSE = Path(__file__).with_name("grid_response.csv")
SEARCH = (
    "framework=pytorch|tensorflow,model=resnet18|mobilenet_v2,image_size=32..48:8,threads=1..2,"
    "batch_size=2..96:log"
)
SEEDS, ENOUGH, SHARE = 20, 18, 0.95


FACTORS = ("framework", "model", "image_size", "threads")


def load_response() -> dict[tuple[str, ...], dict[int, float]]:
    """Return examples per second by batch size, for each combination of the other factors."""
    response: dict[tuple[str, ...], dict[int, float]] = {}
    with RESPONSE.open(newline="") as file:
        for row in csv.DictReader(file):
            rates = response.setdefault(tuple(row[name] for name in FACTORS), {})
            rates[int(row["batch_size"])] = float(row["examples_per_second"])
    return response


def test_tpe_finds_the_best_throughput_in_a_tenth_of_the_cells() -> None:
    response = load_response()
    best = max(rate for rates in response.values() for rate in rates.values())
    count = sum(map(len, response.values())) // 10
    assert count >= 30
    dimensions = space.parse(SEARCH, grid.Settings)

    def best_rate(seed: int) -> float:
        sampler = search.SAMPLERS["tpe"](dimensions, seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for _ in range(count):
            trial = study.ask()
            values = search.suggest(trial, dimensions)
            rates = response[tuple(str(values[name]) for name in FACTORS)]
            distance = {size: abs(math.log(size / int(values["batch_size"]))) for size in rates}
            nearest = min(rates, key=distance.__getitem__)
            study.tell(trial, rates[nearest])
        return float(study.best_value)

    shares = sorted(best_rate(seed) / best for seed in range(SEEDS))
    print(f"shares of the best after {count} trials:", *(f"{share:.3f}" for share in shares))
    assert sum(share >= SHARE for share in shares) >= ENOUGH, shares
