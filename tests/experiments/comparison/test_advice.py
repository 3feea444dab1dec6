"""What a card tells its reader to do: never against a settled row, never to take what fails."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.cli.campaign import verdict_code
from experiments.cli.codes import CONDITION_HOLDS, DONE
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.report import rendering
from experiments.comparison.report.card import Advice, AnswerCard, build_card
from experiments.comparison.verdicts import conditions
from experiments.comparison.verdicts.findings import Comparison
from tests.experiments.comparison.campaigns import LATENCY, RATE, RSS, STEP, frame
from tracking.errors import ErrorCode, UsageError

FOLDER = Path(__file__).parent / "golden"
WALL, ACCURACY, MEMORY = "wall_seconds", "val/accuracy", "memory/peak_tree_bytes"
# Kind of data -> ratio of time, difference of accuracy, ratio of memory, SD of times.
KINDS = {
    "settled": (1.2, 0.0, 1.0, 0.01),
    "equivalent": (1.0, 0.0, 1.0, 0.005),
    "open": (1.03, 0.0, 1.0, 0.06),
    "failed": (0.8, 0.0, 1.0, 0.01),
    "mixed": (1.08, 0.05, 0.8, 0.01),
}
# Source -> factor, names of time and memory, levels.
SOURCES = {
    "race": ("level", WALL, MEMORY, ("old", "new", "newer")),
    "study": ("framework", STEP, RSS, ("pytorch", "tensorflow", "keras-jax")),
    "foreign": ("params.optimizer", "epoch_seconds", "peak_bytes", ("adam", "sgd", "lion")),
    "sweep": ("treatment", STEP, RSS, ("default", "best", "second")),
}


def table(source: str, kind: str, levels: int, blocks: int = 12) -> pd.DataFrame:
    """Return runs of which the last level differs from the first two, which are equal."""
    factor, seconds, memory, names = SOURCES[source]
    slower, better, smaller, sd = KINDS[kind]
    rng, rows = np.random.default_rng(3), []
    for block in range(blocks):
        for at, level in enumerate(names[:levels]):
            is_last = at == levels - 1
            fails = kind == "failed" and is_last and block % 2 == 1
            reason = {"outcome": "failed", "outcome_reason": "exit code 1"} if fails else {}
            run = {"run_id": f"{level}{block}", "block": str(block), "machine": "box"}
            run |= {"status": "FAILED" if fails else "FINISHED", factor: level, **reason}
            if source != "foreign":
                run |= {"kind": "cell", "campaign": "c", "settings_hash": "h"}
            values = (
                0.1 * np.exp(rng.normal(0, sd)) * (slower if is_last else 1.0),
                0.8 + rng.normal(0, 0.003) + better * is_last,
                7e8 * np.exp(rng.normal(0, 0.001)) * (smaller if is_last else 1.0),
            )
            run |= {} if fails else dict(zip((seconds, ACCURACY, memory), values, strict=True))
            rows.append(run)
    return pd.DataFrame(rows)


def judge(source: str, kind: str, levels: int, **fields: object) -> Comparison:
    factor, seconds, _, names = SOURCES[source]
    primary = (seconds,) if source in ("race", "study") else ()
    spec = ComparisonSpec(factor=factor, baseline=names[0], primary=primary, **fields)  # type: ignore[arg-type]
    return judged(spec, table(source, kind, levels))


def card_of(comparison: Comparison) -> AnswerCard:
    return build_card(comparison, "A card")


@pytest.mark.parametrize("source", SOURCES)
def test_cards_equal_the_golden_file(source: str) -> None:
    """Render cards of all kinds of data, with two and with three levels."""
    parts = []
    for kind in KINDS:
        for levels in (2, 3):
            card = card_of(judge(source, kind, levels))
            text = rendering.render("card.md.j2", card=card)
            parts.append(f"# {kind}, {levels} levels\n\n{text.strip()}\n")
    text, golden = "\n".join(parts), FOLDER / f"cards_{source}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


# ---- failed runs


def test_more_blocks_are_no_advice_while_a_level_fails() -> None:
    """Let 3 of 6 blocks fail: without the failures, 3 more would do."""
    failing = frame(blocks=6)
    rows = failing.index[failing["framework"] == "tensorflow"][-3:]
    cut = failing.drop(rows)
    failing.loc[rows, ["status", "outcome"]] = ["FAILED", "failed"]
    for runs, advised in ((cut, 3), (failing, None)):
        comparison = compare(runs, baseline="pytorch", outcomes=[STEP])
        card = build_card(comparison, "", more_blocks=lambda count, _: Advice(str(count), ()))
        assert (card.advice is None) == (advised is None)
        assert ("3 more blocks" in card.recommendation) == (advised == 3)


def test_memory_limit_is_no_failure() -> None:
    """A size that never fits is a limit of the level; one that fits in some blocks is a failure."""
    small, large = (frame(params={"batch_size": size}) for size in ("8", "64"))
    both = pd.concat([small, large.assign(campaign="c2")], ignore_index=True)
    both["run_id"] = [f"r{at}" for at in range(len(both))]
    never = (both["params.batch_size"] == "64") & (both["framework"] == "tensorflow")
    sometimes = never & (both["block"].astype(int) % 2 == 0)
    for rows, failed in ((never, 0), (sometimes, 4)):
        runs = both.assign(outcome=np.where(rows, "out_of_memory", "ok"))
        comparison = judged(ComparisonSpec(strata=("batch_size",), outcomes=(STEP,)), runs)
        assert sum(failure.failed for failure in comparison.failures) == failed


def test_interrupted_runs_are_no_failures() -> None:
    runs = frame()
    runs["outcome"] = ["interrupted", *["ok"] * (len(runs) - 1)]
    assert compare(runs).failures == ()


@pytest.mark.parametrize(
    ("failed", "fail_if", "code"),
    [
        ({"tensorflow": 8}, "worse", CONDITION_HOLDS),
        ({"tensorflow": 1}, "worse", DONE),
        ({"pytorch": 8}, "worse", DONE),
        ({"tensorflow": 8, "pytorch": 8}, "worse", DONE),
        ({"tensorflow": 1}, "failed", CONDITION_HOLDS),
        ({"tensorflow": 1}, "failed:10", DONE),
        ({"tensorflow": 2}, "failed:10", CONDITION_HOLDS),
        ({"pytorch": 8}, "failed", DONE),
    ],
    ids=str,
)
def test_failed_runs_fail_a_call(failed: Mapping[str, int], fail_if: str, code: int) -> None:
    """Let 8 of 16 runs fail, or 1, against none: p < .01 by Fisher's exact test, or .5."""
    runs = frame(blocks=16)
    for level, count in failed.items():
        rows = runs.index[runs["framework"] == level][-count:]
        runs.loc[rows, ["status", "outcome"]] = ["FAILED", "failed"]
    result = compare(runs, baseline="pytorch", outcomes=[STEP])
    assert verdict_code(conditions.parse([fail_if]), result) == code


