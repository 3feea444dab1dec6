"""Reports: the card, numbers, files, figures, and safety against hostile texts."""

from __future__ import annotations

import csv
import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from experiments.comparison import analyses, compare
from experiments.comparison.analyses import Evidence, intervals, runs
from experiments.comparison.judgement import ComparisonResult, ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import canvas, rendering, tables, wording, writing
from experiments.comparison.report import card as cards
from experiments.comparison.report.sections import Cell
from experiments.comparison.runs import environment
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.verdicts import sample_size
from experiments.comparison.verdicts.findings import Finding
from experiments.metrics import TOTAL
from tests.experiments.comparison import test_analyses, test_golden
from tests.experiments.comparison.campaigns import BLEU, LATENCY, RATE, RSS, STEP, frame, paired
from tests.experiments.comparison.steps import raw_runs

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


TAGS = {"cpu": "2 × Xeon", "gpu": "H100", "version.torch": "2.13", "warnings": "Synthetic data."}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    """Result in which training is settled; latency is not, although it was declared first."""
    spec = ComparisonSpec(primary=(LATENCY, RATE), baseline="pytorch", outcomes=(LATENCY, RATE))
    table = frame(factors={"tensorflow": 1.2}, tags=TAGS, spread=0.03)
    folder = tmp_path_factory.mktemp("card")
    return answer(spec, table, folder, ReportOptions("Captioning · demo"), lambda _: [])


def test_every_format_shows_the_same_answer_and_facts(result: ComparisonResult) -> None:
    card = result.card
    assert result.report is not None
    console = Console(width=400)
    with console.capture() as shown:
        console.print(rendering.terminal_card(card))
    files = ("report.html", "card.md", "report.md")
    texts = [(result.report.parent / name).read_text(encoding="utf-8") for name in files]
    assert {"Model", "Data", "CPU", "GPU", "Versions", "Runs", "Precision"} <= set(card.facts)
    sentences = (card.settled, card.unsettled, card.recommendation, card.conditions)
    parts = [*sentences, *card.facts.values()]
    for text in (*texts, rendering.render("card.md.j2", card=card), shown.get()):
        assert all(part in text.replace("\\", "") for part in parts)
    assert all("Synthetic data." in text for text in texts)


def test_figures_of_a_campaign_are_those_of_the_rows_in_four_digits(
    result: ComparisonResult,
) -> None:
    figures = dict(result.card.figures)
    for row in result.comparison.rows:
        name = f"verdict/{row.metric}/percent_faster"
        faster, low, high = (figures.pop(f"{name}{end}") for end in ("", "_low", "_high"))
        speeds = np.array([row.estimate, row.ci_low, row.ci_high], float)
        if row.metric.endswith("_seconds") or "_seconds_" in row.metric:
            speeds = 1 / speeds[[0, 2, 1]]
        expected = 100 * (speeds - 1)
        # Half a unit of the fourth digit is at most 5e-4; bounds are rounded outwards.
        assert faster == pytest.approx(expected[0], rel=5e-4)
        assert expected[1] - abs(expected[1]) * 1e-3 < low <= expected[1]
        assert expected[2] <= high < expected[2] + abs(expected[2]) * 1e-3
        assert [float(f"{value:.4g}") for value in (faster, low, high)] == [faster, low, high]
    assert figures == {}


@pytest.mark.parametrize(("points", "is_reported"), [(0.05, True), (0.005, False)])
def test_exploratory_loss_of_quality_is_in_the_answer(points: float, is_reported: bool) -> None:
    table = frame(factors={"tensorflow": 1.2}, blocks=8)
    lost = np.where(table["framework"] == "tensorflow", points, 0.0)
    noise = np.random.default_rng(1).normal(0, 0.002, len(table))
    table["val/accuracy"] = 0.9 - lost + noise
    comparison = compare(table, baseline="pytorch", primary=[RATE])
    assert ("exploratory" in cards.build_card(comparison, "A study").answer) is is_reported
    declared = compare(table, baseline="pytorch", primary=[RATE, "val/accuracy"])
    assert "exploratory" not in cards.build_card(declared, "A study").answer


@pytest.mark.parametrize(("hours", "spread"), [(0.25, 0.5), (25.0, 0.06)])
def test_unaffordable_blocks_are_not_advised(hours: float, spread: float) -> None:
    """100 blocks may not be enough with an SD of 50 %; nor is a day if each takes 25 hours."""
    noise = np.random.default_rng(0).permutation(np.linspace(-1, 1, 8))
    table = paired([1.0] * 8, list(np.exp(spread * noise / noise.std(ddof=1))), LATENCY)
    start = 3_600_000 * hours * (table["block"] + (table["framework"] == "b") / 2)
    table = table.assign(start_ms=start, end_ms=start + 1_800_000 * hours)
    comparison = compare(table, outcomes=[LATENCY], primary=[LATENCY])
    (finding,) = comparison.findings
    assert (finding.plan, sample_size.more_blocks(finding)) == (None, 0)
    text = cards.build_card(comparison, "A study").answer
    assert "more block " not in text
    assert all(way in text for way in sample_size.remedies(finding))


