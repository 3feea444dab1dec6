"""Checks of a framework: `python -m models.testing NAME FOLDER [MODEL …] [--device cuda]`.

Also writes the arrays of the parity gate for these models.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from models.frameworks import lean_import, open_framework
from models.testing.framework_checks import CHECKS, SOME, cross_checked, outcome

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=SOME)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with lean_import(options.framework):  # as a cell does
        adapter = open_framework(
            options.framework, device=options.device, threads=1, precision="float64", seed=0
        )
    outcomes = {name: outcome(check, adapter) for name, check in CHECKS.items()}
    (options.folder / "outcomes.json").write_text(json.dumps(outcomes))
    np.savez(options.folder / "cross.npz", **cross_checked(adapter, options.models))
