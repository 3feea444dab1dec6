"""`python -m experiments`: the same as the console script `evenhand`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # `-m` searches the working folder first, where a user's `models` may lie
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from experiments.cli.main import run

    sys.exit(run())
