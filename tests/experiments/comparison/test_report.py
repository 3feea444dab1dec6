"""Tests of reports: complete, safe against hostile texts, and independent of the network."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, runs
from experiments.comparison.judgement import ComparisonResult, ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import tables, wording, writing
from experiments.comparison.report.sections import Cell, Section
from experiments.comparison.verdicts.decision import Decision
from experiments.metrics import TOTAL
from tests.experiments.comparison import test_golden
from tests.experiments.comparison.campaigns import LATENCY, STEP, frame, paired

EVIL = '<script>alert("x")</script>|*`_[a](javascript:b)'
KEYS = (
    "metric factor a b n_blocks estimate kind ci_low ci_high p p_holm effect_size margin "
    "equivalent minimum_detectable verdict reason stratum probability_within_blocks "
    "minimum_in_family minimum_for_verdict family no_estimate autocorrelation "
    "autocorrelation_weight widening slow_runs_a slow_runs_b slow_runs_p decision"
)
PARTS = (
    "rows excluded environment summaries frontier rests_on controls primary looks schema_version"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[ComparisonResult, Path]:
    spec, table, raw, options = test_golden.two_sides()
    folder = tmp_path_factory.mktemp("report")
    return answer(spec, table, folder, options, lambda _: raw), folder


class _Checker(HTMLParser):
    """Collector of tags and of everything that a browser would fetch or run."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.external: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                self.external += [] if (value or "").startswith("data:") else [value or ""]
            self.external += [name] if name.startswith("on") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_needs_nothing_from_outside(report: tuple[ComparisonResult, Path]) -> None:
    text = (report[1] / "report.html").read_text(encoding="utf-8")
    checker = _Checker(text)
    assert checker.external == []
    assert not {"link", "iframe", "object", "embed", "base"} & set(checker.tags)
    assert checker.tags.count("script") == 1
    assert not re.search(r"http|@import", text)
    assert not re.search(r"fetch|XMLHttpRequest|import", text[text.index("<script>") :])
    assert text.count("data:image/svg+xml;base64,") == 2


def test_json_and_csv_have_the_published_keys(report: tuple[ComparisonResult, Path]) -> None:
    result, folder = report
    content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert set(content) == set(PARTS.split())
    assert content["schema_version"] == 2
    assert all(list(row) == KEYS.split() for row in content["rows"])
    assert content["environment"]["pytorch"]["machine"] == "box"
    with (folder / "comparison.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == KEYS.split()
    estimates = [row.estimate for row in result.comparison.rows]
    assert [row["estimate"] for row in content["rows"]] == estimates
    assert [float(row["estimate"]) for row in rows] == estimates


def test_outcome_that_the_design_cannot_measure_is_listed_once(tmp_path: Path) -> None:
    table = frame(params={"pairing": "interleaved"}).assign(**{TOTAL: 100.0})
    spec = ComparisonSpec(outcomes=[STEP, TOTAL], primary=[TOTAL])
    result = answer(spec, table, tmp_path, ReportOptions("Turns", figures=False), lambda _: [])
    comparison = result.comparison
    assert comparison.unmeasurable == {TOTAL}
    rows = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))["rows"]
    assert [row["no_estimate"] for row in rows if row["metric"] == TOTAL] == ["not_comparable"]
    verdicts = tables.verdicts(comparison).lines
    assert [line[0].text for line in verdicts if not isinstance(line, str)] == [
        "median training step"
    ]
    (section,) = tables.not_measured(comparison)
    assert [row[0] for row in section.rows] == ["total training time"]
    assert runs.by_level(Evidence(comparison, table)) == []


def test_reasons_have_codes_that_are_explained_once() -> None:
    comparison = compare(frame(factors={"tensorflow": 1.02}, spread=0.04))
    section = tables.verdicts(comparison)
    cells = [cell for line in section.lines for cell in line if isinstance(cell, Cell)]
    codes = {cell.code for cell in cells if cell.code}
    assert codes == {Decision.OPEN}
    notes = [note for note in section.notes if note.term == Decision.OPEN]
    assert len({note.text for note in notes}) == len(notes)
    assert all(note.concerns for note in notes)


