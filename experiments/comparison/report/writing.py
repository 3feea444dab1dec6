"""A comparison as files: a page, Markdown, CSV, JSON and figures. No arithmetic: what is told has been computed."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.comparison.report import card as cards
from experiments.comparison.report import remarks, rendering, tables, wording
from experiments.comparison.report.card import AnswerCard
from experiments.comparison.report.rendering import Document
from experiments.comparison.report.sections import Section
from experiments.comparison.report.wording import sentences
from experiments.comparison.runs import raw as raw_values
from experiments.comparison.runs.environment import medians
from experiments.comparison.verdicts import batch_sizes, steadiness
from experiments.comparison.verdicts.batch_sizes import Curve
from experiments.comparison.verdicts.findings import Comparison, Finding, Row
from experiments.comparison.verdicts.precision import Precision
from experiments.config.console import Table
from experiments.config.outcomes import outcome as outcome_of
from tracking import spreadsheet

if TYPE_CHECKING:
    import pandas as pd

    from experiments.comparison.report.figures import Figure
    from experiments.comparison.runs.raw import RawRun

SCHEMA_VERSION = 1
SUMMARY_KEYS = (
    *("metric", "factor", "a", "b", "kind", "n_strata", "n_blocks", "strata", "left_out", "estimate", "low", "high"),
    *("prediction_low", "prediction_high", "tau", "i_squared_percent", "q_p", "p", "p_holm", "margin", "equivalent"),
    *("verdict", "reason", "family", "no_estimate"),
)
LEARNING = "learning"
MAX_TERMINAL_ROWS = 100
# As the page does it: what is drawn is inverted, hues kept.
DARK = (
    "<style>@media screen and (prefers-color-scheme: dark)"
    "{:root{background:#14181f}:root>g{filter:invert(.92) hue-rotate(180deg)}}</style>"
)
FIRST_SIZES = "params.inference_batch_sizes"


def write(
    comparison: Comparison,
    folder: Path,
    *,
    title: str,
    runs: pd.DataFrame | None = None,
    notes: Sequence[str] = (),
    published: Sequence[Mapping[str, str]] = (),
    published_source: str = "",
    raw: Sequence[RawRun] = (),
    sections: Sequence[Section] = (),
    limits: Sequence[Precision] = (),
    card: AnswerCard | None = None,
    learning: Sequence[str] = (),
    with_figures: bool = True,
    link: tables.Link = tables.nowhere,
) -> Path:
    """Writes report.html, report.md, card.md, comparison.csv, comparison.json and, with figures, card.png and figures/.

    Returns the HTML file's path.

    runs: the table that was compared, for published figures of metrics that were not judged.
    notes are told quietly, at the end.
    published: mappings with `what`, `published` and `metric` (may be empty); with `model` where it is that model's alone.
    raw: the runs whose steps and sensors are shown, as `raw.fetch` brings them. sections: tables of a study's own.
    limits: how small a difference the runs could tell, and why.
    card: what stands at the top, made here where it is not given. learning: whether the levels learn alike, told before speed.
    link: run → its page in MLflow, empty where none is known.
    """
    from experiments.comparison.report import figures

    curves = batch_sizes.curves(comparison, first_batch_size(runs, raw))
    rows = tables.anchors(comparison)
    drawn = figures.draw(comparison, raw, curves, anchors=rows) if with_figures else []
    beside = tables.published([_beside(comparison, one, runs) for one in published], published_source)
    above = _above(comparison, [*sections, *tables.precision(limits)])
    below = [*_below(comparison, curves, raw, beside, link), *tables.runs(comparison, rows, link)]
    as_text = json.dumps(as_json(comparison), indent=1, allow_nan=False, ensure_ascii=False)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for figure in drawn:
        (folder / "figures" / f"{figure.name}.svg").write_text(_standalone(figure.svg), encoding="utf-8")
        (folder / "figures" / f"{figure.name}.png").write_bytes(figure.png)
    card = card or cards.of(comparison, title, limits)
    if with_figures:
        (folder / "card.png").write_bytes(figures.picture(card))
    first, others = [one for one in drawn if one.name == LEARNING], [one for one in drawn if one.name != LEARNING]
    alike = [Section("Do they learn alike?", " ".join(learning), (), ())] if learning or first else []
    heading = [Section("Figures", "", (), ())] if others else []
    body: list[Section | Figure] = [*alike, *first, *above, *heading, *others, *below]
    notes = [*tables.unread(raw), *_missing(comparison), *notes]
    document = _document(comparison, card, remarks.on_precision(limits), body, notes)
    (folder / "report.html").write_text(rendering.page(document), encoding="utf-8")
    (folder / "report.md").write_text(rendering.markdown(document), encoding="utf-8")
    (folder / "card.md").write_text(rendering.markdown_card(card) + "\n", encoding="utf-8")
    (folder / "comparison.csv").write_text(as_csv(comparison), encoding="utf-8")
    (folder / "comparison.json").write_text(as_text, encoding="utf-8")
    return folder / "report.html"


def _above(comparison: Comparison, own: Sequence[Section]) -> list[Section]:
    """The sections before the figures."""
    return [
        *tables.glance(comparison),
        *(tables.verdicts(comparison), tables.second_opinions(comparison)),
        *own,
        *tables.looks(comparison),
        *tables.across_strata(comparison),
    ]


def _below(
    comparison: Comparison, curves: Sequence[Curve], raw: Sequence[RawRun], published: Sequence[Section], link: tables.Link
) -> list[Section]:
    """The sections after the figures."""
    place = {level: at for at, level in enumerate(comparison.levels)}
    rested = steadiness.of_runs(sorted(raw, key=lambda run: place.get(run.level, len(place))))
    return [
        *tables.memory_limits(comparison),
        *tables.batch_limits(comparison, curves),
        *tables.steadiness(comparison, rested, link),
        *tables.controls(comparison),
        *tables.papers(comparison),
        *published,
        *(tables.environment(comparison), tables.excluded(comparison, link)),
    ]


def _document(
    comparison: Comparison,
    card: AnswerCard,
    precision: str,
    body: Sequence[Section | Figure],
    notes: Sequence[str],
) -> Document:
    subtitle = (
        f"{tables.versus(comparison)} · factor {comparison.factor} · {comparison.n_runs} usable runs · "
        f"margin ±{wording.percent(comparison.margin)} on ratios"
    )
    told = sentences(comparison)
    return Document(card, subtitle, precision, comparison.warnings, told, body, notes)


def _missing(comparison: Comparison) -> list[str]:
    unmeasured = [f"Not measured in any run: {', '.join(comparison.unmeasured)}."] if comparison.unmeasured else []
    return [*unmeasured, *(f"Not available: {sensor}: {why}" for sensor, why in comparison.missing_sensors.items())]


def terminal(comparison: Comparison) -> Table:
    """The verdict table for a terminal; of more rows than anyone reads there, those of the headlines."""
    every, title = comparison.findings, tables.versus(comparison)
    if len(every) <= MAX_TERMINAL_ROWS:
        return rendering.terminal(tables.verdicts(comparison), title)
    shown = wording.headlines(comparison)[:MAX_TERMINAL_ROWS]
    title += f" ({len(shown):,} of {len(every):,} rows; all are in the report)"
    return rendering.terminal(tables.verdicts(dataclasses.replace(comparison, findings=tuple(shown))), title)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The content of comparison.json: rows as `Row`, unbounded or unknown numbers as null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": [{**vars(row)} for row in comparison.rows],
        "excluded": [dataclasses.asdict(exclusion) for exclusion in comparison.excluded],
        "environment": {level: dict(facts) for level, facts in comparison.environment.items()},
        "summaries": [_summary_as_json(summary) for summary in comparison.summaries],
        "frontier": [dataclasses.asdict(edge) for edge in comparison.frontier],
        "rests_on": {what: list(names) for what, names in comparison.rests_on.items()},
        "controls": [
            {"name": one.name, "expected": one.expected, "rows": [dataclasses.asdict(row) for row in one.comparison.rows]}
            for one in comparison.controls
        ],
        "primary": list(comparison.primary),
        "looks": [dataclasses.asdict(look) for look in comparison.looks],
    }


def _summary_as_json(summary: Finding) -> dict[str, Any]:
    row, across = summary.row, summary.across
    assert across is not None
    own = {"n_strata": len(across.names), "strata": across.names, "low": row.ci_low, "high": row.ci_high}
    values = {**vars(row), **vars(across), **own}
    return {name: values[name] for name in SUMMARY_KEYS}


def as_csv(comparison: Comparison) -> str:
    """The rows, one line each, with the fields of `Row` as columns."""
    names = [field.name for field in dataclasses.fields(Row)]
    return spreadsheet.as_csv([names, *(tuple(vars(row).values()) for row in comparison.rows)])


def _beside(comparison: Comparison, one: Mapping[str, str], runs: pd.DataFrame | None) -> tuple[str, str, str]:
    """A published figure and ours beside it, level by level; ours of another network are not put beside it."""
    metric = one.get("metric", "")
    ours: dict[str, float | None] = {}
    for finding in comparison.findings:
        if finding.row.metric == metric:
            ours |= {finding.row.a: finding.a_value, finding.row.b: finding.b_value}
    if not ours and metric and runs is not None:
        ours = dict(medians(runs, factor=comparison.factor, metric=metric))
    wanted = one.get("model", "")
    same = {level for level in ours if wanted in ("", comparison.environment.get(level, {}).get("model", wanted))}
    told = [
        f"{level}: {wording.quantity(value, outcome_of(metric))}"
        for level, value in ours.items()
        if value is not None and level in same
    ]
    otherwise = ("not measured here" if same or not ours else "another model here") if metric else "see the verdicts above"
    return one["what"], one["published"], "; ".join(told) or otherwise


def first_batch_size(runs: pd.DataFrame | None, raw: Sequence[RawRun]) -> int | None:
    """The inference batch size whose metrics have none in their key; None where the runs do not say or do not agree."""
    sizes = {next(iter(raw_values.of_inference(run)), 0) for run in raw} - {0}
    if runs is not None and FIRST_SIZES in runs.columns:
        first = {text.partition(",")[0] for text in runs[FIRST_SIZES].dropna().astype(str)}
        sizes |= {int(size) for size in first if size.isdecimal()}
    return sizes.pop() if len(sizes) == 1 else None


def _standalone(svg: str) -> str:
    """A figure as a file: dark where the reader prefers it, and without links to rows of the page."""
    namespace = "http://www.w3.org/2000/svg"
    svg = re.sub(r'<a href="#r\d+">', "<a>", svg).replace("<svg ", f'<svg xmlns="{namespace}" ', 1).replace(">", f">{DARK}", 1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n'


__all__ = ["as_csv", "as_json", "sentences", "terminal", "write"]
