"""The card: one object, the same in every format, and an answer that can be read aloud."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonResult, ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import card as cards
from experiments.comparison.report import rendering, wording
from experiments.comparison.runs import environment
from experiments.comparison.runs.raw import RawRun, ShownRun
from experiments.comparison.verdicts import outlook
from tests.experiments.comparison.campaigns import LATENCY, RATE, STEP, frame, paired

TAGS = {
    "cpu": "2 × Xeon",
    "gpu": "H100",
    "version.torch": "2.13",
    "version.tensorflow": "2.20",
    "warnings": "Data are synthetic.",
}


def _no_steps(shown: Sequence[ShownRun]) -> list[RawRun]:
    del shown
    return []


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    """Training is settled, latency is not, although latency was declared first."""
    spec = ComparisonSpec(primary=(LATENCY, RATE), baseline="pytorch", outcomes=(LATENCY, RATE))
    table = frame(factors={"tensorflow": 1.2}, tags=TAGS, spread=0.03)
    return answer(
        spec, table, tmp_path_factory.mktemp("card"), ReportOptions("Captioning · demo"), _no_steps
    )


def test_what_is_settled_comes_before_what_is_not(result: ComparisonResult) -> None:
    assert [one.verdict for one in result.card.outcomes] == ["slower", "inconclusive"]
    assert result.card.answer.startswith(
        "In this campaign TensorFlow trains 1.18× slower than PyTorch; not settled: median inference latency."
    )
    told = wording.sentences(result.comparison)
    assert told[0].startswith("tensorflow trains 1.18× slower")
    assert told[1].startswith("Median inference latency: no verdict")


def test_every_format_shows_the_same_answer_and_facts(result: ComparisonResult) -> None:
    card = result.card
    assert result.report is not None
    console = Console(width=400)
    with console.capture() as shown:
        console.print(rendering.terminal_card(card))
    texts = {
        "page": result.report.read_text(encoding="utf-8"),
        "markdown": (result.report.parent / "card.md").read_text(encoding="utf-8"),
        "report.md": (result.report.parent / "report.md").read_text(encoding="utf-8"),
        "description": rendering.description_card(card),
        "terminal": shown.get(),
    }
    assert list(card.facts) == [
        "Model",
        "Data",
        "CPU",
        "GPU",
        "Versions",
        "Date",
        "Duration",
        "Runs",
        "Precision",
    ]
    assert (card.facts["Model"], card.facts["Data"]) == ("m", "d")
    for form, text in texts.items():
        for told in (card.answer, card.question, *card.facts.values()):
            assert told in text, (form, told)


def test_figures_for_the_campaign_are_those_of_the_rows_in_four_digits(
    result: ComparisonResult,
) -> None:
    """Half a unit of the fourth digit is at most 5e-4 of a value; the bounds are rounded outwards, at most a whole unit."""
    told = dict(result.card.figures)
    for row in result.comparison.rows:
        ratio, low, high = (
            told.pop(f"verdict/{row.metric}/{name}") for name in ("ratio", "low", "high")
        )
        assert None not in (row.estimate, row.ci_low, row.ci_high)
        assert ratio == pytest.approx(row.estimate, rel=5e-4)
        assert row.ci_low * (1 - 1e-3) < low <= row.ci_low  # type: ignore[operator]
        assert row.ci_high <= high < row.ci_high * (1 + 1e-3)  # type: ignore[operator]
        assert [float(f"{value:.4g}") for value in (ratio, low, high)] == [ratio, low, high]
    assert told == {}


@pytest.mark.parametrize(
    ("interval", "logged"),
    [
        ((1.0, 0.99994, 1.00004), (1.0, 0.9999, 1.001)),
        ((0.0123456, -0.0000123456, 0.0250001), (0.01235, -1.235e-05, 0.02501)),
        ((None, None, 2.0), (None, None, 2.0)),
        ((1.5, 1.0, math.inf), (1.5, 1.0, math.inf)),
    ],
)
def test_a_bound_is_never_rounded_across_what_it_has_not_passed(interval: Any, logged: Any) -> None:
    assert wording.logged(*interval) == logged


def test_a_loss_of_quality_is_in_the_head_though_it_is_exploratory() -> None:
    """Five points of accuracy are lost, which nobody declared; half a point is none."""
    rng = np.random.default_rng(1)
    table = frame(factors={"tensorflow": 1.2}, blocks=8)
    for points, said in ((0.05, "5.0"), (0.005, "")):
        lost = np.where(table["framework"] == "tensorflow", points, 0.0)
        table["val/accuracy"] = 0.9 - lost + rng.normal(0, 0.002, len(table))
        comparison = compare(table, baseline="pytorch", primary=[RATE])
        answer = cards.build_card(comparison, "A study").answer
        assert (
            "Quality differs (exploratory): validation accuracy of TensorFlow is 0.05" in answer
        ) is bool(said)
    declared = compare(table, baseline="pytorch", primary=[RATE, "val/accuracy"])
    assert "exploratory" not in cards.build_card(declared, "A study").answer


@pytest.mark.parametrize(("hours", "spread"), [(0.25, 0.5), (25.0, 0.06)])
def test_blocks_that_nobody_would_run_are_not_asked_for(hours: float, spread: float) -> None:
    """A hundred blocks may not be enough with an SD of 50 %, nor is a day where each takes 25 hours."""
    noise = np.random.default_rng(0).permutation(
        np.linspace(-1, 1, 8)
    )  # blocks know nothing of each other
    shifts = spread * noise / noise.std(ddof=1)
    table = paired([1.0] * 8, list(np.exp(shifts)), LATENCY)
    at = 3_600_000 * hours * (table["block"] + (table["framework"] == "b") / 2)
    comparison = compare(
        table.assign(start_ms=at, end_ms=at + 1_800_000 * hours),
        outcomes=[LATENCY],
        primary=[LATENCY],
    )
    (one,) = comparison.findings
    assert one.plan is None
    assert outlook.more_blocks(one) == 0
    said = cards.build_card(comparison, "A study").answer
    ways = "longer cells, an idle machine or pairing=interleaved may help"
    assert said.endswith(f"How many more blocks would settle it cannot be predicted; {ways}.")
    assert one.row.reason.endswith(ways)
    assert not re.search(r"\d+ more block", said + one.row.reason)


def test_the_duration_is_each_campaigns_own() -> None:
    """Two campaigns a day apart: the day between them is nobody's machine time."""
    first, second = frame(blocks=2, campaign="c1"), frame(blocks=2, campaign="c2")
    second[["start_ms", "end_ms"]] += 86_400_000
    table = first.merge(second, how="outer")
    span = environment.span(table)
    assert span is not None
    own = [(one["end_ms"].max() - one["start_ms"].min()) / 1_000 for one in (first, second)]
    assert math.isclose(span.seconds, sum(own))
    assert span.days == "2025-10-09 to 2025-10-10"
    assert environment.span(paired([1.0], [1.0], STEP)) is None
