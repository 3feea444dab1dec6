"""The campaigns of a tracking server, the newest first: what each was, how it ended, what it found."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Sequence

from experiments.config import shell
from experiments.config.console import Table, box
from tracking import plain
from tracking.records import RunKind, StoredRun
from tracking.store import Store

ANSWER_CHARACTERS = 160


def campaigns(experiments: Sequence[str], limit: int) -> list[StoredRun]:
    """Return campaign runs, the newest first, at most `limit`.

    Raises:
        WrongCall: for an experiment that the server does not have.
    """
    store = Store(to_read=True)
    store.check()
    if experiments:
        store.experiment_ids(experiments)
    found = store.runs(
        experiments or list(store.experiment_names().values()), f"tags.kind = '{RunKind.CAMPAIGN}'"
    )
    return sorted(found, key=lambda run: run.start_ms, reverse=True)[:limit]


def as_table(runs: Iterable[StoredRun]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("began", "campaign", "state", "blocks", "answer", "run id"):
        table.add_column(name, overflow="fold", no_wrap=name in ("began", "run id"))
    for run in runs:
        table.add_row(
            *map(
                plain.line,
                (_began(run), run.name, _state(run), _blocks(run), _answer(run), run.run_id),
            )
        )
    return table


def next_step(runs: Iterable[StoredRun]) -> str:
    """How the newest of them is judged again."""
    newest = next(iter(runs))
    return f"judge one again: {shell.command('compare', '--experiment', newest.run_id)}"


def _began(run: StoredRun) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start_ms / 1_000))


def _state(run: StoredRun) -> str:
    return (
        "running"
        if run.status == "RUNNING"
        else run.tags.get("outcome", run.status.lower()).replace("_", " ")
    )


def _blocks(run: StoredRun) -> str:
    first = run.params.get("blocks", "")
    return (
        f"{first} to {run.params['max_blocks']}" if run.params.get("until") == "settled" else first
    )


def _answer(run: StoredRun) -> str:
    return textwrap.shorten(run.tags.get("answer", ""), ANSWER_CHARACTERS, placeholder=" …")
