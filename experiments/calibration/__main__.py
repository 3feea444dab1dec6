"""`python -m experiments.calibration`: the simulated campaigns alone, without a cell of this machine; prints Markdown."""

from __future__ import annotations

import argparse
import sys

from experiments.calibration import simulation, stopping


def main(words: list[str] | None = None) -> int:
    """The rates on standard output; 1 where a promise does not hold."""
    names = [noise.name for noise in simulation.SCENARIOS]
    parser = argparse.ArgumentParser(prog="python -m experiments.calibration", description=__doc__)
    parser.add_argument("--campaigns", type=int, default=300, help="campaigns a scenario; one takes a third of a second")
    parser.add_argument("--scenario", choices=names, action="append", help="only this one; may be given several times")
    parser.add_argument("--until-settled", action="store_true", help="campaigns that stop when they know; half a second each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    asked = parser.parse_args(words)
    if asked.campaigns < 1 or asked.workers < 1:
        parser.error("campaigns and workers must be at least 1")
    if asked.until_settled:
        stops = stopping.calibrate(campaigns=asked.campaigns, seed=asked.seed)
        print(stopping.as_markdown(stops))
        return 0 if all(claim.holds for claim in stopping.meets(stops)) else 1
    chosen = [noise for noise in simulation.SCENARIOS if noise.name in (asked.scenario or names)]
    rates = simulation.calibrate(chosen, campaigns=asked.campaigns, seed=asked.seed, workers=asked.workers)
    print(simulation.as_markdown(rates))
    return 0 if all(claim.holds for claim in simulation.meets(rates)) else 1


if __name__ == "__main__":
    sys.exit(main())