def test_duration_leaves_out_the_time_between_campaigns() -> None:
    first, second = frame(blocks=2, campaign="c1"), frame(blocks=2, campaign="c2")
    second[["start_ms", "end_ms"]] += 86_400_000
    span = environment.span(first.merge(second, how="outer"))
    assert span is not None
    seconds = [
        (campaign["end_ms"].max() - campaign["start_ms"].min()) / 1_000
        for campaign in (first, second)
    ]
    assert math.isclose(span.seconds, sum(seconds))
    assert span.days == "2025-10-09 to 2025-10-10"
    assert environment.span(paired([1.0], [1.0], STEP)) is None


def test_conditions_are_those_of_all_runs() -> None:
    runs = frame(params={"threads": "1"})
    runs["params.device"] = np.where(runs.index % 2, "cpu", "cuda")
    card = cards.build_card(compare(runs, outcomes=[RATE], allowed_to_differ=["device"]), "A study")
    assert card.conditions == "one campaign · threads: 1 · batch size: 32 · device: several"


def test_terminal_has_the_answer_of_a_smoke_test_once() -> None:
    comparison = compare(frame(params={"preset": "smoke"}))
    card = cards.build_card(comparison, "A study")
    assert card.without_answer([*wording.sentences(comparison), "Stopped."]) == ["Stopped."]
    section = tables.verdicts(comparison)
    assert (section.title, section.caption) == ("Measured values", "")
    assert {column.name for column in section.columns} == {"outcome", "pytorch", "tensorflow"}


POWER = "power/watts_mean"


def _finding(low: float, value: float, high: float, metric: str = STEP) -> Finding:
    a, b = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.1, 1.3, 1.2, 1.5, 1.4, 1.9]
    (finding,) = compare(paired(a, b, metric), baseline="a").findings
    row = replace(finding.row, estimate=value, ci_low=low, ci_high=high)
    return replace(finding, row=row)


def test_better_is_right_in_every_line() -> None:
    table = frame(factors={"tensorflow": 1.3})
    findings = compare(table, baseline="pytorch", outcomes=[RATE, STEP, RSS]).findings
    bounds = {finding.row.metric: intervals._better_right(finding) for finding in findings}
    assert bounds[STEP] == pytest.approx(bounds[RATE], rel=1e-6)
    for value, low, high in bounds.values():
        assert low <= value <= high  # type: ignore[operator]
    assert bounds[RATE][0] == findings[0].row.estimate < 1


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((0.002853, 1.2, 350.54), "0.0028–360"),
        ((1.271, 1.342, 1.414), "1.27–1.42"),
        ((19.5, 20.1, 20.8), "19–21"),
        ((1.1, 1.2, 1.3), "1.10–1.30"),
        ((1.3, 1.3, 1.3), "no spread"),
    ],
)
def test_digits_follow_the_interval(bounds: tuple[float, float, float], text: str) -> None:
    assert wording.interval(_finding(*bounds)) == text


@pytest.mark.parametrize(
    ("ends", "digits", "rounded"),
    [
        ((19.5, 20.8), {"decimals": 0}, (19, 21)),
        ((-0.0404, -0.0396), {"decimals": 3}, (-0.041, -0.039)),
        ((1.1, 1 / (1 / 1.3)), {"decimals": 1}, (1.1, 1.3)),
        ((0.0012345, 98_765), {"digits": 3}, (0.00123, 98_800)),
        ((0.99994, 1.00004), {"digits": 4}, (0.9999, 1.001)),
        ((0.0, np.inf), {"digits": 3}, (0, np.inf)),
        ((-0.4, -0.0001), {"decimals": 0}, (-1, 0)),
    ],
)
def test_intervals_are_rounded_outwards(
    ends: tuple[float, float], digits: dict[str, int], rounded: tuple[float, float]
) -> None:
    assert wording.outwards(*ends, **digits) == rounded


