"""Between a cell and its workers where these may be started again: torchrun, which starts them and sees them end."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from experiments.cell.lifetime import die_with_parent
from models import frameworks


def main() -> int:
    """Told on standard input where the file lies that tells the workers all; standard output is theirs."""
    die_with_parent(signal.SIGKILL)
    path = Path(json.loads(sys.stdin.readline())["told"])
    spec = json.loads(path.read_text(encoding="utf-8"))["spec"]
    settings = spec["settings"]
    command = [sys.executable, "-P", "-m", "experiments.workloads.distributed.rank", str(path)]
    with frameworks.lean_import(spec["framework"]):
        launch = frameworks.elastic(spec["framework"]).launch
    why = launch(command, settings["worker_count"], settings["max_restarts"], path.parent / "torchrun", spec["run"])
    if why:
        print(f"\n\n{why}", file=sys.stderr)  # the last words of a log are told
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
