"""Checks of a framework: `python -m models.testing NAME FOLDER [MODEL …] [--device cuda]`.

Also writes the arrays of the parity gate for these models, unless only some checks are run.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from models.frameworks import open_framework
from models.testing.framework_checks import CHECKS, SOME, cross_checked, outcome

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=SOME)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checks", default="", help="names of checks, with commas; by default all")
    options = parser.parse_args()
    adapter = open_framework(
        options.framework, device=options.device, threads=1, precision="float64", seed=0
    )
    names = options.checks.split(",") if options.checks else CHECKS
    outcomes = {name: outcome(CHECKS[name], adapter) for name in names}
    (options.folder / "outcomes.json").write_text(json.dumps(outcomes))
    if not options.checks:
        np.savez(options.folder / "cross.npz", **cross_checked(adapter, options.models))
