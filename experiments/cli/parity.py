"""The parity gate asked by name: every model in every framework, a table of errors, and a run in MLflow."""

from __future__ import annotations

import math
import os
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import models
from experiments.cli.commands.parity import Parity
from experiments.config import devices, interpreters
from experiments.config import settings as settings_
from experiments.config.console import Table, box
from experiments.contract import Progress
from experiments.run import parity_cache
from experiments.run.mlflow_run import keep
from models import frameworks
from models.contract import ModelError
from models.parity import QUANTITIES, RULES, STEPS, ParityRequest, Row, Side, gate
from tracking import clock, provenance, spreadsheet
from tracking.errors import WrongCall
from tracking.records import (
    Artifact,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunKind,
    RunOpened,
    RunOutcome,
    Tags,
)
from tracking.store import Store, note, source

# What a column shows: the error of one quantity, or whether several are equal.
HEADS = {
    "parameters": ("count",),
    "forward": ("forward",),
    "loss": ("loss",),
    "gradients": ("gradient",),
    f"{STEPS} steps": ("step",),
    "statistics": ("statistics",),
    "dropped": ("place", "mask", "dropout"),
}
TITLE = "Relative L2 error in float64, the worst tensor (–: the network has none)"


@dataclass(frozen=True)
class Judged:
    """All rows, and why what has none could not be computed."""

    rows: Sequence[Row]
    failed: Sequence[str]

    @property
    def equal(self) -> bool:
        return not self.troubles

    @property
    def troubles(self) -> list[str]:
        """What is not equal, and what could not be computed, a line each."""
        return [*parity_cache.differences(self.rows), *self.failed]


def parity(settings: Parity, progress: Progress) -> tuple[Judged, str]:
    """Judges every model asked for; what was found, and the page of the run that holds it.

    Raises WrongCall for a model or framework that is not there.
    """
    wanted = tuple(models.available()) if settings.models in ((), ("all",)) else settings.models
    for name in wanted:
        models.spec(name)
    for name in settings.frameworks:
        frameworks.check(name)
        if missing := interpreters.missing(name, settings.pythons):
            raise WrongCall(missing)
    if len(settings.frameworks) < 2:
        raise WrongCall(
            f"frameworks={settings.frameworks[0]} is one side only; name the reference, then the others"
        )
    sides = [
        Side(name, python=interpreters.separate(name, settings.pythons))
        for name in settings.frameworks
    ]
    device = devices.present(settings.device)
    environment = devices.environment_on(device, os.environ)
    store = Store()
    store.check()
    began_ms = clock.now_ms()
    found: list[Row] = []
    failed: list[str] = []
    for done, model in enumerate(wanted):
        progress(f"parity · {model}", done, len(wanted))
        rules = tuple(one for name in settings.optimizer for one in RULES[name])
        asked = ParityRequest(model, rules, settings.full, settings.seed, device)
        try:
            at_once = 1 if settings.full else 2
            found += gate(asked, sides, at_once=at_once, environment=environment)
        except ModelError as error:
            failed.append(str(error))
    judged = Judged(found, failed)
    return judged, _kept(store, settings, judged, began_ms)


def table(judged: Judged) -> Table:
    """A line a model and framework: the worst error of each quantity."""
    shown = Table(box=box.SIMPLE_HEAD, title=TITLE, title_justify="left")
    for head in ("model", "framework", "against", *HEADS, "verdict"):
        shown.add_column(head, justify="right" if head in HEADS else "left", no_wrap=True)
    for line in _lines(judged.rows):
        shown.add_row(*line, style="" if line[-1] == "equal" else "bold red")
    return shown


def as_markdown(found: Sequence[Row]) -> str:
    """The parity table as Markdown, and what was compared."""
    heads = ("model", "framework", "against", *HEADS, "verdict")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * 3}{'--:|' * len(HEADS)}---|"]
    table = [*lines, *(f"| {' | '.join(line)} |" for line in _lines(found))]
    compared = [
        f"- {head}: {'; '.join(QUANTITIES[name].what for name in names)}"
        for head, names in HEADS.items()
    ]
    return "\n".join([f"{TITLE}.", "", *table, "", "What was compared:", "", *compared]) + "\n"


def _lines(found: Sequence[Row]) -> list[tuple[str, ...]]:
    by_pair: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in found:
        by_pair.setdefault((row.model, row.framework, row.reference), {})[row.quantity] = row
    lines: list[tuple[str, ...]] = []
    for pair, of_pair in by_pair.items():
        errors = [_error([of_pair[name] for name in names]) for names in HEADS.values()]
        lines.append(
            (*pair, *errors, "equal" if all(row.equal for row in of_pair.values()) else "DIFFERENT")
        )
    return lines


def _error(rows: Sequence[Row]) -> str:
    if not any(row.compared for row in rows):
        return "–"
    if len(rows) == 1 and rows[0].limit:
        return f"{rows[0].error:.1e}"
    return "equal" if all(row.equal for row in rows) else "DIFFERENT"


def _kept(store: Store, settings: Parity, judged: Judged, began_ms: int) -> str:
    """The run in MLflow: errors as metrics, the table as files and in its description."""
    origin, told = (
        uuid.uuid4().hex,
        judged.troubles or ["every network computes the same in every framework"],
    )
    tags = {
        "kind": RunKind.PARITY,
        "parity": "equal" if judged.equal else "unequal",
        "machine": provenance.fingerprint(),
    }
    tags |= provenance.environment_tags(frameworks.distributions()) | source(
        "parity", provenance.commit()
    )
    params = {name: text for name, text in settings_.as_text(settings).items() if text}
    text = "\n".join(["### Found", *(f"- {line}" for line in told), "", as_markdown(judged.rows)])
    points = tuple(
        Point(_key(row), row.error, 0, clock.now_ms())
        for row in judged.rows
        if row.compared and math.isfinite(row.error)
    )
    records: list[Record] = [
        Metrics(origin, points),
        Artifact(origin, ".", ""),
        Tags(origin, {"verdict": "; ".join(told)[:1_000], **note(text)}),
        RunClosed(
            origin,
            clock.now_ms(),
            RunOutcome.FAILED if judged.failed else RunOutcome.OK,
            "; ".join(judged.failed)[:1_000],
        ),
    ]
    files = {
        "parity.md": as_markdown(judged.rows),
        "parity.csv": _as_csv(judged.rows),
        "parity.json": parity_cache.as_json(judged.rows),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, written in files.items():
            (Path(folder) / name).write_text(written, encoding="utf-8")
        return keep(
            store,
            RunOpened(origin, began_ms, "parity", "parity", tags, params),
            records,
            Path(folder),
            "parity",
        )


def _key(row: Row) -> str:
    """A name without plus signs, which MLflow does not accept in metrics."""
    return f"parity/{row.model}/{row.framework.replace('+', '.')}/{row.quantity}"


def _as_csv(found: Sequence[Row]) -> str:
    header = (
        *("model", "framework", "reference", "quantity", "tensor", "layer", "behind"),
        *("error", "limit", "compared", "vanishing", "equal", "device"),
    )
    return spreadsheet.as_csv([header, *([getattr(row, name) for name in header] for row in found)])


__all__ = ["Judged", "as_markdown", "parity", "table"]
