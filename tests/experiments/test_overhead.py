"""The overhead study: its cells, its answers and its wrong calls."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import mlflow
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.comparison import compare
from experiments.comparison.analyses import costs
from experiments.comparison.runs.query import table
from experiments.config.settings import parse
from experiments.contract import Treatment
from experiments.run.plan import of_study
from experiments.studies import overhead
from tests.conftest import Place
from tests.experiments.comparison.campaigns import STEP, runs

QUICK = {
    "threads": "1",
    "figures": "false",
    "models": "lenet",
    "seconds": "0.05",
    "sensor_seconds": "0.1",
    "others_limit_percent": "100",
}


def run(place: Place, **given: str) -> subprocess.CompletedProcess[str]:
    settings = {"cache": str(place.cache), "journal": str(place.journal), **QUICK, **given}
    return place.call(
        sys.executable,
        "-m",
        "experiments",
        "overhead",
        *(f"--{name}={value}" for name, value in settings.items()),
    )


def test_every_point_has_a_plain_loop_beside_the_harness() -> None:
    settings = parse(
        overhead.Settings,
        overhead.STUDY.presets,
        {"preset": "proof", "frameworks": "pytorch,tensorflow"},
    )
    plan = of_study(overhead.STUDY, settings)
    assert (plan.baseline, plan.factor) == ("plain", "harness")
    assert (
        len(plan.treatments) == 2 * 3 * 2 * 2
    )  # frameworks, networks, batch sizes, plain and evenhand
    points: dict[str, list[Treatment]] = {}
    for one in plan.treatments:
        points.setdefault(one.group, []).append(one)
    for plain, ours in points.values():
        assert (plain.stage, ours.stage) == ("plain", "measure")
        assert dict(plain.settings, harness="") == dict(ours.settings, harness="")
        assert plain.settings["image_size"] == (
            28 if plain.settings["model"] == "lenet" else settings.image_side
        )
    assert {(one.settings["model"], one.settings["batch_size"]) for one in plan.treatments} == {
        (model, rows) for model in ("lenet", "resnet18", "mobilenet_v2") for rows in (1, 32)
    }


def test_the_clock_of_the_plain_loop_holds_the_devices_work_and_nothing_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 ms for a step and 10 for a request in both; a copy, of 30 ms, lies outside of both clocks.

    Frameworks are judged apart: that these two have another Adam each keeps nothing from being measured.
    """
    spent = {name: {"step": 0.02, "infer": 0.01, "copy": 0.03} for name in ("toy", "toy+stock")}
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps(spent))
    done = run(place, frameworks="toy,toy+stock", batch_sizes="1", blocks="1")
    assert done.returncode == 3, done.stdout + done.stderr  # one block: no verdict
    cells = mlflow.MlflowClient(place.uri).search_runs(["1"], "tags.kind = 'cell'")
    assert sorted(cell.data.params["harness"] for cell in cells) == [
        "evenhand",
        "evenhand",
        "plain",
        "plain",
    ]
    for cell in cells:
        assert 0.02 <= cell.data.metrics["train/step_seconds"] < 0.045
        assert 0.01 <= cell.data.metrics["inference/latency_seconds_p50"] < 0.035
    assert len({round(cell.data.metrics["train/loss"], 5) for cell in cells}) == 1
    assert "Cost at most the bound: 0 shown, 4 not shown, 0 refuted." in done.stdout
    assert (
        "Does measuring cost more than the bound?"
        in next(place.journal.glob("*/report/report.md")).read_text()
    )


def judged(
    ratios: Mapping[str, float], spread: float, blocks: int = 8
) -> tuple[pd.DataFrame, list[costs.Cost]]:
    """Two networks in each of some frameworks, whose steps take so many times as long as the plain loop's."""
    rows = []
    for at, (framework, model) in enumerate(product(ratios, ("lenet", "resnet18"))):
        factors = {"evenhand": ratios[framework]}
        params = {"network": model, "runs_in": framework}
        made = runs(
            ("plain", "evenhand"), blocks, seed=at, factors=factors, spread=spread, params=params
        )
        rows += [replace(one, run_id=f"{one.run_id}-{at}") for one in made]
    found = table(rows)
    asked = {
        "factor": "framework",
        "baseline": "plain",
        "strata": ("runs_in", "network"),
        "outcomes": [STEP],
    }
    return found, costs.judged(compare(found, **asked), (STEP,), 0.02)


def test_the_bound_is_shown_refuted_or_open() -> None:
    """0.1 % of noise and eight blocks: intervals are some tenths of a percent wide."""
    _, found = judged({"a": 1.005, "b": 1.05, "c": 1.02}, spread=0.001)
    answers = {(one.where, one.strata): one.answer for one in found}
    assert {answers[f"runs_in=a, network={name}", 1] for name in ("lenet", "resnet18")} == {
        costs.Answer.SHOWN
    }
    assert {answers[f"runs_in=b, network={name}", 1] for name in ("lenet", "resnet18")} == {
        costs.Answer.REFUTED
    }
    assert [answers[f"runs_in={name}", 2] for name in "ab"] == [
        costs.Answer.SHOWN,
        costs.Answer.REFUTED,
    ]
    assert answers["runs_in=c", 2] == costs.Answer.NOT_SHOWN
    said = costs.sentences(found)
    assert re.fullmatch(r"Cost at most the bound: \d shown, \d not shown, \d refuted\.", said[0])
    assert any(line.startswith("runs_in=b, evenhand, median training step: 1.05") for line in said)
    assert len(costs.section(found, 0.02).rows) == len(found) == 9


def test_ratios_have_the_t_interval_of_their_logarithms() -> None:
    """Against scipy, of one network and of the mean over both, block by block."""
    table_, found = judged({"a": 1.01}, spread=0.02)
    logs = {}
    for model in ("lenet", "resnet18"):
        steps = table_[table_["params.network"] == model]
        wide = steps.pivot_table(index="block", columns="framework", values=STEP)
        logs[model] = np.log(wide["evenhand"] / wide["plain"]).to_numpy()
    logs["both"] = (logs["lenet"] + logs["resnet18"]) / 2
    for cost, values in zip(found, logs.values(), strict=True):
        low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
        assert (cost.ratio.value, cost.ratio.low, cost.ratio.high) == pytest.approx(
            tuple(np.exp((values.mean(), low, high)))
        )


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_block_or_two_have_no_ratio(blocks: int) -> None:
    _, found = judged({"a": 1.5}, spread=0.001, blocks=blocks)
    assert {(one.ratio, one.answer, one.blocks) for one in found} == {
        (None, costs.Answer.NOT_SHOWN, blocks)
    }
    assert costs.sentences(found) == ["Cost at most the bound: 0 shown, 2 not shown, 0 refuted."]
    assert {row[3:5] for row in costs.section(found, 0.02).rows} == {("—", "—")}
