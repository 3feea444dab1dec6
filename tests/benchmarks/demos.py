"""Seconds and verdicts of README's first command: `python -m tests.benchmarks.demos 10 bursts`.

Runs it that many times in the current checkout; `bursts`: beside a process that works for two
seconds and rests for six in the mean.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from tests import neighbours

COMMAND = "mlflow run . -e captioning --env-manager local"
PRIMARY = ("train/examples_per_second", "inference/latency_seconds_p50")


def main(count: int, beside: str = "") -> None:
    with neighbours.busy(1, neighbours.BURSTS) if beside == "bursts" else nullcontext():
        for number in range(1, count + 1):
            began = time.monotonic()
            subprocess.run(COMMAND.split(), check=True, capture_output=True)
            seconds = time.monotonic() - began
            print(f"| {number} | {seconds:.0f} s | {' | '.join(verdicts(newest()))} |", flush=True)


def newest() -> Path:
    reports = Path(".evenhand/journal").glob("*/report/comparison.json")
    return max(reports, key=lambda path: path.stat().st_mtime)


def verdicts(report: Path) -> list[str]:
    """The primary rows as `estimate (interval) verdict`."""
    rows = {row["metric"]: row for row in json.loads(report.read_bytes())["rows"]}
    return [
        f"{row['estimate']:.2f} ({row['ci_low']:.2f}–{row['ci_high']:.2f}) {row['verdict']}"
        for row in (rows[metric] for metric in PRIMARY)
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
