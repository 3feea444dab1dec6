"""Tests of the answer card: the same in every format, and an answer that can be read aloud."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonResult, ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import card as cards
from experiments.comparison.report import rendering, wording
from experiments.comparison.runs import environment
from experiments.comparison.verdicts import sample_size
from tests.experiments.comparison.campaigns import LATENCY, RATE, STEP, frame, paired

TAGS = {"cpu": "2 × Xeon", "gpu": "H100", "version.torch": "2.13", "warnings": "Synthetic data."}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    """Result in which training is settled; latency is not, although it was declared first."""
    spec = ComparisonSpec(primary=(LATENCY, RATE), baseline="pytorch", outcomes=(LATENCY, RATE))
    table = frame(factors={"tensorflow": 1.2}, tags=TAGS, spread=0.03)
    folder = tmp_path_factory.mktemp("card")
    return answer(spec, table, folder, ReportOptions("Captioning · demo"), lambda _: [])


def test_settled_outcomes_come_first(result: ComparisonResult) -> None:
    card = result.card
    assert [outcome.verdict for outcome in card.outcomes] == ["slower", "inconclusive"]
    training, latency = (outcome.effect for outcome in card.outcomes)
    assert (training in card.settled, "Not settled" in card.unsettled) == (True, True)
    assert latency in card.unsettled
    assert [card.outcomes[0].effect in result.sentences[0], len(result.sentences)] == [True, 2]


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


@pytest.mark.parametrize("levels", [("pytorch", "tensorflow"), ("keras-torch", "a", "b")])
@pytest.mark.parametrize("blocks", [1, 2, 8])
@pytest.mark.parametrize("factor", [0.5, 0.99, 1.0, 1.02, 2.0])
def test_every_sentence_names_a_direction_once(
    levels: tuple[str, ...], blocks: int, factor: float
) -> None:
    comparison = compare(frame(levels, blocks, factors={levels[1]: factor}, spread=0.02))
    for finding in comparison.findings:
        text = wording.sentence(finding)
        assert text.endswith(".")
        assert not any(word in text for word in ("1.00× slower", "1 blocks", "  ", "None"))
        shown: Any = finding.times
        if shown and finding.judged and finding.different:
            is_greater = (finding.row.estimate or 0) > 1
            words = (finding.outcome.words[is_greater], ("less", "more")[is_greater])
            assert any(word in text for word in words)
