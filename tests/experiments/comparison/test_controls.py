"""Controls: cells that test the measurement itself are judged apart, and never mix with what is compared."""

from __future__ import annotations

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
from experiments.studies import calibrate
from tests.experiments.comparison.campaigns import RATE, RSS, STEP, paired, runs
from tracking.errors import UsageError
from tracking.records import StoredRun


def with_controls(
    factor: float = 1.05,
    blocks: int = 8,
    *,
    baseline: str = "pytorch",
    campaign: str = "c1",
    again: float = 1.0,
) -> pd.DataFrame:
    """A campaign of two frameworks, its A/A cells (`again` as slow), and its cells whose steps are slowed by a factor."""
    found = [mark(run, run.tags["framework"]) for run in runs(blocks=blocks, campaign=campaign)]
    for name, seed, slower in (("A/A", 1, again), ("injected 5 %", 2, factor)):
        repeated = runs(
            (baseline,), blocks=blocks, seed=seed, factors={baseline: slower}, campaign=campaign
        )
        found += [mark(run, f"{baseline} {name}", name) for run in repeated]
    return table(found)


def control(found: pd.DataFrame, name: str, *outcomes: str) -> Control:
    return next(
        one
        for one in compare(found, baseline="pytorch", outcomes=outcomes).controls
        if one.name == name
    )


def mark(run: StoredRun, treatment: str, control: str = "") -> StoredRun:
    own = {"treatment": treatment, **({"control": control} if control else {})}
    delay = "0.05" if control.startswith("injected") else "0.0"
    return StoredRun(
        f"{run.run_id}-{treatment}",
        run.name,
        run.status,
        run.start_ms,
        run.end_ms,
        {**run.params, "inject_delay": delay},
        run.metrics,
        {**run.tags, **own},
    )


def test_controls_do_not_touch_what_is_compared() -> None:
    both = with_controls()
    alone = both[both["tags.control"].isna()].drop(columns=["tags.control"])
    assert compare(both, baseline="pytorch").rows == compare(alone, baseline="pytorch").rows


def test_an_injected_delay_is_found_and_a_second_self_is_not() -> None:
    """SD 1 % and 8 blocks detect 1.2 %: 5 % must be found; the A/A pair shares its distribution."""
    controls = {
        one.name: one.comparison
        for one in compare(with_controls(), baseline="pytorch", outcomes=[STEP]).controls
    }
    assert set(controls) == {"A/A", "injected 5 %"}
    delayed, again = controls["injected 5 %"].findings[0], controls["A/A"].findings[0]
    assert delayed.different
    assert delayed.row.verdict == "slower"
    assert np.isclose(delayed.row.estimate or 0.0, 1.05, rtol=0.02)
    assert not again.different


@pytest.mark.parametrize(
    ("blocks", "said"), [(2, "toy A/A: no outcome could be tested."), (8, "of 2 outcomes called")]
)
def test_a_calibration_counts_only_what_was_tested(blocks: int, said: str) -> None:
    found = paired([1.0 + at for at in range(blocks)], [1.01 + at for at in range(blocks)])
    found["framework"] = found["framework"].replace({"a": "toy", "b": "toy A/A"})
    comparison = compare(found.assign(**{RATE: found[STEP] + 1}), baseline="toy")
    (told,) = calibrate.also(
        settings_.parse(calibrate.Settings, calibrate.STUDY.presets, {"campaigns": "0"}),
        comparison,
        print,
    ).sentences
    assert said in told


def test_a_single_framework_is_compared_with_its_controls() -> None:
    alone = with_controls()
    alone = alone[alone["framework"] == "pytorch"]
    found = compare(alone, outcomes=[STEP])
    rows = {row.b: row for row in found.rows}
    assert {row.a for row in found.rows} == {"pytorch"}
    assert set(rows) == {"pytorch A/A", "pytorch injected 5 %"}
    assert rows["pytorch injected 5 %"].verdict == "slower"
    assert rows["pytorch A/A"].verdict != "slower"
    assert {one.name for one in found.controls} == {"A/A", "injected 5 %"}
    with pytest.raises(UsageError, match="no run has framework=tensorflow"):
        compare(alone, baseline="tensorflow", outcomes=[STEP])


@pytest.mark.parametrize("study", studies.available())
@pytest.mark.parametrize("given", [{"aa": "true"}, {"inject_delay": "5%"}])
def test_every_study_has_the_controls_that_are_asked_for_or_refuses(
    study: str, given: dict[str, str]
) -> None:
    """A study that did neither would slow what it compares, or claim a control that it has not."""
    module = studies.load(study)
    wanted = settings_.parse(
        module.settings, module.presets, {"aa": "false", "inject_delay": "0", **given}
    )
    try:
        found = treatments.list_treatments(module, wanted)
    except UsageError as refused:
        assert "aa, inject_delay" in str(refused)  # noqa: PT017
        return
    slowed = [one for one in found if one.settings.get("inject_delay") != 0]
    assert [one.name.partition(" ")[2] for one in found if " " in one.name] == [
        "A/A" if "aa" in given else "+5 %"
    ]
    assert len(slowed) == ("inject_delay" in given)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.05, "found in median training step (1.0"),
        (1.0, "NOT FOUND in median training step (1.0"),
        (0.9, "NOT FOUND in median training step (1.1"),  # different, but the wrong way
        (1.3, "found, but not as the 1.05× that was injected, in median training step (1.2"),
    ],
)
def test_an_injected_delay_is_sought_in_the_times_and_in_its_size(factor: float, said: str) -> None:
    """Eight blocks of SD 1 % give an interval of ±1.2 %, which no wrong size here comes within the margin of."""
    table = with_controls(factor)
    table.loc[table["tags.control"] == "injected 5 %", RSS] *= 2
    told = controls.result(control(table, "injected 5 %", STEP, RSS))
    assert told.startswith(said)
    assert told.endswith("; also called different: peak process memory")


def test_every_baseline_has_controls_of_its_own() -> None:
    both = pd.concat(
        [with_controls(), with_controls(baseline="tensorflow", campaign="c2")], ignore_index=True
    )
    found = [
        one
        for one in compare(both, baseline="pytorch", outcomes=[STEP]).controls
        if one.name == "A/A"
    ]
    assert [[(row.a, row.b, row.n_blocks) for row in one.comparison.rows] for one in found] == [
        [("pytorch", "pytorch A/A", 8)],
        [("tensorflow", "tensorflow A/A", 8)],
    ]
    told = controls.sentences(Evidence(compare(both, baseline="pytorch", outcomes=[STEP])))
    assert {line.split(":")[0] for line in told if "A/A" in line} == {
        "Control A/A of pytorch",
        "Control A/A of tensorflow",
    }
