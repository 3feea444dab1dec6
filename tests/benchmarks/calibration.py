"""Error rates of simulated campaigns, without a cell of this machine; prints Markdown.

`python -m tests.benchmarks.calibration --campaigns 100`
"""

from __future__ import annotations

import argparse
import sys

from experiments.calibration import simulation


def main(words: list[str] | None = None) -> int:
    """Print the rates. Return 1 if a promise does not hold."""
    names = [noise.name for noise in simulation.SCENARIOS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.calibration", description=__doc__
    )
    parser.add_argument("--campaigns", type=int, default=300, help="campaigns of each scenario")
    parser.add_argument("--scenario", choices=names, action="append", help="only this one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    args = parser.parse_args(words)
    if args.campaigns < 1 or args.workers < 1:
        parser.error("campaigns and workers must be at least 1")
    chosen = args.scenario or names
    rates = simulation.calibrate(
        [noise for noise in simulation.SCENARIOS if noise.name in chosen],
        campaigns=args.campaigns,
        seed=args.seed,
        workers=args.workers,
    )
    print(simulation.as_markdown(rates))
    return 0 if all(claim.holds for claim in simulation.meets(rates)) else 1


if __name__ == "__main__":
    sys.exit(main())
