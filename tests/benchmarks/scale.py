"""`python -m tests.benchmarks.scale`: what a cell costs in campaigns of growing size; prints Markdown.

SYNTHETIC campaigns: no cell runs, every value is drawn. Their records go through the real journal, to a real tracking store and
back, and into the real comparison. Costs are seconds of this machine: what holds elsewhere is how they grow with the size.
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
FRAMEWORKS = {"a": 1.0, "b": 1.05}  # made up: how long b takes
# What the sensors of a cell of a minute write: 12 series, twice a second, eight samples a record.
SERIES, SAMPLES, SAMPLES_A_RECORD = 12, 120, 8
STAGES = ("journal", "resume", "store", "fetch", "compare", "look")


@dataclass(frozen=True)
class Costs:
    """Of a campaign of so many cells: seconds a cell by stage, bytes of its journal a cell.

    look: once over the journals of as many jobs, a job each cell; it is made twice a second.
    """

    cells: int
    seconds: dict[str, float]
    journal_bytes: float


def records(cells: int, rng: np.random.Generator, samples: int = SAMPLES) -> Iterator[Record]:
    """What a campaign's journal holds of so many cells, in blocks of two. samples: of the sensors in each cell."""
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
        }
        tags |= {
            "treatment": cell.treatment,
            "block": str(cell.block),
            "order_in_block": str(cell.order_in_block),
        }
        tags |= {
            "cell": cell.key,
            "machine": "synthetic",
            "environment": "synthetic",
            "settings_hash": "synthetic",
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
                Point(one.metric, float(by), 0, began)
                for one, by in zip(KNOWN, factors, strict=True)
            ),
        )
        yield RunClosed(run, began + 60_000, RunOutcome.OK)


def costs(cells: int, *, on_store: bool, samples: int = SAMPLES, seed: int = 0) -> Costs:
    """Every stage once, in a folder and an SQLite store of its own. on_store: whether records go to a store too."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        written, found["journal"] = _timed(lambda: _write(place, cells, samples, seed))
        _, found["resume"] = _timed(lambda: cell_results(place))
        if on_store:
            from tracking.store import Store  # MLflow reads its defaults when it is imported

            store = Store(f"sqlite:///{place}/mlflow.db")
            store.experiment_id(EXPERIMENT)
            _, found["store"] = _timed(lambda: _deliver(store, place))
            _, found["fetch"] = _timed(
                lambda: sum(1 for _ in store.runs(EXPERIMENT, "tags.kind = 'cell'"))
            )
        runs = table(list(journal_runs.stored(place)))
        _, found["compare"] = _timed(lambda: judged(ComparisonSpec(), runs))
        jobs = _journals_of_jobs(place, cells)
        _, found["look"] = _timed(lambda: [journal.read(one) for one in jobs])
    return Costs(cells, {name: seconds / cells for name, seconds in found.items()}, written / cells)


def _write(folder: Path, cells: int, samples: int, seed: int) -> int:
    kept = Journal(folder)
    for record in records(cells, np.random.default_rng(seed), samples):
        kept.append(record)
    kept.close()
    return kept.size


def _deliver(store: Store, folder: Path) -> None:
    """As the uploader does, batch by batch."""
    offset = 0
    while True:
        some, after = journal.read(folder, offset)
        if after == offset:
            return
        if refused := store.apply(some, folder):
            raise SystemExit(f"the store refused {refused[0]}")
        offset = after


def _journals_of_jobs(folder: Path, count: int) -> list[Path]:
    """Journals that hold nothing new, as those of jobs at work do most of the time."""
    found = [folder / "jobs" / str(number) for number in range(count)]
    for one in found:
        one.mkdir(parents=True)
        (one / journal.RECORDS).touch()
    return found


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def growth(of: Sequence[Costs], stage: str) -> list[float]:
    """How a stage's whole cost grows from one size to the next, as the power of the size: 1 is so much a cell, 2 is quadratic."""
    told = [(one.cells, one.seconds[stage]) for one in of if stage in one.seconds]
    return [
        1 + log(after / before) / log(more / few) for (few, before), (more, after) in pairwise(told)
    ]


def as_markdown(found: Sequence[Costs]) -> str:
    """A line a size, in milliseconds a cell; then how each stage grows over the last step."""
    lines = [
        f"| cells | journal, kB a cell | {' | '.join(f'{stage}, ms a cell' for stage in STAGES)} |",
        "|---" * 8 + "|",
    ]
    for one in found:
        told = [
            f"{1_000 * one.seconds[stage]:.3f}" if stage in one.seconds else "–" for stage in STAGES
        ]
        lines.append(f"| {one.cells:,} | {one.journal_bytes / 1_000:.0f} | {' | '.join(told)} |")
    last = [f"{steps[-1]:.2f}" if (steps := growth(found, stage)) else "–" for stage in STAGES]
    return "\n".join([*lines, f"| grows as cells to the power of | 1 | {' | '.join(last)} |"])


def main(words: list[str] | None = None) -> int:
    """The table on standard output."""
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
    asked = parser.parse_args(words)
    mlflow_defaults.apply()
    try:
        sizes = [int(one) for one in asked.cells.split(",")]
    except ValueError:
        parser.error(f"--cells={asked.cells} is not a list of whole numbers; write 100,1000")
    if min(sizes) < 12:
        parser.error("a campaign has at least 12 cells here: six blocks of two")
    found = []
    for size in sizes:
        print(f"{size:,} cells", file=sys.stderr)
        found.append(
            costs(size, on_store=size <= asked.store_up_to, samples=asked.samples, seed=asked.seed)
        )
    print(as_markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
