"""Every axis of every figure says what it counts or measures, and its labels never touch, however wide the range."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.comparison import analyses, compare
from experiments.comparison.analyses import Evidence
from experiments.comparison.report.canvas import STYLE, WIDTH_INCHES, Drawing
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.verdicts.findings import Comparison, Edge
from tests.experiments.comparison.campaigns import LATENCY, RATE, STEP
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.comparison.test_batch_sizes import _with_inference, _workloads
from tests.experiments.comparison.test_breakdown import profiled
from tests.experiments.comparison.test_learning import with_times
from tests.experiments.comparison.test_looks import SETTLED, frame

UNITS = r"(µs|ms|s|min|h|bytes|KiB|MiB|GiB|mJ|J|kJ|W|°C|%|points|nats|examples/s|images/s|margins|share|ratio|blocks|epoch|order)"
ALL = {
    *(
        "forest",
        "differences",
        "looks",
        "learning",
        "times_to_accuracy",
        "blocks",
        "latencies",
        "profile",
        "batches",
        "memory",
    ),
    *("frontier", "ranks", "order"),
}
Rich = tuple[Comparison, list[RawRun]]


def rich() -> list[Rich]:
    """Campaigns in which every figure has something to show."""
    table = _with_inference(_workloads(3))
    table["val/accuracy"] = np.linspace(0.5, 0.9, len(table))
    table["a_count"] = np.arange(1.0, len(table) + 1)
    full = compare(table, strata=["workload"])
    full = replace(full, frontier=(Edge("b", "", 8, 16), Edge("c", "", None, 1_024)))
    learns = with_times(3)
    epochs = [
        replace(one, epochs={"val/accuracy": np.linspace(0.1, 0.9, 6)}) for one in raw_runs(learns)
    ]
    looks = compare(
        frame(("a", "b", "c"), blocks=13, params=SETTLED),
        outcomes=[STEP, "val/loss"],
        primary=[STEP, "val/loss"],
    )
    return [
        (full, raw_runs(table, strata=("workload",), maximum=9)),
        (compare(learns, baseline="pytorch"), epochs),
        (looks, []),
        (compare(profiled(), strata=("model",)), []),
    ]


def wide() -> list[Rich]:
    """Levels ten thousand times apart, thirteen batch sizes, runs by the thousand."""
    table = _with_inference(
        frame(("a", "b"), blocks=6, factors={"b": 1e4}),
        sizes=tuple(2**power for power in range(13)),
    )
    table.loc[table["framework"] == "b", LATENCY] *= 1e4
    many = frame(("a", "b"), blocks=600, factors={"b": 1e4})
    edges = tuple(
        Edge("a", f"network {at}", size, size + 8) for at, size in enumerate((96, 100, 4_096))
    )
    found = replace(
        compare(table),
        frontier=(*edges, *(Edge("b", "network 0", 2**power, 2**power + 1) for power in range(13))),
    )
    return [(found, raw_runs(table, factors={"b": 1e4})), (compare(many), [])]


def painted(found: Rich, *, laid_out: bool = False) -> Iterator[tuple[Drawing, Figure]]:
    comparison, raw = found
    with mpl.rc_context(STYLE):
        for drawing in analyses.drawings(Evidence(comparison, raw=raw)):
            canvas = Figure(figsize=(WIDTH_INCHES, drawing.height_inches), layout="constrained")
            FigureCanvasAgg(canvas)
            drawing.paint(canvas)
            if laid_out:
                canvas.canvas.draw()
            yield drawing, canvas


def labels(axes: Axes, way: str) -> list[mpl.text.Text]:
    """The labels of the ticks that lie inside the axis."""
    axis = axes.xaxis if way == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [one for at, one in ticks if low <= at <= high and one.get_text() and one.get_visible()]


def test_every_axis_of_numbers_has_a_title_with_its_unit() -> None:
    seen = set()
    for found in rich():
        for drawing, canvas in painted(found):
            seen.add(drawing.name)
            for axes in canvas.axes:
                for way in "xy" if axes.axison else "":
                    title = getattr(axes, f"get_{way}label")()
                    numbers = [
                        one for one in labels(axes, way) if re.match(r"[\d−-]", one.get_text())
                    ]
                    told = re.search(
                        rf"(^|[\s,(]){UNITS}($|[\s,)])|without a unit|examples$", title
                    )
                    assert told or not numbers, (
                        f"{drawing.name}: {way} axis {title!r} of {axes.get_title('left')!r}"
                    )
    assert seen == ALL


@pytest.mark.parametrize("at", range(2))
def test_labels_of_ticks_never_touch(at: int) -> None:
    for drawing, canvas in painted(wide()[at], laid_out=True):
        for axes in canvas.axes:
            for way in "xy" if axes.axison else "":
                boxes = [one.get_window_extent() for one in labels(axes, way)]
                ends = sorted((box.x0, box.x1) if way == "x" else (box.y0, box.y1) for box in boxes)
                assert all(one[1] <= other[0] for one, other in pairwise(ends)), (
                    f"{drawing.name}: {way} of {axes.get_title('left')}"
                )


def test_a_range_of_decades_is_shown_on_a_logarithmic_axis() -> None:
    for found, scale in ((wide()[0], "log"), (rich()[0], "linear")):
        canvas = next(canvas for drawing, canvas in painted(found) if drawing.name == "blocks")
        assert canvas.axes[0].get_yscale() == scale


def test_unknown_metrics_say_that_they_have_no_unit() -> None:
    table = pd.DataFrame(frame(("a", "b"), blocks=3)).assign(my_count=np.arange(6.0) + 1)
    found = compare(table, outcomes=["my_count", RATE]), []
    titles = {
        axes.get_title("left"): axes.get_ylabel()
        for _, canvas in painted(found)
        for axes in canvas.axes
    }
    assert titles["my_count"] == "value without a unit"
