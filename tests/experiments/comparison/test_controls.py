"""Controls: cells that test the measurement itself are judged apart, and never mix with what is compared."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.comparison import compare
from experiments.comparison.query import table
from tests.experiments.comparison.campaigns import STEP, runs
from tracking.records import StoredRun


def with_controls(factor: float = 1.05, blocks: int = 8) -> pd.DataFrame:
    """A campaign of two frameworks, its A/A cells, and its cells slowed by a factor."""
    found = [mark(run, run.tags["framework"]) for run in runs(blocks=blocks)]
    for name, seed, slower in (("A/A", 1, 1.0), ("injected 5 %", 2, factor)):
        again = runs(("pytorch",), blocks=blocks, seed=seed, factors={"pytorch": slower})
        found += [mark(run, f"pytorch {name}", name) for run in again]
    return table(found)


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
    controls = {one.name: one.comparison for one in compare(with_controls(), baseline="pytorch", outcomes=[STEP]).controls}
    assert set(controls) == {"A/A", "injected 5 %"}
    delayed, again = controls["injected 5 %"].findings[0], controls["A/A"].findings[0]
    assert delayed.different
    assert delayed.row.verdict == "slower"
    assert np.isclose(delayed.row.estimate or 0.0, 1.05, rtol=0.02)
    assert not again.different


def test_without_controls_there_are_none() -> None:
    assert compare(table(runs()), baseline="pytorch").controls == ()
