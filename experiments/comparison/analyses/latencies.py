"""Latencies of single requests, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report.canvas import Colours, Drawing, frame, paneled
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.raw import RawRun, of_inference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = (0.01, 0.1, 0.5, 0.9, 0.99)
CAPTION = (
    "The share of requests answered within a time; a line is a run ({runs} are shown, warm-up left "
    "out). The vertical scale is stretched towards both ends, where the slow requests are."
)


def figure(evidence: Evidence) -> list[Drawing]:
    """Return the distribution of latencies, a panel for each stratum and batch size."""
    groups: dict[tuple[str, int], list[RawRun]] = {}
    for run in evidence.raw:
        for size, phase in of_inference(run).items():
            if len(phase.measured) > 1:
                groups.setdefault((run.stratum, size), []).append(run)
    panels = [
        partial(_panel, runs=groups[key], size=key[1], colours=evidence.colours, stratum=key[0])
        for key in sorted(groups, key=lambda key: (natural(key[0]), key[1]))
    ]
    caption = CAPTION.format(runs=evidence.shown_runs)
    title = "Latency of single requests"
    return paneled("latencies", title, caption, evidence.colours, panels)


def _panel(axes: Axes, runs: Sequence[RawRun], size: int, colours: Colours, stratum: str) -> None:
    axes.set_yscale("logit")
    for run in runs:
        seconds = 1_000 * of_inference(run)[size].measured
        axes.ecdf(seconds, color=colours[run.level], linewidth=0.8, alpha=0.6, rasterized=True)
    axes.set_ylim(0.007, 0.997)
    axes.set_yticks(SHARES, [f"{100 * share:.0f} %" for share in SHARES])
    axes.set_xlabel("latency, ms")
    frame(axes, f"inference, batch {size}", stratum, "share of requests")
