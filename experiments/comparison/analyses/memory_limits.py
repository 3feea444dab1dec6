"""How large a batch fits into memory, by runs that ended well and runs that did not fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report.canvas import (
    BAD,
    INK,
    Colours,
    Drawing,
    frame,
    paneled,
    plain_ticks,
)
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import number, under
from experiments.comparison.runs.pairing import column_of, natural
from experiments.comparison.verdicts.findings import Edge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALONG = "batch_size"


def edges(table: pd.DataFrame, *, factor: str, strata: Sequence[str]) -> tuple[Edge, ...]:
    """For every level, in every stratum without the batch size, of which something did not fit; nothing where all did."""
    size = f"params.{ALONG}"
    if size not in table.columns or "outcome" not in table.columns:
        return ()
    ended = table[table["outcome"].isin(["ok", "out_of_memory"])]
    if not (ended["outcome"] == "out_of_memory").any():
        return ()
    told = ended.reindex(columns=["outcome", "params.phases", "tags.phase"])
    keys = pd.DataFrame(
        {
            "level": ended[column_of(ended, factor)].astype(str),
            "stratum": _strata(ended, [name for name in strata if name.split(".")[-1] != ALONG]),
            "size": pd.to_numeric(ended[size], errors="coerce"),
            "tried": list(map(_tried, *(told[name] for name in told))),
        }
    ).explode("tried")
    keys = keys.assign(phase=keys["tried"].str[0], fits=keys["tried"].str[1].astype(bool)).dropna()
    found = []
    for (stratum, level, phase), runs in keys.groupby(["stratum", "level", "phase"], sort=False):
        fits = set(runs[runs["fits"]]["size"])
        if too_large := set(runs["size"]) - fits:
            found.append(
                Edge(
                    str(level),
                    str(stratum),
                    int(max(fits)) if fits else None,
                    int(min(too_large)),
                    str(phase),
                )
            )
    return tuple(
        sorted(found, key=lambda edge: (natural(edge.stratum), edge.phase, natural(edge.level)))
    )


def _strata(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    columns = [
        [f"{name.split('.')[-1]}={value}" for value in runs[column_of(runs, name)]]
        for name in names
    ]
    return [", ".join(parts) for parts in zip(*columns, strict=True)] or [""] * len(runs)


def _tried(outcome: str, asked: object, failed: object) -> list[tuple[str, bool]]:
    """Every phase that a run tried, and whether it fitted; those after the one that did not were not tried.

    asked: the phases that it was asked for; failed: the one that did not fit; both may be missing.
    """
    phases = asked.split(",") if isinstance(asked, str) else [""]
    if outcome == "ok":
        return [(phase, True) for phase in phases]
    if not isinstance(failed, str) or failed not in phases:
        return [(phase, False) for phase in phases]
    return [*((phase, True) for phase in phases[: phases.index(failed)]), (failed, False)]


def table(evidence: Evidence) -> list[Section]:
    caption = "The largest batch with a run that ended well, and the smallest that ran out of memory; larger ones were not tried."
    rows: list[Line] = [
        (
            *(edge.level, ", ".join(filter(None, (edge.stratum, edge.phase)))),
            *("none" if edge.fits is None else str(edge.fits), Cell(str(edge.too_large), "alarm")),
        )
        for edge in evidence.comparison.frontier
    ]
    header: Header = (evidence.comparison.factor, under(""), number("fits"), number("does not fit"))
    return [Section("Where memory ends", caption, header, rows)] if rows else []


def figure(evidence: Evidence) -> Drawing | None:
    edges = evidence.comparison.frontier
    if not edges:
        return None
    panels = [
        partial(
            _edges,
            edges=[edge for edge in edges if (edge.stratum, edge.phase) == place],
            colours=evidence.colours,
            stratum=", ".join(filter(None, place)),
        )
        for place in dict.fromkeys((edge.stratum, edge.phase) for edge in edges)
    ]
    caption = "A bar ends at the largest batch that fitted, the cross is the smallest that ran out of memory."
    return paneled(
        "frontier",
        "Where memory ends",
        caption,
        evidence.colours,
        panels,
        panel_inches=1.6,
        a_row=2,
    )


def _edges(axes: Axes, edges: Sequence[Edge], colours: Colours, stratum: str) -> None:
    sizes = sorted({size for edge in edges for size in (edge.fits, edge.too_large) if size})
    axes.set_xscale("log", base=2)
    for at, edge in enumerate(edges):
        colour = colours.get(edge.level, INK)
        if edge.fits:
            axes.plot(
                [sizes[0] / 2, edge.fits],
                [at, at],
                color=colour,
                linewidth=6,
                solid_capstyle="butt",
                zorder=2,
            )
        axes.scatter([edge.too_large], [at], marker="x", s=48, color=BAD, linewidths=1.8, zorder=3)
    frame(axes, "largest batch", stratum, "")
    plain_ticks(axes.xaxis, sizes)
    plain_ticks(axes.yaxis, [])
    axes.set_ylim(-0.6, len(edges) - 0.4)
    axes.set_xlabel("batch size, examples")


ANALYSIS = Analysis(tables={100: table}, figures={120: figure})
