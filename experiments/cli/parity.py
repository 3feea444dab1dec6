"""Parity gate as a command: all models in all frameworks, a table of errors, a run in MLflow."""

from __future__ import annotations

import math
import os
import re
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

import models
from experiments.cli.campaign import print_warnings
from experiments.cli.codes import DONE, FAILED
from experiments.cli.settings import Parity
from experiments.config import devices, interpreters
from experiments.config.console import Box, Display, Table, box, plain_text
from experiments.config.settings import as_text
from experiments.run import parity_cache
from experiments.run.mlflow_run import log_result
from models import frameworks
from models.contract import ModelError
from models.parity import QUANTITIES, RULES, STEPS, ParityRequest, Row, Side, gate
from tracking import clock, provenance
from tracking.errors import ErrorCode, UsageError
from tracking.links import source
from tracking.records import Point, RunKind, RunOpened, RunOutcome
from tracking.store import Store, note

# Columns of the table, with the quantities of each.
HEADS = {
    "parameters": ("count",),
    "forward": ("forward",),
    "loss": ("loss",),
    "gradients": ("gradient",),
    f"{STEPS} steps": ("step",),
    "statistics": ("statistics",),
    "dropped": ("place", "mask", "dropout"),
}
COLUMNS = ("model", "framework", "against", *HEADS, "verdict")
TITLE = "Relative L2 error in float64, the worst tensor (–: the network has none)"


def run(settings: Parity, display: Display) -> int:
    """Compare every requested model, log and print the errors. Return the exit code.

    Raises:
        UsageError: for a model or framework that does not exist or cannot run.
    """
    is_all = settings.models in ((), ("all",))
    names = tuple(models.available()) if is_all else settings.models
    for name in names:
        models.spec(name)
    for name in settings.frameworks:
        frameworks.check(name)
        if missing := interpreters.missing(name, settings.pythons):
            raise UsageError(ErrorCode.NOT_INSTALLED, missing)
    if len(settings.frameworks) < 2:
        raise UsageError(
            ErrorCode.ONE_SIDE,
            f"frameworks={settings.frameworks[0]} is one side only; "
            f"name the reference, then the others",
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
    rules = tuple(rule for optimizer in settings.optimizer for rule in RULES[optimizer])
    rows, failed = list[Row](), list[str]()
    for done, name in enumerate(names):
        display.step(f"parity · {name}", done, len(names))
        request = ParityRequest(name, rules, settings.full, settings.seed, device)
        try:
            at_once = 1 if settings.full else 2
            rows += gate([request], sides, at_once=at_once, environment=environment)
        except ModelError as error:
            failed.append(str(error))
    troubles = [*parity_cache.differences(rows), *failed]
    page = _log(store, settings, rows, failed, troubles, began_ms)
    display.rest()
    if rows:
        display.console.print(table(rows))
    print_warnings(troubles, display)
    display.say(f"MLflow UI  {page}")
    return FAILED if troubles else DONE


def table(rows: Sequence[Row], style: Box = box.SIMPLE_HEAD) -> Table:
    """Return a line for each model and framework, with the worst error of each quantity."""
    shown = Table(box=style, title=f"{TITLE}\n", title_justify="left")
    for head in COLUMNS:
        shown.add_column(
            head,
            justify="right" if head in HEADS else "left",
            overflow="fold",
            no_wrap=style is box.MARKDOWN,
        )
    for line in _lines(rows):
        shown.add_row(*line, style="" if line[-1] == "equal" else "bold red")
    return shown


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the table as Markdown, with the meaning of its columns."""
    meanings = [
        f"- {head}: {'; '.join(QUANTITIES[name].what for name in names)}"
        for head, names in HEADS.items()
    ]
    text = plain_text(table(rows, box.MARKDOWN))
    return "\n".join([text, "What was compared:", "", *meanings, ""])


def _lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    by_pair: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        by_pair.setdefault((row.model, row.framework, row.reference), {})[row.quantity] = row
    lines = []
    for pair, of_pair in by_pair.items():
        by_head = [[of_pair[name] for name in names if name in of_pair] for names in HEADS.values()]
        is_equal = all(row.equal for row in of_pair.values())
        reason = next((row.reason for row in of_pair.values() if row.reason), "")
        verdict = f"not available: {reason}" if reason else "equal" if is_equal else "DIFFERENT"
        lines.append((*pair, *map(_error, by_head), verdict))
    return lines


def key_of(row: Row) -> str:
    """Return the key of a row's metric; MLflow accepts no other signs than these."""
    return f"parity/{row.model}/{re.sub('[+@]', '.', row.framework)}/{row.quantity}"


def _error(rows: Sequence[Row]) -> str:
    if not any(row.compared for row in rows):
        return "–"
    if len(rows) == 1 and rows[0].limit:
        return f"{rows[0].error:.1e}"
    return "equal" if all(row.equal for row in rows) else "DIFFERENT"


def _log(
    store: Store,
    settings: Parity,
    rows: Sequence[Row],
    failed: Sequence[str],
    troubles: Sequence[str],
    began_ms: int,
) -> str:
    """Log a run in MLflow, with errors as metrics and the table in its description."""
    table_text = as_markdown(rows)
    summary = troubles or ["every network computes the same in every framework"]
    tags = {
        "kind": RunKind.PARITY,
        "parity": "unequal" if troubles else "equal",
        "machine": provenance.fingerprint(),
        **provenance.environment_tags(frameworks.distributions()),
        **source("parity", provenance.commit(), provenance.changes()),
    }
    params = {name: text for name, text in as_text(settings).items() if text}
    text = "\n".join(["### Found", *(f"- {line}" for line in summary), "", table_text])
    points = [
        Point(key_of(row), row.error, 0, clock.now_ms())
        for row in rows
        if row.compared and math.isfinite(row.error)
    ]
    outcome = RunOutcome.FAILED if failed else RunOutcome.OK
    opened = RunOpened(uuid.uuid4().hex, began_ms, "parity", "parity", tags, params)
    verdict = {"verdict": "; ".join(summary)[:1_000], **note(text)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "parity.md").write_text(table_text, encoding="utf-8")
        as_json = parity_cache.as_json(rows)
        (path / "parity.json").write_text(as_json, encoding="utf-8")
        reason = "; ".join(failed)[:1_000]
        return log_result(store, opened, points, verdict, path, outcome, reason)