def test_columns_without_values_are_not_shown() -> None:
    rows = [("a", "", "1.5 ms", "—"), ("b", "", "—", "—")]
    section = Section("Title", "", ("name", "stratum", "value", "p"), rows)
    assert [column.name for column in section.columns] == ["name", "value"]
    texts = [[cell.text for cell in line if isinstance(cell, Cell)] for line in section.lines]
    assert texts == [["a", "1.5 ms"], ["b", "—"]]
    assert section.widths == [0, 5]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,680 examples/s", ("1,680", " examples/s")),
        ("−0.016 to +0.027 nats", ("−0", ".016 to +0.027 nats")),
        ("< 0.0001", ("< 0", ".0001")),
        ("—", ("—", "")),
        ("identical", None),
    ],
)
def test_numbers_are_cut_at_the_decimal_point(text: str, number: tuple[str, str] | None) -> None:
    assert Cell(text).number == number


def test_figures_are_files(report: tuple[ComparisonResult, Path]) -> None:
    folder = report[1] / "figures"
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{name}.{kind}" for name in ("forest", "blocks") for kind in ("svg", "png")}
    for path in folder.iterdir():
        if path.suffix == ".svg":
            ET.fromstring(path.read_text(encoding="utf-8"))
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_hostile_texts_do_not_break_out(tmp_path: Path) -> None:
    levels = ["base", EVIL, "c" * 120]
    table = frame(levels, 7, tags={EVIL: EVIL, "team": EVIL, "warnings": EVIL})
    table = table.assign(**{"name": EVIL, "stratum name": EVIL, f"custom/{EVIL}": 1.5})
    table.loc[table["framework"] == EVIL, LATENCY] = np.nan
    table.loc[0, ["status", "outcome", "outcome_reason"]] = ["FAILED", "failed", EVIL]
    spec = ComparisonSpec(baseline="base", strata=["stratum name"])
    result = answer(spec, table, tmp_path, ReportOptions(EVIL, notes=[EVIL]), lambda _: [])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    checker = _Checker(page)
    assert (checker.tags.count("script"), checker.external) == (1, [])
    assert "alert" not in page[page.index("<script>") :]
    for name in ("report.md", "card.md"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "<script" not in text
        assert not re.search(r"(?<!\\)\]\(javascript", text)
    assert "not comparable" in _terminal_text(result)


def _terminal_text(result: ComparisonResult) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(writing.terminal(result.comparison))
    return captured.get()


def test_terminal_shows_the_headlines_of_many_rows(tmp_path: Path) -> None:
    table = frame(blocks=7)
    parts = [table.assign(team=f"team {at}", run_id=table["run_id"] + str(at)) for at in range(30)]
    spec = ComparisonSpec(strata=("team",), primary=(STEP,))
    options = ReportOptions("Teams", figures=False)
    result = answer(spec, pd.concat(parts, ignore_index=True), tmp_path, options, lambda _: [])
    count = len(result.comparison.findings)
    assert count > writing.MAX_TERMINAL_ROWS
    text = _terminal_text(result)
    assert f"30 of {count} rows" in text
    assert text.count("median training step") == 30


@pytest.mark.parametrize(
    ("b", "effect", "style"),
    [(1.0, "identical", "alike"), (1.02, "1.02× slower", "alike"), (2.0, "2.00× slower", "worse")],
)
def test_constant_difference_has_no_interval(b: float, effect: str, style: str) -> None:
    (finding,) = compare(paired([1.0] * 8, [b] * 8)).findings
    assert (wording.effect(finding), tables.style(finding)) == (effect, style)
    assert wording.effect_interval(finding) == ""


@pytest.mark.parametrize(("model", "is_shown"), [("m", True), ("resnet18", False)])
def test_published_figure_stands_beside_its_model_only(
    tmp_path: Path, model: str, is_shown: bool
) -> None:
    figure = {"what": "step", "published": "9 ms", "metric": STEP, "model": model}
    options = ReportOptions("A study", published=[figure], figures=False)
    answer(ComparisonSpec(outcomes=[STEP]), frame(), tmp_path, options, lambda _: [])
    lines = (tmp_path / "report.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| step | 9 ms")]
    assert ("pytorch: 32.2 ms; tensorflow: 32.0 ms" in row) is is_shown
