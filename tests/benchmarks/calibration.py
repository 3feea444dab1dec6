"""`python -m tests.benchmarks.calibration`: the simulated campaigns alone, without a cell of this machine; prints Markdown.

With --pairing: real campaigns of `calibrate` on this machine, cells in turns against cells one after the other.
"""

from __future__ import annotations

import argparse
import sys

from experiments.calibration import simulation
from tests.benchmarks import pairing, stopping


def main(words: list[str] | None = None) -> int:
    """The rates on standard output; 1 where a promise does not hold."""
    names = [noise.name for noise in simulation.SCENARIOS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.calibration", description=__doc__
    )
    parser.add_argument(
        "--campaigns",
        type=int,
        default=300,
        help="campaigns a scenario; one takes a third of a second",
    )
    parser.add_argument(
        "--scenario",
        choices=names,
        action="append",
        help="only this one; may be given several times",
    )
    parser.add_argument(
        "--until-settled",
        action="store_true",
        help="campaigns that stop when they know; half a second each",
    )
    parser.add_argument(
        "--pairing",
        action="store_true",
        help="cells in turns against one by one: real cells, minutes each",
    )
    parser.add_argument(
        "--neighbour",
        action="store_true",
        help="with --pairing: a program burns their CPU at random",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        help="with --pairing, after --: settings of calibrate, as --frameworks=pytorch",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    asked = parser.parse_args(words)
    if asked.campaigns < 1 or asked.workers < 1:
        parser.error("campaigns and workers must be at least 1")
    if (asked.settings or asked.neighbour) and not asked.pairing:
        parser.error("settings and --neighbour are for --pairing")
    if asked.pairing:
        return _pairing(asked)
    if asked.until_settled:
        stops = stopping.calibrate(campaigns=asked.campaigns, seed=asked.seed)
        print(stopping.as_markdown(stops))
        return 0 if all(claim.holds for claim in stopping.meets(stops)) else 1
    chosen = [noise for noise in simulation.SCENARIOS if noise.name in (asked.scenario or names)]
    rates = simulation.calibrate(
        chosen, campaigns=asked.campaigns, seed=asked.seed, workers=asked.workers
    )
    print(simulation.as_markdown(rates))
    return 0 if all(claim.holds for claim in simulation.meets(rates)) else 1


def _pairing(asked: argparse.Namespace) -> int:
    def progress(text: str) -> None:
        print(text, file=sys.stderr)

    found = pairing.calibrate(
        campaigns=asked.campaigns,
        seed=asked.seed,
        neighbour=asked.neighbour,
        given=asked.settings,
        progress=progress,
    )
    print(pairing.as_markdown(found, neighbour=asked.neighbour))
    return 0 if all(claim.holds for claim in pairing.meets(found, neighbour=asked.neighbour)) else 1


if __name__ == "__main__":
    sys.exit(main())
