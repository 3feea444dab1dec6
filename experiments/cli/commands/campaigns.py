"""`evenhand campaigns`: the campaigns of a tracking server."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.config import shell
from experiments.config.settings import setting
from tracking import plain

if TYPE_CHECKING:
    from experiments.config.console import Table
    from tracking.records import StoredRun

ANSWER_CHARACTERS = 160


@dataclass(frozen=True)
class Campaigns:
    """Selection of campaigns."""

    experiment: tuple[str, ...] = setting(
        (), "experiments by name, several with commas; none: all", group="runs"
    )
    limit: int = setting(
        20, "most campaigns, newest first", minimum=1, maximum=10_000, group="output"
    )


def run(settings: Campaigns, display: Display) -> int:
    from experiments import studies
    from tracking.records import RunKind
    from tracking.store import Store

    store = Store(to_read=True)
    store.check()
    if settings.experiment:
        store.experiment_ids(settings.experiment)  # refuses those that do not exist
    names = settings.experiment or list(store.experiment_names().values())
    runs = store.runs(names, f"tags.kind = '{RunKind.CAMPAIGN}'")
    newest = sorted(runs, key=lambda run: run.start_ms, reverse=True)[: settings.limit]
    if newest:
        display.console.print(_table(newest))
        study = newest[0].tags.get("mlflow.source.name", "").removeprefix("evenhand ")
        factor = studies.load(study).factor if study in studies.available() else "framework"
        words = [] if factor == "framework" else ["--factor", factor]
        again = shell.command("compare", "--experiment", newest[0].run_id, *words)
        display.say(f"compare its runs again: {again}")
    else:
        display.say("no campaigns yet")
    return DONE


def _table(runs: Iterable[StoredRun]) -> Table:
    from experiments.config.console import Table, box

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("began", "campaign", "state", "blocks", "answer", "run id"):
        table.add_column(name, overflow="fold", no_wrap=name in ("began", "run id"))
    for run in runs:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start_ms / 1_000))
        state = run.tags.get("outcome", run.status.lower()).replace("_", " ")
        if run.status == "RUNNING":
            state = "running"
        blocks = run.params.get("blocks", "")
        if run.params.get("until") == "settled":
            blocks += f" to {run.params['max_blocks']}"
        answer = textwrap.shorten(run.tags.get("answer", ""), ANSWER_CHARACTERS, placeholder=" …")
        cells = (began, run.name, state, blocks, answer, run.run_id)
        table.add_row(*map(plain.line, cells))
    return table


COMMAND = Command(
    "List the campaigns of a tracking server, the newest first, with their answers", Campaigns, run
)
