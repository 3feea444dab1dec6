"""Files of a comparison: a page, Markdown, CSV, JSON and figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.comparison.report import rendering, tables, wording
from experiments.comparison.report.canvas import Figure
from experiments.comparison.report.card import AnswerCard
from experiments.comparison.report.sections import Section
from experiments.comparison.verdicts.findings import Comparison, Finding, Row
from experiments.config.console import Table
from tracking import plain

SCHEMA_VERSION = 2
VERDICTS = "verdicts.json"
SUMMARY_KEYS = (
    "metric",
    "factor",
    "a",
    "b",
    "kind",
    "n_strata",
    "n_blocks",
    "strata",
    "left_out",
    "estimate",
    "low",
    "high",
    "prediction_low",
    "prediction_high",
    "tau",
    "i_squared_percent",
    "q_p",
    "p",
    "p_holm",
    "margin",
    "equivalent",
    "verdict",
    "reason",
    "family",
    "no_estimate",
)
EXCLUSION_KEYS = ("run_id", "name", "level", "block", "metric", "reason", "code")
MAX_TERMINAL_ROWS = 100


def write(
    comparison: Comparison,
    card: AnswerCard,
    body: Sequence[Section | Figure],
    notes: Sequence[str],
    folder: Path,
) -> None:
    """Write the report, the card, the verdict table in all its formats, and figures/."""
    as_text = json.dumps(as_json(comparison), indent=1, allow_nan=False, ensure_ascii=False)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for figure in body:
        if isinstance(figure, Figure):
            (folder / "figures" / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
            (folder / "figures" / f"{figure.name}.png").write_bytes(figure.png)
    subtitle = (
        f"{tables.versus(comparison)} by {comparison.factor} · {comparison.n_runs} usable runs · "
        f"margin ±{wording.percent(comparison.margin)} on ratios"
    )
    content = {"card": card, "subtitle": subtitle, "body": body, "notes": notes}
    title = rendering.escape_markdown(card.title)
    texts = {
        "report.html": rendering.render("report.html.j2", **content),
        "report.md": rendering.render("report.md.j2", **content),
        "card.md": f"# {title}\n\n{rendering.render('card.md.j2', card=card)}",
        "comparison.csv": as_csv(comparison),
        "comparison.json": as_text,
        VERDICTS: as_table(comparison),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def terminal(comparison: Comparison) -> Table:
    """Return the verdict table for a terminal; of very many rows the headlines."""
    findings, title = comparison.findings, tables.versus(comparison)
    if len(findings) <= MAX_TERMINAL_ROWS:
        return rendering.terminal(tables.verdicts(comparison), title)
    shown = wording.headlines(comparison)[:MAX_TERMINAL_ROWS]
    title += f" ({len(shown):,} of {len(findings):,} rows; all are in the report)"
    return rendering.terminal(
        tables.verdicts(dataclasses.replace(comparison, findings=tuple(shown))), title
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the content of comparison.json; unbounded or unknown numbers are null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": [{**vars(row)} for row in comparison.rows],
        "excluded": [
            {name: getattr(exclusion, name) for name in EXCLUSION_KEYS}
            for exclusion in comparison.excluded
        ],
        "environment": {level: dict(facts) for level, facts in comparison.environment.items()},
        "summaries": [_summary_as_json(summary) for summary in comparison.summaries],
        "frontier": [dataclasses.asdict(edge) for edge in comparison.frontier],
        "rests_on": {what: list(names) for what, names in comparison.rests_on.items()},
        "controls": [
            {
                "name": control.name,
                "expected": control.expected,
                "rows": [dataclasses.asdict(row) for row in control.comparison.rows],
            }
            for control in comparison.controls
        ],
        "primary": list(comparison.primary),
        "looks": comparison.looks,
    }


def _summary_as_json(summary: Finding) -> dict[str, Any]:
    row, across = summary.row, summary.across
    assert across is not None
    fields = {
        "n_strata": len(across.names),
        "strata": across.names,
        "low": row.ci_low,
        "high": row.ci_high,
    }
    values = {**vars(row), **vars(across), **fields}
    return {name: values[name] for name in SUMMARY_KEYS}


def as_table(comparison: Comparison) -> str:
    """Return the verdicts as JSON of `mlflow.log_table`, which MLflow's pages sort and filter."""
    names = [
        *("metric", "verdict", "a", "b", "kind", "estimate", "ci_low", "ci_high"),
        *("margin", "n_blocks", "family", "stratum", "p_holm", "equivalent", "reason"),
    ]
    rows = [[getattr(row, name) for name in names] for row in comparison.rows]
    return json.dumps({"columns": names, "data": rows}, allow_nan=False, ensure_ascii=False)


def as_csv(comparison: Comparison) -> str:
    """Return the rows as CSV, with the fields of `Row` as columns."""
    names = [field.name for field in dataclasses.fields(Row)]
    return plain.as_csv([names, *(tuple(vars(row).values()) for row in comparison.rows)])
