"""Error rates of simulated campaigns, without a cell of this machine; prints Markdown.

`python -m tests.benchmarks.calibration --campaigns 100`; with `--until-settled`, of campaigns that
stop when they are settled. With `--pairing`, real campaigns of `calibrate` on this machine: cells
in turns against cells one after the other.
"""

from __future__ import annotations

import argparse
import sys

from experiments.calibration import simulation
from tests.benchmarks import pairing, stopping


def main(words: list[str] | None = None) -> int:
    """Print the rates. Return 1 if a promise does not hold."""
    names = [noise.name for noise in simulation.SCENARIOS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.calibration", description=__doc__
    )
    parser.add_argument("--campaigns", type=int, default=300, help="campaigns of each scenario")
    parser.add_argument("--scenario", choices=names, action="append", help="only this one")
    parser.add_argument(
        "--until-settled", action="store_true", help="campaigns that stop when they are settled"
    )
    parser.add_argument(
        "--pairing", action="store_true", help="cells in turns and one by one: minutes a campaign"
    )
    parser.add_argument(
        "--neighbour", action="store_true", help="with --pairing: a program burns their CPU"
    )
    parser.add_argument(
        "settings", nargs="*", help="with --pairing, after --: settings of calibrate"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    args = parser.parse_args(words)
    if args.campaigns < 1 or args.workers < 1:
        parser.error("campaigns and workers must be at least 1")
    if (args.settings or args.neighbour) and not args.pairing:
        parser.error("settings and --neighbour are for --pairing")
    if args.pairing:
        rows = pairing.calibrate(
            campaigns=args.campaigns,
            seed=args.seed,
            neighbour=args.neighbour,
            settings=args.settings,
            progress=lambda text: print(text, file=sys.stderr),
        )
        print(pairing.as_markdown(rows, neighbour=args.neighbour))
        claims = pairing.meets(rows, neighbour=args.neighbour)
        return 0 if all(claim.holds for claim in claims) else 1
    if args.until_settled:
        stops = stopping.calibrate(campaigns=args.campaigns, seed=args.seed)
        print(stopping.as_markdown(stops))
        return 0 if all(claim.holds for claim in stopping.meets(stops)) else 1
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
