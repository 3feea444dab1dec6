"""Files of a comparison: a page, Markdown, CSV, JSON and figures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from experiments.comparison.report import rendering, tables, wording
from experiments.comparison.report.canvas import Figure
from experiments.comparison.report.rendering import Document
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


def write(comparison: Comparison, document: Document, folder: Path) -> Path:
    """Write the report, the card, the verdict table in all its formats, and figures/.

    Returns:
        The path of the HTML file.
    """
    as_text = json.dumps(as_json(comparison), indent=1, allow_nan=False, ensure_ascii=False)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for figure in document.body:
        if isinstance(figure, Figure):
            (folder / "figures" / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
            (folder / "figures" / f"{figure.name}.png").write_bytes(figure.png)
    (folder / "report.html").write_text(
        rendering.render("report.html.j2", document=document), encoding="utf-8"
    )
    (folder / "report.md").write_text(
        rendering.render("report.md.j2", document=document), encoding="utf-8"
    )
    card = f"# {rendering.escape_markdown(document.card.title)}\n\n"
    card += rendering.render("card.md.j2", card=document.card)
    (folder / "card.md").write_text(card, encoding="utf-8")
    (folder / "comparison.csv").write_text(as_csv(comparison), encoding="utf-8")
    (folder / "comparison.json").write_text(as_text, encoding="utf-8")
    (folder / VERDICTS).write_text(as_table(comparison), encoding="utf-8")
    return folder / "report.html"


def subtitle(comparison: Comparison) -> str:
    """Return what was compared, by how many runs and with which margin."""
    return (
        f"{tables.versus(comparison)} by {comparison.factor} · {comparison.n_runs} usable runs · "
        f"margin ±{wording.percent(comparison.margin)} on ratios"
    )


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
        "looks": [dataclasses.asdict(look) for look in comparison.looks],
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
