"""A comparison as HTML, Markdown, CSV, JSON, figures and a terminal table. No arithmetic: `verdict` has computed what is told."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich import box
from rich.table import Table
from rich.text import Text

from experiments.comparison import raw as raw_values
from experiments.comparison import steady, words
from experiments.comparison.findings import (
    DETERMINISTIC,
    EQUIVALENT,
    NOT_COMPARABLE,
    WITHIN_MARGIN,
    Comparison,
    Finding,
    Row,
    Summary,
)
from experiments.comparison.outcomes import outcome as outcome_of
from experiments.comparison.sections import Section
from experiments.comparison.surroundings import medians
from experiments.comparison.words import sentences

if TYPE_CHECKING:
    import pandas as pd

    from experiments.comparison.figures import Figure
    from experiments.comparison.raw import RawRun

SCHEMA_VERSION = 1
FIRST_SIZES = "params.inference_batch_sizes"
FILES = ("report.html", "report.md", "comparison.csv", "comparison.json")


@dataclass(frozen=True)
class Published:
    """A published figure and ours beside it, level by level."""

    what: str
    published: str
    ours: str


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
) -> Path:
    """Writes report.html, report.md, comparison.csv, comparison.json and figures/ into the folder; returns the HTML file's path.

    runs: the table that was compared, for published figures of metrics that were not judged.
    notes are told quietly, at the end.
    published: mappings with `what`, `published` and `metric` (may be empty).
    raw: the runs whose steps and sensors are shown, as `raw.fetch` brings them. sections: tables of a study's own.
    """
    from experiments.comparison import batches, figures

    curves = batches.curves(comparison, first_batch_size(runs, raw))
    drawn = figures.draw(comparison, raw, curves)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for figure in drawn:
        (folder / "figures" / f"{figure.name}.svg").write_text(_standalone(figure.svg), encoding="utf-8")
        (folder / "figures" / f"{figure.name}.png").write_bytes(figure.png)
    told = {
        "title": title,
        "warnings": comparison.warnings,
        "notes": list(notes),
        "published": [_beside(comparison, one, runs) for one in published],
        "published_source": published_source,
        "curves": curves,
        "own_sections": list(sections),
        **_steps_told(comparison, raw),
    }
    (folder / "report.html").write_text(_render("report.html.j2", comparison, drawn, told), encoding="utf-8")
    (folder / "report.md").write_text(_render("report.md.j2", comparison, drawn, told), encoding="utf-8")
    (folder / "comparison.csv").write_text(as_csv(comparison), encoding="utf-8")
    (folder / "comparison.json").write_text(
        json.dumps(as_json(comparison), indent=1, allow_nan=False, ensure_ascii=False), encoding="utf-8"
    )
    return folder / "report.html"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The content of comparison.json: rows as `verdict.Row`, unbounded or unknown numbers as null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": [dataclasses.asdict(row) for row in comparison.rows],
        "excluded": [dataclasses.asdict(exclusion) for exclusion in comparison.excluded],
        "environment": {level: dict(facts) for level, facts in comparison.environment.items()},
        "summaries": [
            {name: value for name, value in dataclasses.asdict(summary).items() if name != "outcome"}
            for summary in comparison.summaries
        ],
        "frontier": [dataclasses.asdict(edge) for edge in comparison.frontier],
        "rests_on": {what: list(names) for what, names in comparison.rests_on.items()},
        "controls": [
            {"name": one.name, "expected": one.expected, "rows": [dataclasses.asdict(row) for row in one.comparison.rows]}
            for one in comparison.controls
        ],
    }


def as_csv(comparison: Comparison) -> str:
    """The rows, one line each, with the fields of `verdict.Row` as columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in comparison.rows)
    return text.getvalue()


