"""The study of graph optimizers and compilers: its cells, when compiling has paid, a real campaign, its wrong calls."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace

import mlflow
import numpy as np

from experiments.comparison import compare
from experiments.comparison.analyses import ablations
from experiments.comparison.runs.query import table
from experiments.config.settings import parse
from experiments.studies import graph
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs

QUICK = {
    "size": "tiny",
    "models": "bert",
    "batch_size": "4",
    "steps": "3",
    "warmup_steps": "1",
    "threads": "1",
}


def test_every_optimizer_is_off_once_and_every_program_stands_beside() -> None:
    settings = parse(
        graph.Settings,
        graph.STUDY.presets,
        {
            "models": "bert",
            "frameworks": "tensorflow,pytorch",
            "without": "pruning,all",
            "alone": "pruning",
        },
    )
    found = [
        (one.framework, one.settings["program"], one.settings["graph_off"])
        for one in graph.treatments(settings)
    ]
    *others, (framework, program, off) = found
    assert others == [
        *(("tensorflow", "tensorflow", ()), ("pytorch", "pytorch", ())),
        *(("tensorflow", "without pruning", ("pruning",)), ("tensorflow", "without all", ("all",))),
    ]
    assert (framework, program) == ("tensorflow", "only pruning")
    assert not {"pruning", "all"} & set(off)
    assert {"constant_folding", "remapping", "loop_optimization"} < set(off)


def test_compiling_has_paid_when_both_have_taken_as_long() -> None:
    """Against the two sums, step by step."""
    rng = np.random.default_rng(0)
    for first, first_compiled, later, later_compiled in rng.uniform(0.1, 1, (50, 4)) * [
        1,
        50,
        1,
        0.9,
    ]:
        steps = np.arange(1, 100_000)
        eager, compiled = first + (steps - 1) * later, first_compiled + (steps - 1) * later_compiled
        paid = np.flatnonzero(compiled <= eager)
        found = ablations.paid_after(first, first_compiled, later, later_compiled)
        if first_compiled > first and later_compiled < later:
            assert math.ceil(found) == steps[paid[0]] if len(paid) else found > steps[-1]
        else:
            assert found == (1 if first_compiled <= first else math.inf)


def test_the_interval_of_the_median_holds_it_in_19_of_20() -> None:
    """Of skewed values, some infinite, by simulation: 2,000 times, with three standard errors to spare."""
    rng = np.random.default_rng(0)
    for count in (6, 9, 12):
        drawn = rng.lognormal(0, 1.5, (2_000, count))
        drawn[drawn > 20] = math.inf
        held = [one.low <= 1 <= one.high for one in map(ablations.median, drawn.tolist())]
        assert np.mean(held) > 0.95 - 3 * (0.95 * 0.05 / 2_000) ** 0.5
    assert ablations.median([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert ablations.median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == ablations.Estimate(3.5, 1.0, 6.0)


def test_the_report_says_after_how_many_steps() -> None:
    """A step takes 30 ms eagerly and 15 compiled, the first one 0 and 2.99 s more: 199.3 steps; the other way round one."""
    found = []
    for one in runs(("eager", "compiled"), 6, factors={"compiled": 0.5}, spread=1e-9):
        more = 2.99 if one.tags["framework"] == "compiled" else 0.0
        step = one.metrics[ablations.LATER]
        found.append(
            replace(
                one,
                metrics={
                    **one.metrics,
                    ablations.FIRST: step + more * step / (0.015 if more else 0.03),
                },
            )
        )
    comparison = compare(
        table(found),
        factor="framework",
        baseline="eager",
        outcomes=[ablations.FIRST, ablations.LATER],
    )
    (section,) = ablations.break_even(
        comparison, {"eager": ("compiled",), "compiled": ("eager",), "other": ("eager",)}
    )
    assert [row[-3:] for row in section.rows] == [("200", "200–200", "6"), ("1", "1–1", "6")]
    few = compare(
        table(found[:6]),
        factor="framework",
        baseline="eager",
        outcomes=[ablations.FIRST, ablations.LATER],
    )
    (section,) = ablations.break_even(few, {"eager": ("compiled",)})
    assert [row[-3:] for row in section.rows] == [("—", "none from 3 blocks", "3")]


def test_programs_are_measured_and_their_nodes_counted(place: Place) -> None:
    given = QUICK | {
        "frameworks": "tensorflow",
        "without": "all",
        "blocks": "1",
        "others_limit_percent": "100",
        "figures": "false",
    }
    given |= {"cache": str(place.cache), "journal": str(place.journal)}
    called = place.call(
        sys.executable, "-m", "experiments", "graph", *(f"--{k}={v}" for k, v in given.items())
    )
    assert called.returncode == 3, called.stdout + called.stderr  # one block: no verdict
    cells = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")
    found = {run.data.params["program"]: run.data.metrics for run in cells}
    assert found.keys() == {"tensorflow", "without all"}
    for metrics in found.values():
        parts = [
            value for name, value in metrics.items() if re.fullmatch(r"graph/\w+_nodes_after", name)
        ]
        assert sum(parts) == metrics["graph/nodes_after"]
        assert (
            metrics["graph/nodes_before"] == found["tensorflow"]["graph/nodes_before"]
        )  # the same program
    assert found["tensorflow"]["graph/nodes_after"] < found["without all"]["graph/nodes_after"]
    report = next(place.journal.glob("*/report/report.md")).read_text()
    assert re.search(r"\| bert \| without all \| — \| 1 block: no comparison.*\| 2\.5 % \|", report)
    assert re.search(r"\| bert \| tensorflow \| [\d,]+ → [\d,]+ \|", report)
