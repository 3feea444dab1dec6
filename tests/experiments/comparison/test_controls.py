"""Tests of controls: they are judged apart, and never mix with what is compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments import studies
from experiments.comparison import compare
from experiments.comparison.analyses import Evidence, controls
from experiments.comparison.runs.query import table
from experiments.comparison.verdicts.findings import Control
from experiments.config import settings as settings_
from experiments.planning import treatments
from tests.experiments.comparison.campaigns import RSS, STEP, runs
from tests.experiments.small_campaigns import required
from tracking.errors import UsageError
from tracking.records import StoredRun


def with_controls(
    factor: float = 1.05, *, baseline: str = "pytorch", campaign: str = "c1"
) -> pd.DataFrame:
    """Return two frameworks, A/A cells, and cells whose steps are slowed by a factor."""
    cells = [_as_treatment(run, run.tags["framework"]) for run in runs(campaign=campaign)]
    for name, seed, slower in (("A/A", 1, 1.0), ("injected 5 %", 2, factor)):
        repeated = runs((baseline,), seed=seed, factors={baseline: slower}, campaign=campaign)
        cells += [_as_treatment(run, f"{baseline} {name}", name) for run in repeated]
    return table(cells)


def _as_treatment(run: StoredRun, treatment: str, control: str = "") -> StoredRun:
    delay = "0.05" if control.startswith("injected") else "0.0"
    return replace(
        run,
        run_id=f"{run.run_id}-{treatment}",
        params={**run.params, "inject_delay": delay},
        tags={**run.tags, "treatment": treatment, **({"control": control} if control else {})},
    )


def _controls(cells: pd.DataFrame, *outcomes: str) -> dict[str, Control]:
    comparison = compare(cells, baseline="pytorch", outcomes=outcomes)
    return {control.name: control for control in comparison.controls}


def test_controls_do_not_change_the_rows() -> None:
    cells = with_controls()
    without = cells[cells["tags.control"].isna()].drop(columns=["tags.control"])
    assert compare(cells, baseline="pytorch").rows == compare(without, baseline="pytorch").rows


def test_injected_delay_is_found_and_same_work_is_not() -> None:
    """SD 1 % and 8 blocks detect 1.2 %: 5 % must be found; the A/A pair has no difference."""
    by_name = _controls(with_controls(), STEP)
    assert set(by_name) == {"A/A", "injected 5 %"}
    (delayed,), (same,) = (by_name[name].comparison.findings for name in ("injected 5 %", "A/A"))
    assert (delayed.different, delayed.row.verdict, same.different) == (True, "slower", False)
    assert np.isclose(delayed.row.estimate or 0.0, 1.05, rtol=0.02)


def _as_levels(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the runs as those of a race, whose levels differ in no other setting."""
    return cells.assign(**{"params.level": cells["framework"], "framework": ""})


def test_level_is_not_judged_by_the_control_of_another() -> None:
    comparison = compare(_as_levels(with_controls()), factor="level", outcomes=[STEP])
    assert [(row.a, row.b) for row in comparison.rows] == [("pytorch", "tensorflow")]
    rows = [(row.a, row.b) for control in comparison.controls for row in control.comparison.rows]
    assert rows == [("pytorch", f"pytorch {name}") for name in ("A/A", "injected 5 %")]


def test_single_framework_is_compared_with_its_controls() -> None:
    cells = with_controls()
    cells = cells[cells["framework"] == "pytorch"]
    comparison = compare(cells, outcomes=[STEP])
    verdicts = {(row.a, row.b): row.verdict for row in comparison.rows}
    assert set(verdicts) == {("pytorch", f"pytorch {name}") for name in ("A/A", "injected 5 %")}
    assert verdicts["pytorch", "pytorch injected 5 %"] == "slower"
    assert verdicts["pytorch", "pytorch A/A"] != "slower"
    assert {control.name for control in comparison.controls} == {"A/A", "injected 5 %"}
    with pytest.raises(UsageError, match="tensorflow"):
        compare(cells, baseline="tensorflow", outcomes=[STEP])


@pytest.mark.parametrize("study", studies.available())
@pytest.mark.parametrize("control", [{"aa": "true"}, {"inject_delay": "5%"}])
def test_study_adds_controls_or_refuses_them(study: str, control: dict[str, str]) -> None:
    """A study that did neither would slow what it compares, or claim a missing control."""
    module = studies.load(study)
    if control.keys() & module.settings.not_offered:
        with pytest.raises(UsageError):
            settings_.parse(module.settings, module.presets, control)
        return
    values = {"aa": "false", "inject_delay": "0", **required(study), **control}
    settings = settings_.parse(module.settings, module.presets, values)
    planned = treatments.list_treatments(module, settings)
    names = [treatment.name.partition(" ")[2] for treatment in planned if " " in treatment.name]
    assert names == (["A/A"] if "aa" in control else ["+5 %"])
    slowed = [treatment for treatment in planned if treatment.settings.get("inject_delay") != 0]
    assert len(slowed) == ("inject_delay" in control)


@pytest.mark.parametrize(
    ("factor", "is_missed"), [(1.05, False), (1.0, True), (0.9, True), (1.3, True)]
)
def test_injected_delay_must_show_in_its_size(factor: float, is_missed: bool) -> None:
    """Eight blocks of SD 1 % give ±1.2 %: no wrong size comes within the margin."""
    cells = with_controls(factor)
    cells.loc[cells["tags.control"] == "injected 5 %", RSS] *= 2
    control = _controls(cells, STEP, RSS)["injected 5 %"]
    missed = [finding.row.metric for finding in controls.missed(control)]
    assert missed == ([STEP] if is_missed else [])
    assert f"in {0 if is_missed else 1} of 1 delayed times" in controls.result(control)


def test_every_baseline_has_its_controls() -> None:
    parts = [with_controls(), with_controls(baseline="tensorflow", campaign="c2")]
    cells = pd.concat(parts, ignore_index=True)
    comparison = compare(cells, baseline="pytorch", outcomes=[STEP])
    rows = [
        (row.a, row.b, row.n_blocks)
        for control in comparison.controls
        if control.name == "A/A"
        for row in control.comparison.rows
    ]
    assert rows == [(name, f"{name} A/A", 8) for name in ("pytorch", "tensorflow")]
    assert len(controls.sentences(Evidence(comparison))) == len(comparison.controls) == 4