@pytest.mark.parametrize(
    ("share", "text"), [(0.0213, "2.1 %"), (3.456, "350 %"), (2364.61, "over 10×")]
)
def test_amount_has_no_false_precision(share: float, text: str) -> None:
    assert wording.amount(share, _finding(1.0, 1.1, 1.2)) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0312, "s", "31.2 ms"),
        (100.0, "s", "100 s"),
        (200.0, "s", "3.33 min"),
        (7e8, "bytes", "668 MiB"),
        (0.0, "J", "0 mJ"),
        (1_020.0, "examples/s", "1,020 examples/s"),
    ],
)
def test_quantity_has_a_readable_unit(value: float, unit: str, text: str) -> None:
    outcome = replace(_finding(1.0, 1.1, 1.2).outcome, unit=unit)
    assert wording.quantity(value, outcome) == text


@pytest.mark.parametrize(
    ("metric", "bounds", "text"),
    [
        (RSS, (0.884, 0.888, 0.891), "11.2 % less"),
        (RSS, (2.2, 2.3, 2.4), "130 % more"),
        (RSS, (0.2, 0.25, 0.3), "75 % less"),
        (RSS, (0.999, 1.0001, 1.002), "no clear direction"),
        (POWER, (2.2, 2.3, 2.4), "130 % higher"),
        (POWER, (1.05, 1.1, 1.16), "10 % higher"),
        (STEP, (1.36, 1.4, 1.43), "1.40× slower"),
        (BLEU, (-12.0, -4.0, 4.0), "4 points lower"),
    ],
)
def test_effect_is_a_size_and_a_word(
    metric: str, bounds: tuple[float, float, float], text: str
) -> None:
    assert wording.effect(_finding(*bounds, metric)) == text


@pytest.mark.parametrize(
    ("metric", "bounds", "text"),
    [
        (RSS, (0.884, 0.888, 0.891), "−11.6 to −10.9 %"),
        (RSS, (0.98, 1.0, 1.03), "−2 to +3 %"),
        (RSS, (2.21, 2.3, 2.4), "+121 to +140 %"),
        (STEP, (0.97, 1.01, 1.04), "1.04× faster to 1.04× slower"),
        (RATE, (0.7, 0.72, 0.75), "1.33–1.43"),
        (BLEU, (-12.0, -4.0, 4.0), "−12 to +4 points"),
    ],
)
def test_interval_has_the_words_of_its_effect(
    metric: str, bounds: tuple[float, float, float], text: str
) -> None:
    assert wording.effect_interval(_finding(*bounds, metric)) == text


def _draw(
    table: pd.DataFrame, strata: Sequence[str] = (), raw: Sequence[RawRun] = ()
) -> dict[str, canvas.Figure]:
    evidence = Evidence(compare(table, strata=strata), table, raw)
    return {drawing.name: canvas.draw(drawing) for drawing in analyses.drawings(evidence)}


def test_all_figures_are_valid() -> None:
    parts = [
        frame(("a", "b", "c"), seed=at, params={"workload": f"w{at}"}, campaign=f"c{at}")
        for at in range(2)
    ]
    table = test_analyses.with_inference(pd.concat(parts, ignore_index=True))
    raw = raw_runs(table, strata=("workload",), maximum=9)
    figures = _draw(table, ("workload",), raw)
    assert list(figures) == ["forest", "latencies", "blocks"]
    for figure in figures.values():
        ET.fromstring(figure.svg)
        assert figure.png.startswith(b"\x89PNG")
        assert "nan" not in re.sub(r"[^ ]*base64,[^ ]*", "", figure.svg).lower()


def test_missing_steps_and_values_of_one_side_are_no_obstacle() -> None:
    table = frame(levels=["a", "b", "c"])
    table.loc[table["framework"] == "b", LATENCY] = np.nan
    table.loc[table["framework"] == "c", ["status", "outcome"]] = ["FAILED", "failed"]
    raw = [
        replace(run, phases={}) if run.level == "b" else run for run in raw_runs(table, maximum=6)
    ]
    evidence = Evidence(compare(table), table, raw)
    assert all(len(make(evidence)) == 1 for make in (runs.latencies, runs.by_level))


def test_long_forest_keeps_the_headlines() -> None:
    table = frame([f"level {at}" for at in range(9)], 6)
    values = 1 + np.random.default_rng(0).random((len(table), 20))
    others = pd.DataFrame(values, columns=[f"custom/m{at}_seconds" for at in range(20)])
    comparison = compare(pd.concat([table, others], axis=1))
    (drawing,) = intervals.forest(Evidence(comparison))
    shown = drawing.paint.args[0]  # type: ignore[attr-defined]
    assert len(shown) == intervals.MAXIMUM_LINES
    metrics = [finding.row.metric for finding in shown]
    assert [metrics.count(metric) for metric in (RATE, LATENCY)] == [8, 8]
    assert f"{len(shown)} of " in drawing.caption
