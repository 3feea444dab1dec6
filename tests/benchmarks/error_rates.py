"""Error rates of simulated reports of 12 blocks: `python -m tests.benchmarks.error_rates`.

Prints the table of docs/comparison.md, in percent; the exit code is 1 if the 95 % Monte-Carlo
interval of a rate does not reach its limit. `tests/benchmarks/test_verdict_rule.py` proves that
simulated reports are those of `compare`, and has the rates of other noises.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from statsmodels.stats.proportion import proportion_confint

from tests.benchmarks import simulated_campaigns, simulated_reports
from tests.benchmarks.simulated_reports import MARGIN

BLOCKS, OUTCOMES, SPREAD = 12, (1, 5, 12), 0.03 * math.sqrt(2)
# Rate -> least and most.
LIMITS = {
    "reports with a false difference": (0.0, 0.06),
    "false difference of a primary metric": (0.0, 0.06),
    "rows wrongly equivalent": (0.0, 0.05),
    "rows wrongly beyond the margin": (0.0, 0.025),
    "intervals that contain the truth": (0.93, 0.97),
    "5 % shown, as the primary metric": (0.8, 1.0),
}


def shares(outcomes: int, reports: int) -> dict[str, np.ndarray]:
    """Return the share of each report's rows that a rate counts, independent rows."""
    rng = np.random.default_rng([outcomes, 5])
    noise = SPREAD * rng.standard_normal((reports, outcomes, BLOCKS))
    null, edge = (simulated_reports.judge(noise + shift) for shift in (0.0, MARGIN))
    primary, shown = (
        simulated_campaigns.judge(noise + shift).different for shift in (0.0, math.log(1.05))
    )
    values = (null.different.any(axis=-1), primary, edge.equivalent, edge.beyond, null.covers)
    rows = [np.asarray(value, float).reshape(reports, -1).mean(axis=1) for value in values]
    return dict(zip(LIMITS, [*rows, np.asarray(shown, float)], strict=True))


def keeps(rate: str, values: np.ndarray) -> bool:
    """Return whether the Wilson interval of a mean of shares, one a report, reaches its limits."""
    mean, spread = float(values.mean()), float(values.var())
    count = len(values) * mean * (1 - mean) / spread if spread else len(values)
    low, high = proportion_confint(mean * count, count, method="wilson")
    least, most = LIMITS[rate]
    return bool(high >= least and low <= most)


def main(reports: int = 2_000) -> int:
    by_count = [shares(outcomes, reports) for outcomes in OUTCOMES]
    print("| rate | limit | 1 metric | 5 unrelated | 12 unrelated |\n|---|--:|--:|--:|--:|")
    for rate, (least, most) in LIMITS.items():
        cells = " | ".join(f"{100 * values[rate].mean():.1f}" for values in by_count)
        print(f"| {rate} | {100 * least:g}–{100 * most:g} | {cells} |")
    return int(not all(keeps(*item) for values in by_count for item in values.items()))


if __name__ == "__main__":
    sys.exit(main())