def terminal(comparison: Comparison) -> Table:
    """The verdict table for a terminal."""
    several = _several(comparison)
    table = Table(box=box.SIMPLE_HEAD, title=_versus(comparison), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("outcome", overflow="fold", min_width=16, max_width=36)
    if several:
        table.add_column(comparison.factor, overflow="ellipsis", no_wrap=True, max_width=24)
    for name in _side_names(comparison, several):
        table.add_column(name, justify="right", overflow="fold", max_width=18)
    table.add_column("effect")
    table.add_column("95 % interval")
    table.add_column("blocks", justify="right")
    table.add_column("p (Holm)", justify="right", no_wrap=True)
    table.add_column("verdict", min_width=14)
    before, stratum = "", ""
    for finding in comparison.findings:
        row, outcome, name = finding.row, finding.outcome, finding.outcome.label
        if row.stratum != stratum:
            table.add_section()
            table.add_row(Text(row.stratum, style="bold"))
            before, stratum = "", row.stratum
        cells = [name if name != before else "", *([row.b] if several else [])]
        cells += [words.quantity(finding.a_value, outcome), words.quantity(finding.b_value, outcome)]
        cells += [words.effect(finding), words.effect_interval(finding), str(row.n_blocks), words.p_value(row.p_holm)]
        table.add_row(*map(Text, cells), Text(row.verdict, style=_TERMINAL_STYLE[_class(finding)]))
        before = name
    return table


_TERMINAL_STYLE = {
    "better": "bold green",
    "worse": "bold red",
    "differs": "bold",
    "alike": "cyan",
    "open": "yellow",
    "none": "dim",
}


def _class(finding: Finding) -> str:
    """How a verdict is coloured."""
    if finding.row.verdict == NOT_COMPARABLE:
        return "none"
    if not finding.judged:
        return "open"
    if finding.row.verdict in (EQUIVALENT, WITHIN_MARGIN, DETERMINISTIC):
        return "alike"
    return {True: "better", False: "worse", None: "differs"}[finding.good]


def _class_of_summary(summary: Summary) -> str:
    if not summary.judged:
        return "open"
    if summary.verdict in (EQUIVALENT, WITHIN_MARGIN, DETERMINISTIC):
        return "alike"
    return {True: "better", False: "worse", None: "differs"}[summary.good]


def _several(comparison: Comparison) -> bool:
    """Whether there are more comparisons than one: every line then names its level."""
    return len({(finding.row.a, finding.row.b) for finding in comparison.findings}) > 1


def _versus(comparison: Comparison) -> str:
    return f"{words.joined(comparison.levels[1:])} against {comparison.baseline}"


def _side_names(comparison: Comparison, several: bool) -> tuple[str, str]:
    baselines = {finding.row.a for finding in comparison.findings} or {comparison.baseline}
    a = baselines.pop() if len(baselines) == 1 else "baseline"
    return (a, "value") if several else (a, comparison.levels[1])


def _name(finding: Finding) -> str:
    return finding.outcome.label + (f" [{finding.row.stratum}]" if finding.row.stratum else "")


def _glance(comparison: Comparison) -> dict[str, dict[str, Finding]]:
    """Outcome → level → finding, where every level has the same baseline."""
    if len({finding.row.a for finding in comparison.findings}) > 1:
        return {}
    table: dict[str, dict[str, Finding]] = {}
    for finding in comparison.findings:
        table.setdefault(_name(finding), {})[finding.row.b] = finding
    return table


def _beside(comparison: Comparison, one: Mapping[str, str], runs: pd.DataFrame | None) -> Published:
    metric = one.get("metric", "")
    ours: dict[str, float | None] = {}
    for finding in comparison.findings:
        if finding.row.metric == metric:
            ours |= {finding.row.a: finding.a_value, finding.row.b: finding.b_value}
    if not ours and metric and runs is not None:
        ours = dict(medians(runs, factor=comparison.factor, metric=metric))
    told = [f"{level}: {words.quantity(value, outcome_of(metric))}" for level, value in ours.items() if value is not None]
    return Published(
        one["what"], one["published"], "; ".join(told) or ("see the verdicts above" if not metric else "not measured here")
    )


def first_batch_size(runs: pd.DataFrame | None, raw: Sequence[RawRun]) -> int | None:
    """The inference batch size whose metrics have none in their key; None where the runs do not say or do not agree."""
    sizes = {next(iter(raw_values.of_inference(run)), 0) for run in raw} - {0}
    if runs is not None and FIRST_SIZES in runs.columns:
        sizes |= {int(text.partition(",")[0]) for text in runs[FIRST_SIZES].dropna().astype(str) if text[:1].isdecimal()}
    return sizes.pop() if len(sizes) == 1 else None


def _steps_told(comparison: Comparison, raw: Sequence[RawRun]) -> dict[str, Any]:
    """What the report says of the steps of the runs that were read."""
    place = {level: at for at, level in enumerate(comparison.levels)}
    found = steady.of_runs(sorted(raw, key=lambda run: place.get(run.level, len(place))))
    read = len(found)
    return {
        "steadiness": found,
        "steady_kinds": steady.KINDS,
        "steady_lines": steady.by_level(found),
        "steady_none": [one for one in found if one.steady.kind == "no steady state"],
        "unread": [run for run in raw if run.trouble],
        "of_runs": f"all {read:,} runs" if read >= comparison.n_runs else f"{read:,} of {comparison.n_runs:,} runs",
    }


def _standalone(svg: str) -> str:
    namespace = "http://www.w3.org/2000/svg"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg.replace("<svg ", f"""<svg xmlns="{namespace}" """, 1)}\n'


def _render(template: str, comparison: Comparison, drawn: Sequence[Figure], told: Mapping[str, Any]) -> str:
    html = template.endswith("html.j2")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": _markdown_cell, "classed": _class, "p": words.p_value, "number": words.number}
    environment.filters["classed_summary"] = _class_of_summary
    several = _several(comparison)
    facts = list(dict.fromkeys(name for values in comparison.environment.values() for name in values))
    return environment.get_template(template).render(
        **told,
        comparison=comparison,
        figures=[dataclasses.replace(figure, svg=Markup(figure.svg) if html else figure.svg) for figure in drawn],
        sentences=sentences(comparison),
        headlines=words.headlines(comparison),
        glance=_glance(comparison) if several else {},
        several=several,
        sides=_side_names(comparison, several),
        groups=len(words.grouped(comparison)),
        one_reason=len({finding.row.reason for finding in comparison.findings}) == 1,
        versus=_versus(comparison),
        facts=facts,
        words=words,
        name=_name,
    )


def _markdown_cell(text: object) -> str:
    """Text that cannot break out of a Markdown table cell."""
    escaped = str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return escaped.replace("`", "\\`").replace("[", "\\[").replace("]", "\\]").replace("*", "\\*").replace("_", "\\_")


__all__ = ["Published", "as_csv", "as_json", "sentences", "terminal", "write"]
