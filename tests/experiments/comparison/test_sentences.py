"""Rules that every sentence keeps, in both directions, for one, two and many blocks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import create_trial

from experiments.comparison import compare
from experiments.comparison.analyses import (
    Evidence,
    batch_sizes,
    breakdown,
    controls,
    hypotheses,
    learning,
    memory_limits,
    workers,
)
from experiments.comparison.analyses.batch_sizes import Limit, LimitReason
from experiments.comparison.report import card as cards
from experiments.comparison.report import tables, wording
from experiments.comparison.report.sections import Section
from experiments.comparison.runs.order import Order, warnings
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Edge, Finding
from experiments.metrics import Hypothesis
from experiments.sweep import results, winners
from tests.experiments.comparison import (
    test_breakdown,
    test_controls,
    test_learning,
    test_workers,
)
from tests.experiments.comparison.campaigns import LATENCY, LOSS, RATE, RSS, STEP, frame
from tests.experiments.sweep.test_search import make_goal

POWER, BLEU = "power/watts_mean", "val/bleu4"
METRICS = (RATE, STEP, LATENCY, RSS, POWER, LOSS, BLEU, "own/score")
LEVELS = {"framework": ("PyTorch", "TensorFlow"), "params.threads": ("threads=1", "threads=2")}
FORBIDDEN = re.compile(
    r"(?<!of )\b1 (blocks|runs|strata|points|warnings|trials|outcomes|steps)\b"  # do not agree
    r"|(?<![\d.])1(\.0+)?×|(?<![\d.])0\.\d+×"  # no difference, or to be inverted
    r"|× (lower|higher|less|more)|−(?! )|None|nan|  |\.\.|;\.|: [.;]"
)
IN_A_CELL = re.compile(r"(?<!of )\b1 (blocks|runs|trials)\b|\bNone\b|\b(nan|inf)\b|  |\.\.|[;,]$")
COUNT = re.compile(r"^\d+ \w+")  # a sentence may begin with it
Make = Callable[[int, float], Sequence[Section]]


def check(text: str, *names: str) -> None:
    """Assert the rules of a sentence; an interval in parentheses may have signs."""
    outside = re.sub(r" ?\([^()]*\)", "", text)
    assert not FORBIDDEN.search(outside), text
    assert text.endswith("."), text
    assert text[0].isupper() or text.startswith((*names, METRICS[-1])), text
    assert all(name in text for name in names), text
    for number in re.finditer(r"(\d)×(.{0,8})", outside):
        assert number[2].startswith((" faster", " slower")), text


def check_section(section: Section) -> None:
    """Assert the rules of a table: caption and notes are sentences, its cells have values."""
    assert section.rows
    for text in filter(None, (section.caption, *(note.text for note in section.notes))):
        check(text, *COUNT.findall(text))
    names = [column.name for column in section.columns]
    distinct = [name for name in names if name != "95 % interval"]
    assert len(distinct) == len(set(distinct)), distinct
    cells = [cell for line in section.lines if not isinstance(line, str) for cell in line]
    for text in (section.title, section.hint, *names, *(f"{c.text} {c.note}" for c in cells)):
        assert not IN_A_CELL.search(text.strip()), text
        assert not text.endswith("."), text


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
        state = ("not settled", "settled")[finding.judged]
        assert wording.at_a_look(finding).endswith(f", {state}")
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


def test_open_difference_states_estimate_and_interval() -> None:
    finding = replace(_with_interval(BLEU, (-12.0, -4.0, 4.0)), decision=Decision.OPEN)
    assert wording.sentence(finding) == (
        "Not settled: BLEU-4: TensorFlow is about 4 points lower than PyTorch "
        "(95 % CI −12 to +4 points, 6 blocks)."
    )


@pytest.mark.parametrize("count", [1, 2, 30])
def test_sentences_of_analyses_agree_in_number(count: int) -> None:
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


def first_blocks(runs: pd.DataFrame, blocks: int) -> pd.DataFrame:
    return runs[runs["block"].astype(int) < blocks]


def times_to_accuracy(blocks: int, size: float) -> list[Section]:
    runs = first_blocks(test_learning.with_times(blocks // 2), blocks)
    baseline = "pytorch" if size > 1 else "tensorflow"
    return learning.times_to_accuracy(Evidence(compare(runs, baseline=baseline)))


def speed_ups(blocks: int, size: float) -> list[Section]:
    runs = test_workers.campaign(blocks)
    runs.loc[runs["framework"] != "1", RATE] *= size / 2
    comparison = compare(runs)
    return [
        section
        for scaling in workers.SHARES
        for section in workers.sections(comparison, test_workers.GROUPS, scaling)
    ]


def step_parts(blocks: int, size: float) -> list[Section]:
    runs = first_blocks(test_breakdown.profiled(), blocks)
    strata = ("model",) if size > 1 else ()
    return breakdown.table(Evidence(compare(runs, strata=strata)))


def limits(blocks: int, size: float) -> list[Section]:
    edges = [Edge("pytorch", "", 32 if size > 1 else None, 64, "train")] * blocks
    comparison = replace(compare(frame(blocks=blocks)), frontier=tuple(edges))
    return memory_limits.table(Evidence(comparison))


def controlled(blocks: int, size: float) -> list[Section]:
    runs = first_blocks(test_controls.with_controls(size), blocks)
    evidence = Evidence(compare(runs, baseline="pytorch"))
    for text in controls.sentences(evidence):
        check(text)
    return controls.sections(evidence)


@pytest.mark.parametrize("blocks", [1, 2, 8])
@pytest.mark.parametrize("size", [0.8, 1.25])
@pytest.mark.parametrize(
    "make",
    [times_to_accuracy, speed_ups, step_parts, limits, controlled],
)
def test_tables_of_analyses_keep_the_rules(make: Make, size: float, blocks: int) -> None:
    sections = make(blocks, size)
    assert sections
    for section in sections:
        check_section(section)


@pytest.mark.parametrize("objectives", ["throughput:max", "throughput:max,memory:min"])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_results_of_a_sweep_are_sentences(objectives: str, count: int) -> None:
    goal = make_goal(objectives=objectives)
    sizes = {"batch_size": IntDistribution(1, 64)}
    values = [100.0] * len(goal.objectives)
    trials = [
        create_trial(
            params={"batch_size": at + 1},
            distributions=sizes,
            values=values,
            user_attrs={"machine": str(at)},
        )
        for at in range(count)
    ]
    best = winners.select(trials if len(values) > 1 else trials[:1])
    for text in results.sentences(trials, best, goal):
        check(text, *COUNT.findall(text))
    for trial in best:
        words = winners.command("captioning", trial, goal.dimensions).split()
        assert words[-1] == f"--batch_size={trial.params['batch_size']}"


@pytest.mark.parametrize("blocks", [1, 2])
def test_terminal_has_the_answer_of_a_smoke_test_once(blocks: int) -> None:
    runs = table(blocks, 1.1, "framework").assign(**{"params.preset": "smoke"})
    comparison = compare(runs, outcomes=METRICS)
    card = cards.build_card(comparison, "A study")
    assert card.without_answer([*wording.sentences(comparison), "Stopped."]) == ["Stopped."]
    assert not tables.verdicts(comparison).caption