@pytest.mark.parametrize("text", ["failed:all", "failed:-1", "failed:100", "failed:nan"])
def test_limit_of_failed_runs_is_a_percentage(text: str) -> None:
    with pytest.raises(UsageError, match="failed:10") as wrong:
        conditions.parse([text])
    assert wrong.value.code is ErrorCode.INVALID_VALUE


@pytest.mark.parametrize("seed", range(40))
def test_advice_never_contradicts_a_settled_row(seed: int) -> None:
    """Random levels, effects, noise, declarations and failures."""
    rng = np.random.default_rng(seed)
    levels = ("a", "b", "c")[: int(rng.integers(2, 4))]
    effects = {level: float(rng.choice([0.8, 0.97, 1.0, 1.02, 1.2])) for level in levels}
    spread = float(rng.choice([0.005, 0.03]))
    runs = frame(levels, int(rng.integers(6, 14)), seed=seed, factors=effects, spread=spread)
    for level in levels:
        is_level = runs["framework"] == level
        runs.loc[is_level, LATENCY] *= rng.choice([0.9, 1.0, 1.1])
        runs.loc[is_level, RSS] *= rng.choice([0.9, 1.0, 1.1])
    if rng.random() < 0.3:
        runs.loc[runs.index[:4], ["status", "outcome"]] = ["FAILED", "failed"]
    declared = [[], [RATE], [RATE, LATENCY], [RSS]][int(rng.integers(4))]
    comparison = compare(runs, baseline="a", primary=declared, all_pairs=bool(rng.random() < 0.5))
    advice = card_of(comparison).recommendation
    settled = [finding for finding in comparison.findings if finding.good is not None]
    failed = {failure.level for failure in comparison.failures}
    for part in re.findall(r"([^.:]+): ([^.:]+)(?:\.|$)", advice.lower()):
        questions, action = part
        chosen = set(action.partition(" over ")[0].removeprefix("choose ").split(" or "))
        if not action.startswith("choose "):
            chosen = set()
        assert not chosen & failed
        for finding in settled:
            question = finding.outcome.question
            if question in questions and is_best(finding.row.metric, comparison):
                loser = finding.row.a if finding.good else finding.row.b
                assert loser not in chosen, (advice, finding.row)
                assert not action.startswith("no difference"), (advice, finding.row)


def is_best(metric: str, comparison: Comparison) -> bool:
    """Return whether a metric is the one that answers its question: the primary or first one."""
    of_metric = [finding for finding in comparison.findings if finding.row.metric == metric]
    if any(finding.primary for finding in of_metric):
        return True
    question, rank = of_metric[0].outcome.headline or ("", 9)
    rivals = [
        finding
        for finding in comparison.findings
        if finding.outcome.question == question and finding.row.metric != metric
    ]
    return not any(
        finding.primary or (finding.outcome.headline or ("", 9))[1] < rank for finding in rivals
    )
