"""Rules that every sentence keeps, in both directions, for one, two and many blocks."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.analyses import batch_sizes, costs, hypotheses
from experiments.comparison.analyses.batch_sizes import Limit, LimitReason
from experiments.comparison.analyses.costs import Answer, Cost
from experiments.comparison.report import card as cards
from experiments.comparison.report import wording
from experiments.comparison.runs.order import Order, warnings
from experiments.comparison.statistics.estimates import Estimate
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Finding
from experiments.metrics import Hypothesis
from tests.experiments.comparison.campaigns import LATENCY, LOSS, RATE, RSS, STEP, frame

POWER, BLEU = "power/watts_mean", "val/bleu4"
METRICS = (RATE, STEP, LATENCY, RSS, POWER, LOSS, BLEU, "own/score")
LEVELS = {"framework": ("PyTorch", "TensorFlow"), "params.threads": ("threads=1", "threads=2")}
FORBIDDEN = re.compile(
    r"\b1 (blocks|runs|strata|points|warnings)\b"  # number and noun disagree
    r"|(?<![\d.])1(\.0+)?×|(?<![\d.])0\.\d+×"  # no difference, or to be inverted
    r"|× (lower|higher|less|more)|−|None|nan|  |\.\.|;\.|: [.;]"
)


def check(text: str, *names: str) -> None:
    """Assert the rules of a sentence; an interval in parentheses may have signs."""
    outside = re.sub(r" ?\([^()]*\)", "", text)
    assert not FORBIDDEN.search(outside), text
    assert text.endswith("."), text
    assert text[0].isupper() or text.startswith(names), text
    assert all(name in text for name in names), text
    for number in re.finditer(r"(\d)×(.{0,8})", outside):
        assert number[2].startswith((" faster", " slower")), text


def table(blocks: int, size: float, factor: str) -> pd.DataFrame:
    """Return blocks of two levels that differ by about a size in every metric."""
    runs = frame(blocks=blocks, factors={"tensorflow": size}, spread=0.01)
    rng = np.random.default_rng(blocks)
    is_b = runs["framework"] == "tensorflow"
    noise = rng.normal(0, 0.004, (len(METRICS), len(runs)))
    for at, metric in enumerate(METRICS):
        base = {BLEU: 60.0, LOSS: 0.5}.get(metric, 100.0)
        shift = (size - 1) * (10 if metric in (BLEU, LOSS) else base)
        runs[metric] = base + np.where(is_b, shift, 0) + base * noise[at]
    if factor != "framework":
        runs[factor] = np.where(is_b, "2", "1")
        runs["framework"] = "pytorch"
    return runs


@pytest.mark.parametrize("factor", LEVELS)
@pytest.mark.parametrize(
    ("blocks", "size"),
    [
        (1, 1.1),
        (2, 0.9),
        (3, 1.1),
        *((6, size) for size in (0.3, 0.9, 0.995, 1.0, 1.004, 1.1, 3.2)),
    ],
)
def test_every_verdict_is_a_sentence(blocks: int, size: float, factor: str) -> None:
    comparison = compare(table(blocks, size, factor), factor=factor, outcomes=METRICS)
    for finding in comparison.findings:
        text = wording.sentence(finding)
        check(text, *LEVELS[factor])
        if finding.decision is Decision.DIFFERENT and finding.outcome.unit:
            words = {*finding.outcome.words, "less", "more", "much", "high"}
            assert any(word in text for word in words), text
        check(wording.at_a_look(finding, 30.0), *LEVELS[factor])
    card = cards.build_card(comparison, "A study")
    for text in filter(None, (card.settled, card.unsettled, card.recommendation)):
        check(text, *(LEVELS[factor] if text is card.settled else ()))
    questions = [Hypothesis("H1", "Alike?", "training", metric, "") for metric in METRICS]
    answers = hypotheses.answered(questions, comparison)
    check(hypotheses.sentence(answers))
    assert all(hypotheses.text(answer) for answer in answers)


@pytest.mark.parametrize("decision", Decision)
def test_every_decision_has_a_sentence(decision: Decision) -> None:
    findings = compare(table(6, 1.1, "framework"), outcomes=METRICS).findings
    intervals = ((0.8, 0.97), (0.98, 1.3), (1.02, 1.4), (2.1, 2.6))
    for finding, (low, high), blocks in itertools.product(findings, intervals, (1, 2, 24)):
        bounds = {"estimate": (low * high) ** 0.5, "ci_low": low, "ci_high": high}
        if finding.row.kind == "difference":
            bounds = {name: (bound - 1) * 10 for name, bound in bounds.items()}
        row = replace(finding.row, n_blocks=blocks, reason="a reason", **bounds)
        check(wording.sentence(replace(finding, row=row, decision=decision)), "PyTorch")


@pytest.mark.parametrize(
    ("metric", "bounds", "text"),
    [
        (RSS, (0.884, 0.888, 0.891), "11.2 % less"),
        (RSS, (2.2, 2.3, 2.4), "2.3 times as much"),
        (RSS, (0.2, 0.25, 0.3), "75 % less"),
        (RSS, (0.999, 1.0001, 1.002), "about equal"),
        (POWER, (2.2, 2.3, 2.4), "2.3 times as high"),
        (POWER, (1.05, 1.1, 1.16), "10 % higher"),
        (STEP, (1.36, 1.4, 1.43), "1.40× slower"),
        (BLEU, (-12.0, -4.0, 4.0), "4 points lower"),
    ],
)
def test_effect_is_a_size_and_a_word(
    metric: str, bounds: tuple[float, float, float], text: str
) -> None:
    assert wording.effect(_with_interval(metric, bounds)) == text


@pytest.mark.parametrize(
    ("metric", "bounds", "text"),
    [
        (RSS, (0.884, 0.888, 0.891), "10.9–11.6 %"),
        (RSS, (0.98, 1.0, 1.03), "−2 to +3 %"),
        (RSS, (2.21, 2.3, 2.4), "2.2–2.4 times"),
        (STEP, (0.97, 1.01, 1.04), "1.04× faster to 1.04× slower"),
        (RATE, (0.7, 0.72, 0.75), "1.33–1.43"),
        (BLEU, (-12.0, -4.0, 4.0), "−12 to +4 points"),
    ],
)
def test_interval_has_the_words_of_its_effect(
    metric: str, bounds: tuple[float, float, float], text: str
) -> None:
    assert wording.effect_interval(_with_interval(metric, bounds)) == text


def _with_interval(metric: str, bounds: tuple[float, float, float]) -> Finding:
    (finding,) = compare(table(6, 1.1, "framework"), outcomes=[metric]).findings
    low, value, high = bounds
    return replace(finding, row=replace(finding.row, estimate=value, ci_low=low, ci_high=high))


def test_open_difference_states_both_ends() -> None:
    finding = replace(_with_interval(BLEU, (-12.0, -4.0, 4.0)), decision=Decision.OPEN)
    assert wording.sentence(finding) == (
        "Not settled: BLEU-4: TensorFlow is between 12 points lower and 4 points higher than "
        "PyTorch (95 % CI, 6 blocks)."
    )


@pytest.mark.parametrize("count", [1, 2, 30])
def test_sentences_of_analyses_agree_in_number(count: int) -> None:
    for value in (0.9, 1.02, 2.5):
        ratio = Estimate(value, value - 0.01, value + 0.01)
        points = [Cost("step", "x", "harness", ratio, 1, 6, answer) for answer in Answer] * count
        mean = Cost("step", "PyTorch", "harness", ratio, 3 * count, 6, Answer.SHOWN)
        for text in costs.sentences([*points[:count], mean]):
            check(text)
    for reason in LimitReason:
        curve = batch_sizes.Curve("training", "a", "", {8: 1.0}, Limit(reason, blocks=count))
        check(wording.capitalised(curve.reason))
    order = Order("a", "b", n_ordered=20, a_first=20, n_timed=8, apart=("1",) * count)
    for warning in warnings([replace(order, longest_ms=9e6)]):
        check(str(warning))
    check(wording.capitalised(order.refused))


def test_conflicting_objectives_are_both_named() -> None:
    runs = table(8, 1.3, "framework")  # a longer latency, but more examples a second
    card = cards.build_card(compare(runs, outcomes=[RATE, LATENCY]), "A study")
    assert card.recommendation == "Choose TensorFlow for training but PyTorch for inference."
    equal = cards.build_card(compare(table(24, 1.0, "framework"), outcomes=[RATE]), "A study")
    assert equal.recommendation == "Choose either; no difference of 3 % or more."


def test_conditions_are_those_of_all_runs() -> None:
    runs = table(6, 1.1, "framework").assign(
        **{"params.threads": "1", "params.malloc": "keep", "params.batch_size": "32"}
    )
    runs["params.device"] = np.where(runs.index % 2, "cpu", "cuda")
    card = cards.build_card(compare(runs, outcomes=[RATE], allowed_to_differ=["device"]), "A study")
    assert card.conditions == (
        "one campaign · threads: 1 · batch size: 32 · memory allocator: keep · device: several"
    )


def test_random_weights_leave_quality_out_of_the_primary_outcomes() -> None:
    runs = table(6, 1.1, "framework").assign(**{"tags.weights": "random"})
    comparison = compare(runs, primary=[RATE, BLEU], outcomes=METRICS)
    assert comparison.primary == (RATE,)
    (line,) = [
        line for line in cards.build_card(comparison, "A study").outcomes if line.label == "quality"
    ]
    assert (line.effect, line.verdict) == ("not judged", "random weights")
    trained = compare(runs.assign(**{"tags.weights": "imagenet"}), primary=[RATE, BLEU])
    assert trained.primary == (RATE, BLEU)


@pytest.mark.parametrize("blocks", [1, 2])
def test_smoke_test_has_values_only(blocks: int) -> None:
    runs = table(blocks, 1.1, "framework").assign(**{"params.preset": "smoke"})
    comparison = compare(runs, outcomes=METRICS)
    card = cards.build_card(comparison, "A study")
    assert (card.answer, card.outcomes, card.figures) == ("Smoke test: no verdict.", [], {})
    assert wording.sentences(comparison) == ["Smoke test: no verdict."]


def test_busy_machine_is_said_in_one_sentence() -> None:
    finding = busy.withhold(
        _with_interval(RATE, (0.7, 0.72, 0.75)), "other programs used 37 % of the CPU"
    )
    (warning,) = busy.warning([finding])
    check(str(warning))


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((0.8, 0.82), "Choose PyTorch for training."),
        ((0.8, 1.25), "Training: the choice depends on the stratum."),
    ],
)
def test_two_strata_are_chosen_by_if_they_agree(sizes: tuple[float, float], text: str) -> None:
    parts = [
        table(8, size, "framework").assign(machine=f"m{at}", campaign=f"c{at}")
        for at, size in enumerate(sizes)
    ]
    runs = pd.concat(parts, ignore_index=True)
    runs["run_id"] = runs["campaign"] + runs["run_id"]
    comparison = compare(runs, outcomes=[RATE], strata="machine")
    assert cards.build_card(comparison, "A study").recommendation == text
