"""Whether steps that run freely are as fast as those timed one by one: `python -m tests.experiments.timing_agreement CAMPAIGN`.

Of a campaign with `timing=both`, from its journal in the folder where it ran: each cell has both, in turns. Geometric mean over
the cells of the ratio of the two throughputs, with its 95 % t interval. CAMPAIGN: its run id.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from experiments.comparison.statistics.estimates import Estimate, exponential, log_ratios, mean
from experiments.run.journal_runs import stored

FREELY, ALONE = "train/examples_per_second", "train/stepped_examples_per_second"


def agreement(campaign: Path) -> dict[str, tuple[Estimate, int]]:
    """Treatment -> throughput of windows over that of single steps, and the number of cells that have both."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run in stored(campaign):
        if FREELY in run.metrics and ALONE in run.metrics:
            found.setdefault(run.tags["treatment"], []).append(
                (run.metrics[ALONE], run.metrics[FREELY])
            )
    return {
        name: (exponential(mean(log_ratios(*np.transpose(pairs)))), len(pairs))
        for name, pairs in sorted(found.items())
    }


if __name__ == "__main__":
    for name, (ratio, cells) in agreement(Path(".evenhand/journal", sys.argv[1])).items():
        print(f"{name}: {ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f}), {cells} cells")
