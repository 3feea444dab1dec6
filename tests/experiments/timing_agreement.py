"""Agreement of steps that run freely with those timed one by one.

`python -m tests.experiments.timing_agreement CAMPAIGN`, in the folder where a campaign with
`timing=both` ran: each cell has both, in turns. Prints the geometric mean over the cells of the
ratio of the two throughputs, with its 95 % t interval. CAMPAIGN: its run id.
"""

import sys
from pathlib import Path

import numpy as np

from experiments.comparison.statistics.estimates import Estimate, exponential, log_ratios, mean
from experiments.run.journal_runs import stored

FREELY, STEPPED = "train/examples_per_second", "train/stepped_examples_per_second"


def agreement(campaign: Path) -> dict[str, tuple[Estimate, int]]:
    """Return by treatment the throughput of windows over that of steps, and the number of cells."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for run in stored(campaign):
        if FREELY in run.metrics and STEPPED in run.metrics:
            values = (run.metrics[STEPPED], run.metrics[FREELY])
            pairs.setdefault(run.tags["treatment"], []).append(values)
    return {
        name: (exponential(mean(log_ratios(*np.transpose(values)))), len(values))
        for name, values in sorted(pairs.items())
    }


if __name__ == "__main__":
    for name, (ratio, cells) in agreement(Path(".evenhand/journal", sys.argv[1])).items():
        print(f"{name}: {ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f}), {cells} cells")
