"""Whole texts of reports: every other test asserts values and codes.

`UPDATE_GOLDEN=1` writes the files anew; what changed is then read in the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from experiments.comparison.analyses import hypotheses, workers
from experiments.comparison.judgement import (
    ComparisonResult,
    ComparisonSpec,
    ReportAddition,
    ReportOptions,
    answer,
)
from experiments.comparison.report import rendering, writing
from experiments.comparison.report.card import Advice
from experiments.comparison.runs.raw import RawRun
from tests.experiments.comparison import test_analyses, test_busy
from tests.experiments.comparison.campaigns import LATENCY, LOSS, RATE, RSS, STEP, frame
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.comparison.test_strata import machines
from tracking.records import BETWEEN_WARNINGS

FOLDER = Path(__file__).parent / "golden"
PUBLISHED = [
    {"what": "throughput", "published": "23 images/s", "metric": RATE},
    {"what": "step of another network", "published": "9 ms", "metric": STEP, "model": "resnet18"},
    {"what": "loss", "published": "3.1", "metric": "val/loss"},
]
Case = tuple[ComparisonSpec, pd.DataFrame, list[RawRun], ReportOptions]


def two_sides() -> Case:
    """Return settled and constant outcomes, a failed run, warnings and published figures."""
    warnings = f"The data are synthetic.{BETWEEN_WARNINGS}RANDOM weights"
    tags = {
        "warnings": warnings,
        "not_available.cpu_energy": "no RAPL",
        "cpu": "2 × Xeon",
        "version.torch": "2.13",
    }
    table = frame(factors={"tensorflow": 1.2}, spread=0.03, tags=tags)
    failed = table["run_id"] == "c1-7-pytorch"
    table.loc[failed, ["status", "outcome", "outcome_reason"]] = [
        "FAILED",
        "failed",
        "killed by SIGKILL",
    ]
    table.loc[table["run_id"] == "c1-2-pytorch", RSS] = np.nan
    spec = ComparisonSpec(
        baseline="pytorch", outcomes=[STEP, RATE, LATENCY, RSS, LOSS, "val/bleu4", "energy/joules"]
    )
    options = ReportOptions(
        "A study · demo",
        PUBLISHED,
        "A paper, 2024",
        notes=["A quiet note."],
        more_blocks=lambda count, _: Advice(
            f"{count} more blocks", ("captioning", "--resume=RUN", f"--blocks={count}")
        ),
    )
    return spec, table, [], options


def strata() -> Case:
    """Return four machines of which one disagrees, several levels and a primary outcome."""
    table = machines([1.2, 1.25, 1.3, 0.8])
    third = table[table["framework"] == "tensorflow"].assign(
        framework="jax", **{"params.framework": "jax"}
    )
    third["run_id"] += "-jax"
    both = pd.concat([table, third.assign(**{RATE: third[RATE] * 1.01})], ignore_index=True)
    spec = ComparisonSpec(
        baseline="pytorch", outcomes=[RATE, STEP, LOSS], primary=[RATE], strata=["machine"]
    )
    return spec, both, [], ReportOptions("Four machines")


def steps() -> Case:
    """Return drifting steps, a broken file, batch sizes, controls, the published procedure."""
    table = test_analyses.with_inference(test_analyses.with_controls())
    raw = raw_runs(table, factors={"tensorflow": 1.05})
    train = raw[3].phases["train"]
    drifting = replace(train, seconds=train.seconds * np.linspace(1, 1.4, len(train.seconds)))
    raw[3] = replace(raw[3], phases={**raw[3].phases, "train": drifting})
    raw[4] = replace(raw[4], phases={}, trouble="values.parquet cannot be read: broken")
    return (
        ComparisonSpec(baseline="pytorch", protocol="paper"),
        table,
        raw,
        ReportOptions("Steps", figures=False),
    )


def learning() -> Case:
    """Return curves that differ, and times to an accuracy that some runs do not reach."""
    table = test_analyses.with_times(3)
    names = {"a": "pytorch", "b": "tensorflow"}
    raw = [replace(run, level=names[run.level]) for run in test_analyses.learning_curves(-0.05)]
    spec = ComparisonSpec(baseline="pytorch", outcomes=["train/total_seconds", "val/loss"])
    options = ReportOptions("Learning", also=_hypotheses, figures=False)
    return spec, table, raw, options


def _hypotheses(comparison: object) -> ReportAddition:
    answers = hypotheses.answered(test_analyses.HYPOTHESES, comparison)  # type: ignore[arg-type]
    return ReportAddition(
        [hypotheses.sentence(answers)], sections=[hypotheses.section(answers, "Goal.")]
    )


def profiles() -> Case:
    spec = ComparisonSpec(baseline="pytorch", strata=["model"], outcomes=[STEP])
    return spec, test_analyses.profiled(), [], ReportOptions("Profiles", figures=False)


def several_workers() -> Case:
    def also(comparison: object) -> ReportAddition:
        return ReportAddition(
            [], sections=workers.sections(comparison, test_analyses.GROUPS, "weak")
        )  # type: ignore[arg-type]

    return (
        ComparisonSpec(baseline="1"),
        test_analyses.campaign(),
        [],
        ReportOptions("Workers", also=also, figures=False),
    )


def sizes() -> Case:
    table = test_analyses.sized()
    spec = ComparisonSpec(factor="batch_size", outcomes=[RATE, STEP])
    return spec, table[table["framework"] == "pytorch"], [], ReportOptions("Sizes", figures=False)


def busy_machine() -> Case:
    table = test_busy.measured({"pytorch": [test_busy.FREE], "tensorflow": [test_busy.LOADED]})
    return ComparisonSpec(baseline="pytorch"), table, [], ReportOptions("Busy", figures=False)


def two_blocks() -> Case:
    return (
        ComparisonSpec(baseline="pytorch"),
        frame(blocks=2),
        [],
        ReportOptions("A quick look", figures=False),
    )


def until_settled() -> Case:
    table = frame(
        ("a", "b"), blocks=13, params={"until": "settled", "blocks": "6", "max_blocks": "18"}
    )
    return (
        ComparisonSpec(outcomes=[STEP, RATE], primary=[STEP]),
        table,
        [],
        ReportOptions("Looks", figures=False),
    )


def nothing_usable() -> Case:
    table = frame().assign(status="FAILED", outcome="failed", outcome_reason="killed by SIGKILL")
    return ComparisonSpec(), table, [], ReportOptions("Nothing", figures=False)


CASES: tuple[Callable[[], Case], ...] = (
    two_sides,
    strata,
    steps,
    learning,
    profiles,
    several_workers,
    sizes,
    busy_machine,
    two_blocks,
    until_settled,
    nothing_usable,
)


def _text(result: ComparisonResult) -> str:
    """Return the report as Markdown, then what the terminal shows."""
    console = Console(width=150, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(rendering.terminal_card(result.card), "", writing.terminal(result.comparison))
    shown = "\n".join(line.rstrip() for line in console.export_text().splitlines())
    lines = result.card.without_answer(result.sentences)
    return "\n".join([result.text("markdown"), "---- terminal ----", *lines, shown, ""])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_text_equals_the_golden_file(case: Callable[[], Case], tmp_path: Path) -> None:
    spec, table, raw, options = case()
    text = _text(answer(spec, table, tmp_path, options, lambda _: raw))
    golden = FOLDER / f"{case.__name__}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
