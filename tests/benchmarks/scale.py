"""Cost of a cell in campaigns of growing size; `python -m tests.benchmarks.scale` prints Markdown.

SYNTHETIC campaigns: no cell runs, each value is drawn. Their records go through the real journal,
to a real tracking store and back, and into the real comparison. Costs are seconds of this machine:
their growth with the size holds elsewhere too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.runs.query import table
from experiments.config import settings as settings_
from experiments.metrics import KNOWN
from experiments.planning import design
from experiments.run import journal_runs
from experiments.run.journal_runs import cell_results
from experiments.studies.captioning import Settings
from tracking import journal, mlflow_defaults
from tracking.journal import Journal
from tracking.records import Metrics, Point, Record, RunClosed, RunKind, RunOpened, RunOutcome

if TYPE_CHECKING:
    from tracking.store import Store

T = TypeVar("T")
EXPERIMENT = "synthetic"
FRAMEWORKS = {"a": 1.0, "b": 1.05}
# Records of the sensors of a cell of a minute: 12 series, twice a second, eight samples a record.
SERIES, SAMPLES, SAMPLES_A_RECORD = 12, 120, 8
STAGES = ("journal", "resume", "store", "fetch", "compare", "look")


@dataclass(frozen=True)
class Costs:
    """Costs of a campaign: seconds a cell by stage, bytes of its journal a cell.

    look: once over the journals of as many jobs, a job each cell; it is made twice a second.
    """

    cells: int
    seconds: dict[str, float]
    journal_bytes: float


def records(cells: int, rng: np.random.Generator, samples: int = SAMPLES) -> Iterator[Record]:
    """Yield the records of a campaign, in blocks of two; samples: of the sensors in each cell."""
    campaign, now = uuid.UUID(bytes=rng.bytes(16)).hex, 1_760_000_000_000
    params = {name: text for name, text in settings_.as_text(Settings()).items() if text}
    yield RunOpened(
        campaign,
        now,
        EXPERIMENT,
        "synthetic",
        {"kind": RunKind.CAMPAIGN, "synthetic": "true"},
        params,
    )
    for at, cell in enumerate(design.blocks([list(FRAMEWORKS)], -(-cells // 2), rng)[:cells]):
        run, began = uuid.UUID(bytes=rng.bytes(16)).hex, now + at * 60_000
        tags = {
            "kind": RunKind.CELL,
            "synthetic": "true",
            "campaign": f"run:{campaign}",
            "framework": cell.treatment,
            "treatment": cell.treatment,
            "block": str(cell.block),
            "order_in_block": str(cell.order_in_block),
            "cell": cell.key,
            **dict.fromkeys(("machine", "environment", "settings_hash"), "synthetic"),
        }
        yield RunOpened(
            run,
            began,
            EXPERIMENT,
            f"{cell.treatment} · block {cell.block}",
            tags,
            {**params, "framework": cell.treatment},
        )
        for first in range(0, samples, SAMPLES_A_RECORD):
            seconds = range(first, min(first + SAMPLES_A_RECORD, samples))
            points = [
                Point(f"system/{name}", 50.0, second, began + 500 * second)
                for name in range(SERIES)
                for second in seconds
            ]
            yield Metrics(run, tuple(points))
        factors = FRAMEWORKS[cell.treatment] * np.exp(rng.normal(0, 0.02, len(KNOWN)))
        yield Metrics(
            run,
            tuple(
                Point(metric.metric, float(by), 0, began)
                for metric, by in zip(KNOWN, factors, strict=True)
            ),
        )
        yield RunClosed(run, began + 60_000, RunOutcome.OK)


def costs(cells: int, *, on_store: bool, samples: int = SAMPLES, seed: int = 0) -> Costs:
    """Run each stage once, in a temporary folder; on_store: records go to an SQLite store too."""
    stages: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        written, stages["journal"] = _timed(lambda: _write(place, cells, samples, seed))
        _, stages["resume"] = _timed(lambda: cell_results(place))
        if on_store:
            from tracking.store import Store  # MLflow reads its defaults when it is imported

            store = Store(f"sqlite:///{place}/mlflow.db")
            store.experiment_id(EXPERIMENT)
            _, stages["store"] = _timed(lambda: _deliver(store, place))
            _, stages["fetch"] = _timed(
                lambda: sum(1 for _ in store.runs(EXPERIMENT, "tags.kind = 'cell'"))
            )
        runs = table(list(journal_runs.stored(place)))
        _, stages["compare"] = _timed(lambda: judged(ComparisonSpec(), runs))
        jobs = _journals_of_jobs(place, cells)
        _, stages["look"] = _timed(lambda: [journal.read(job) for job in jobs])
    return Costs(
        cells, {name: seconds / cells for name, seconds in stages.items()}, written / cells
    )


def _write(folder: Path, cells: int, samples: int, seed: int) -> int:
    log = Journal(folder)
    for record in records(cells, np.random.default_rng(seed), samples):
        log.append(record)
    log.close()
    return log.size


def _deliver(store: Store, folder: Path) -> None:
    """Send records batch by batch, like the uploader."""
    offset = 0
    while True:
        some, after = journal.read(folder, offset)
        if after == offset:
            return
        if refused := store.apply(some, folder):
            raise SystemExit(f"the store refused {refused[0]}")
        offset = after


def _journals_of_jobs(folder: Path, count: int) -> list[Path]:
    """Return journals that hold nothing new, as those of running jobs do most of the time."""
    folders = [folder / "jobs" / str(number) for number in range(count)]
    for job in folders:
        job.mkdir(parents=True)
        (job / journal.RECORDS).touch()
    return folders


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def growth(of: Sequence[Costs], stage: str) -> list[float]:
    """Return the power of the size with which a stage's whole cost grows: 1 is linear."""
    costs_by_size = [(size.cells, size.seconds[stage]) for size in of if stage in size.seconds]
    return [
        1 + log(after / before) / log(more / few)
        for (few, before), (more, after) in pairwise(costs_by_size)
    ]


