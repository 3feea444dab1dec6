"""Study of graph optimizers and compilers: its cells, when compiling has paid, a campaign."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from experiments.comparison import compare
from experiments.comparison.analyses import ablations
from experiments.comparison.runs.query import table
from experiments.config.settings import parse
from experiments.studies import graph
from tests.conftest import Place
from tests.experiments.comparison.campaigns import runs
from tests.experiments.small_campaigns import cells, run


def test_optimizers_are_off_once_and_programs_stand_next_to_them() -> None:
    options = {"models": "bert", "frameworks": "tensorflow,pytorch"}
    options |= {"without": "pruning,all", "alone": "pruning"}
    treatments = graph.treatments(parse(graph.Settings, graph.STUDY.presets, options))
    off = {cell.settings["program"]: cell.settings["graph_off"] for cell in treatments}
    others = off.pop("only pruning")
    assert off == {
        "tensorflow": (),
        "pytorch": (),
        "without pruning": ("pruning",),
        "without all": ("all",),
    }
    assert not {"pruning", "all"} & set(others)
    assert {"constant_folding", "remapping", "loop_optimization"} < set(others)
    assert [cell.framework for cell in treatments].count("tensorflow") == 4


def test_compiling_has_paid_when_both_have_taken_as_long() -> None:
    """Compare with the two sums, step by step."""
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
        estimate = ablations.paid_after(first, first_compiled, later, later_compiled)
        if first_compiled > first and later_compiled < later:
            assert math.ceil(estimate) == steps[paid[0]] if len(paid) else estimate > steps[-1]
        else:
            assert estimate == (1 if first_compiled <= first else math.inf)


def test_interval_of_the_median_covers_it_in_19_of_20() -> None:
    """Simulate 2,000 skewed samples, some infinite, with three standard errors to spare."""
    rng = np.random.default_rng(0)
    for count in (6, 9, 12):
        samples = rng.lognormal(0, 1.5, (2_000, count))
        samples[samples > 20] = math.inf
        covers = [
            median.low <= 1 <= median.high for median in map(ablations.median, samples.tolist())
        ]
        assert np.mean(covers) > 0.95 - 3 * (0.95 * 0.05 / 2_000) ** 0.5
    assert ablations.median([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert ablations.median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == ablations.Estimate(3.5, 1.0, 6.0)


def test_report_has_the_steps_after_which_compiling_has_paid() -> None:
    """A step takes 30 ms eagerly and 15 compiled, the first one 2.99 s more: 199.3 steps."""
    pairs = []
    for run_ in runs(("eager", "compiled"), 6, factors={"compiled": 0.5}, spread=1e-9):
        more = 2.99 if run_.tags["framework"] == "compiled" else 0.0
        step = run_.metrics[ablations.LATER]
        first = step + more * step / (0.015 if more else 0.03)
        pairs.append(replace(run_, metrics={**run_.metrics, ablations.FIRST: first}))

    def rows(pairs: list, programs: dict[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
        outcomes = [ablations.FIRST, ablations.LATER]
        comparison = compare(table(pairs), factor="framework", baseline="eager", outcomes=outcomes)
        (section,) = ablations.break_even(comparison, programs)
        return [row[-3:] for row in section.rows]

    both = {"eager": ("compiled",), "compiled": ("eager",), "other": ("eager",)}
    assert rows(pairs, both) == [("200", "200–200", "6"), ("1", "1–1", "6")]
    ((estimate, _, blocks),) = rows(pairs[:6], {"eager": ("compiled",)})
    assert (estimate, blocks) == ("—", "3")


def test_programs_are_measured_and_their_nodes_counted(place: Place) -> None:
    sizes = {"size": "tiny", "models": "lenet", "batch_size": "4"}
    steps = {"steps": "3", "warmup_steps": "1"}
    run(place, "graph", frameworks="tensorflow", without="all", **sizes, **steps)
    programs = {cell.data.params["program"]: cell.data.metrics for cell in cells(place)}
    assert programs.keys() == {"tensorflow", "without all"}
    for metrics in programs.values():
        parts = [
            value for name, value in metrics.items() if re.fullmatch(r"graph/\w+_nodes_after", name)
        ]
        assert sum(parts) == metrics["graph/nodes_after"]
    whole, without = programs["tensorflow"], programs["without all"]
    assert whole["graph/nodes_before"] == without["graph/nodes_before"], "the same program"
    assert whole["graph/nodes_after"] < without["graph/nodes_after"]
