"""The report's figures, drawn from findings and raw values; the only importer of matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.comparison.report.figures import breakdown, intervals, learning, looks, runs, speedup, steps, tradeoffs
from experiments.comparison.report.figures.canvas import Drawing, Figure, Scene, colours_of, made
from experiments.comparison.report.figures.card import picture
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.verdicts.batch_sizes import Curve
from experiments.comparison.verdicts.findings import Comparison

MAKERS = (
    *(learning.curves, intervals.forest, intervals.differences, speedup.speedups, looks.fans),
    *(learning.times, runs.by_level, steps.latencies),
    *(breakdown.of_steps, tradeoffs.batches, tradeoffs.memory, tradeoffs.frontier, intervals.ranks, runs.in_order, steps.sensors),
)


def draw(
    comparison: Comparison,
    raw: Sequence[RawRun] = (),
    curves: Sequence[Curve] = (),
    only: str = "",
    anchors: Mapping[str, str] | None = None,
) -> list[Figure]:
    """Every figure that there is something to show in, or the one of a name.

    raw: the runs whose steps and sensors are shown; curves: `batches.curves`. anchors: run → the id of its row in the page.
    """
    scene = Scene(comparison, colours_of(comparison.levels), raw, curves, anchors or {})
    return [made(drawing) for drawing in _drawings(scene) if only in ("", drawing.name)]


def names(comparison: Comparison, raw: Sequence[RawRun] = (), curves: Sequence[Curve] = ()) -> tuple[str, ...]:
    """What the figures are called that `draw` would draw."""
    return tuple(drawing.name for drawing in _drawings(Scene(comparison, colours_of(comparison.levels), raw, curves)))


def _drawings(scene: Scene) -> Iterator[Drawing]:
    return (drawing for maker in MAKERS if (drawing := maker(scene)) is not None)


__all__ = ["Figure", "Scene", "draw", "names", "picture"]
