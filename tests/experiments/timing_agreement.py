"""Agreement of steps that run freely with those timed one by one.

`python -m tests.experiments.timing_agreement CAMPAIGN`, in the folder where a campaign with
`timing=both` ran: each cell has both, in turns. Prints the geometric mean over the cells of the
ratio of the two throughputs, with its 95 % t interval. CAMPAIGN: its run id.
"""

import sys
from pathlib import Path

import numpy as np
from scipy import stats

from experiments.run.journal_runs import stored

FREELY, STEPPED = "train/examples_per_second", "train/stepped_examples_per_second"


def agreement(campaign: Path) -> dict[str, list[float]]:
    """Return by treatment the throughput of windows over that of steps, of each cell."""
    ratios: dict[str, list[float]] = {}
    for run in stored(campaign):
        if FREELY in run.metrics and STEPPED in run.metrics:
            ratio = run.metrics[FREELY] / run.metrics[STEPPED]
            ratios.setdefault(run.tags["treatment"], []).append(ratio)
    return ratios


if __name__ == "__main__":
    for name, of_cells in sorted(agreement(Path(".evenhand/journal", sys.argv[1])).items()):
        logs = np.log(of_cells)
        mean, error = logs.mean(), stats.sem(logs)
        low, high = np.exp(stats.t.interval(0.95, len(logs) - 1, mean, error))
        print(f"{name}: {np.exp(mean):.3f} ({low:.3f}–{high:.3f}), {len(logs)} cells")
