"""Overhead study: its cells, its answers and their intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.analyses import costs
from experiments.comparison.analyses.costs import Answer, Cost
from experiments.comparison.runs.query import table
from experiments.comparison.statistics import estimates
from experiments.config.settings import parse
from experiments.contract import Treatment
from experiments.run.plan import of_study
from experiments.studies import overhead
from tests.conftest import Place
from tests.experiments.comparison.campaigns import STEP, runs
from tests.experiments.small_campaigns import cells, run
from tests.models.children import run_in


def test_points_have_a_plain_loop_and_the_harness() -> None:
    options = {"preset": "proof", "frameworks": "pytorch,tensorflow"}
    plan = of_study(overhead.STUDY, parse(overhead.Settings, overhead.STUDY.presets, options))
    assert (plan.baseline, plan.factor) == ("plain", "harness")
    points: dict[str, list[Treatment]] = {}
    for cell in plan.treatments:
        points.setdefault(cell.group, []).append(cell)
    assert len(points) == 2 * 3 * 2  # frameworks, networks, batch sizes
    for plain, harness in points.values():
        assert (plain.stage, harness.stage) == ("plain", "measure")
        assert dict(plain.settings, harness="") == dict(harness.settings, harness="")
        side = 28 if plain.settings["model"] == "lenet" else 40
        assert plain.settings["image_size"] == side


def test_clock_of_the_plain_loop_holds_only_the_work_of_the_device(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 20 ms and a request 10; a copy, of 30 ms, is outside of both clocks."""
    costs_ = {name: {"step": 0.02, "infer": 0.01, "copy": 0.03} for name in ("toy", "toy+stock")}
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(costs_))
    options = {"models": "lenet", "batch_sizes": "1", "seconds": "0.05"}
    output = run(place, "overhead", frameworks="toy,toy+stock", **options)
    harnesses = sorted(cell.data.params["harness"] for cell in cells(place))
    assert harnesses == ["evenhand", "evenhand", "plain", "plain"]
    for cell in cells(place):
        assert 0.02 <= cell.data.metrics["train/step_seconds"] < 0.045
        assert 0.01 <= cell.data.metrics["inference/latency_seconds_p50"] < 0.035
    assert len({round(cell.data.metrics["train/loss"], 5) for cell in cells(place)}) == 1
    assert "shown at 0, not shown at 4, refuted at 0" in output


def judge(
    ratios: Mapping[str, float], spread: float, blocks: int = 8
) -> tuple[pd.DataFrame, list[Cost]]:
    """Judge two networks in frameworks whose steps take so many times as long as the plain ones."""
    pairs = []
    for seed, (framework, model) in enumerate(product(ratios, ("lenet", "resnet18"))):
        factors = {"evenhand": ratios[framework]}
        params = {"network": model, "runs_in": framework}
        of_point = runs(
            ("plain", "evenhand"), blocks, seed=seed, factors=factors, spread=spread, params=params
        )
        pairs += [replace(run_, run_id=f"{run_.run_id}-{seed}") for run_ in of_point]
    comparison = compare(
        table(pairs),
        factor="framework",
        baseline="plain",
        strata=("runs_in", "network"),
        outcomes=[STEP],
    )
    return table(pairs), costs.judged(comparison, (STEP,), 0.02)


def test_bound_is_shown_refuted_or_open() -> None:
    """Use 0.1 % of noise and eight blocks: intervals are some tenths of a percent wide."""
    _, results = judge({"a": 1.005, "b": 1.05, "c": 1.02}, spread=0.001)
    answers = {(cost.where, cost.strata): cost.answer for cost in results}
    for framework, answer in {"a": Answer.SHOWN, "b": Answer.REFUTED}.items():
        for model in ("lenet", "resnet18"):
            assert answers[f"runs_in={framework}, network={model}", 1] == answer
        assert answers[f"runs_in={framework}", 2] == answer
    assert answers["runs_in=c", 2] == Answer.NOT_SHOWN
    assert any(
        "runs_in=b" in sentence and "105" in sentence for sentence in costs.sentences(results)
    )
    assert len(costs.section(results, 0.02).rows) == len(results) == 9


def test_ratios_have_the_t_interval_of_their_logarithms() -> None:
    """Compare with SciPy, for each network and for the mean over both, block by block."""
    table_, results = judge({"a": 1.01}, spread=0.02)
    logs = {}
    for model in ("lenet", "resnet18"):
        steps = table_[table_["params.network"] == model]
        wide = steps.pivot_table(index="block", columns="framework", values=STEP)
        logs[model] = np.log(wide["evenhand"] / wide["plain"]).to_numpy()
    logs["both"] = (logs["lenet"] + logs["resnet18"]) / 2
    for cost, values in zip(results, logs.values(), strict=True):
        count, cut = len(values), len(values) // 8
        mean = stats.trim_mean(values, cut / count)
        yuen = stats.ttest_ind(values, 0 * values, trim=cut / count, equal_var=False)
        low, high = stats.t.interval(0.95, count - 2 * cut - 1, mean, abs(mean / yuen.statistic))
        assert (cost.ratio.value, cost.ratio.low, cost.ratio.high) == pytest.approx(
            tuple(np.exp((mean, low, high)))
        )


@pytest.mark.parametrize("blocks", [1, 2])
def test_one_or_two_blocks_have_no_ratio(blocks: int) -> None:
    _, results = judge({"a": 1.5}, spread=0.001, blocks=blocks)
    assert {(cost.ratio, cost.answer, cost.blocks) for cost in results} == {
        (None, Answer.NOT_SHOWN, blocks)
    }
    assert {row[3:5] for row in costs.section(results, 0.02).rows} == {("—", "—")}


# ---- the same process


# Network, rows, pairs of steps: so many that each takes some seconds.
POINTS = (
    ("lenet", 1, 1_000),
    ("lenet", 32, 200),
    ("mobilenet_v2", 1, 80),
    ("mobilenet_v2", 32, 24),
    ("resnet18", 1, 60),
    ("resnet18", 32, 24),
)
PROCESSES = 8  # an even number: half of them build the harness first, half the plain loop
MOST = 1.02


def measure_ratios(framework: str, *point: object, first: str = "harness") -> dict[str, float]:
    """Return the time in the harness over that in the plain loop, of steps and of requests."""
    words = (framework, *map(str, point), first)
    output = run_in(framework, "-m", "tests.experiments.harness_costs", *words).stdout
    ratios: dict[str, float] = json.loads(output.splitlines()[-1])
    return ratios


@pytest.mark.parametrize(
    "framework", ["pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
def test_both_loops_are_timed(framework: str) -> None:
    assert all(0.3 < ratio < 3 for ratio in measure_ratios(framework, "lenet", 8, 40).values())


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_harness_costs_at_most_two_percent(framework: str) -> None:
    """Average over three networks with batches of 1 and 32; the points are printed."""
    orders = ["harness", "plain"] * (PROCESSES // 2)
    ratios = {
        point: [measure_ratios(framework, *point, first=first) for first in orders]
        for point in POINTS
    }
    for phase in ("training", "requests"):
        logs = {
            point: np.log([ratio[phase] for ratio in processes])
            for point, processes in ratios.items()
        }
        for point, values in logs.items():
            print(framework, phase, *point, estimates.exponential(estimates.mean(values)))
        whole = estimates.exponential(estimates.mean(np.mean(list(logs.values()), axis=0)))
        print(framework, phase, whole)
        assert whole.high <= MOST