def as_markdown(sizes: Sequence[Costs]) -> str:
    """Return a line a size, in milliseconds a cell; then the growth over the last step."""
    lines = [
        f"| cells | journal, kB a cell | {' | '.join(f'{stage}, ms a cell' for stage in STAGES)} |",
        "|---" * 8 + "|",
    ]
    for size in sizes:
        cells = [
            f"{1_000 * size.seconds[stage]:.3f}" if stage in size.seconds else "–"
            for stage in STAGES
        ]
        lines.append(f"| {size.cells:,} | {size.journal_bytes / 1_000:.0f} | {' | '.join(cells)} |")
    last = [f"{steps[-1]:.2f}" if (steps := growth(sizes, stage)) else "–" for stage in STAGES]
    return "\n".join([*lines, f"| grows as cells to the power of | 1 | {' | '.join(last)} |"])


def main(words: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    parser.add_argument("--cells", default="100,1000,10000", help="sizes of campaigns")
    parser.add_argument(
        "--store-up-to", type=int, default=300, help="larger campaigns are not sent to a store"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=SAMPLES,
        help="of the sensors in each cell; 0 for the comparison alone",
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    mlflow_defaults.apply()
    try:
        sizes = [int(size) for size in args.cells.split(",")]
    except ValueError:
        parser.error(f"--cells={args.cells} is not a list of whole numbers; write 100,1000")
    if min(sizes) < 12:
        parser.error("a campaign has at least 12 cells here: six blocks of two")
    results = []
    for size in sizes:
        print(f"{size:,} cells", file=sys.stderr)
        results.append(
            costs(size, on_store=size <= args.store_up_to, samples=args.samples, seed=args.seed)
        )
    print(as_markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
