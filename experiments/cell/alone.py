"""One cell without a campaign and without MLflow: `python -m experiments.cell.alone SPEC.json`.

The file has a `CellSpec` as JSON; relative paths in it are relative to its folder. The records of the
run go to standard output, as the JSON lines of a journal.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.config.settings import OTHERS_LIMIT_PERCENT
from experiments.contract import CellSpec
from experiments.run.cell_process import CellProcess
from tracking.records import Record, RunOutcome, Tags, to_line

SENSOR_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class AloneResult:
    """How a cell ended, and the latest value of each of its metrics.

    phase: in which it ran out of memory, or empty. disturbed: what others used of the machine, if that was
    more than the limit.
    """

    outcome: str
    reason: str
    phase: str
    metrics: Mapping[str, float]
    disturbed: str


def run(
    spec: CellSpec,
    write: Callable[[Record], None],
    *,
    sensor_seconds: float = SENSOR_SECONDS,
    others_limit_percent: float = OTHERS_LIMIT_PERCENT,
) -> AloneResult:
    """Run a cell to its end as a campaign does, and hand its records on.

    Raises:
        OSError: if no process can be started.
    """
    cell = CellProcess(spec, write)
    closed = cell.run(sensor_seconds)
    phase = ""
    if closed.outcome == RunOutcome.OUT_OF_MEMORY:
        phase = next((name for name in spec.settings.get("phases", ()) if name not in cell.timed), cell.phase)
        write(Tags(spec.run, {"phase": phase}))
    disturbed = cell.background.log(spec.run, others_limit_percent, write)
    write(closed)
    metrics = {**cell.latest, **cell.background.metrics}
    return AloneResult(str(closed.outcome), closed.reason, phase, metrics, disturbed)


def read_spec(path: Path) -> CellSpec:
    """Return the cell that a file describes."""
    spec = CellSpec.of(json.loads(path.read_text(encoding="utf-8")))
    folder = path.resolve().parent
    return dataclasses.replace(spec, journal=str(folder / spec.journal), checkpoint=str(folder / spec.checkpoint))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--sensor_seconds", type=float, default=SENSOR_SECONDS)
    options = parser.parse_args()
    result = run(
        read_spec(options.spec),
        lambda record: print(to_line(record), flush=True),
        sensor_seconds=options.sensor_seconds,
    )
    if result.outcome != RunOutcome.OK:
        print(f"{result.outcome}: {result.reason}", file=sys.stderr)
    return 0 if result.outcome == RunOutcome.OK else 1


if __name__ == "__main__":
    sys.exit(main())
