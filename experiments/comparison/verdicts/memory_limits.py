"""How large a batch fits into memory, told by runs that ended well and runs that did not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from experiments.comparison.runs.pairing import column_of, natural

ALONG = "batch_size"


@dataclass(frozen=True)
class Edge:
    """One level in one stratum. fits: the largest size with a run that ended well; too_large: the smallest that never did.

    phase: what did not fit, training or inference; empty where runs do not tell.
    """

    level: str
    stratum: str
    fits: int | None
    too_large: int
    phase: str = ""


def edges(table: pd.DataFrame, *, factor: str, strata: Sequence[str]) -> tuple[Edge, ...]:
    """For every level, in every stratum without the batch size, of which something did not fit; nothing where all did."""
    size = f"params.{ALONG}"
    if size not in table.columns or "outcome" not in table.columns:
        return ()
    ended = table[table["outcome"].isin(["ok", "out_of_memory"])]
    if not (ended["outcome"] == "out_of_memory").any():
        return ()
    tried = pd.Series([_tried(run) for _, run in ended.iterrows()], index=ended.index, dtype=object)
    ended = ended.assign(tried=tried).explode("tried")
    names = [name for name in strata if name.split(".")[-1] != ALONG]
    keys = pd.DataFrame(
        {
            "level": ended[column_of(ended, factor)].astype(str),
            "stratum": [
                ", ".join(f"{name.split('.')[-1]}={run[column_of(ended, name)]}" for name in names) for _, run in ended.iterrows()
            ],
            "size": pd.to_numeric(ended[size], errors="coerce"),
            "phase": [phase for phase, _ in ended["tried"]],
            "fits": [fits for _, fits in ended["tried"]],
        }
    ).dropna()
    found = []
    for (stratum, level, phase), runs in keys.groupby(["stratum", "level", "phase"], sort=False):
        fits = set(runs[runs["fits"]]["size"])
        if too_large := set(runs["size"]) - fits:
            found.append(Edge(str(level), str(stratum), int(max(fits)) if fits else None, int(min(too_large)), str(phase)))
    return tuple(sorted(found, key=lambda edge: (natural(edge.stratum), edge.phase, natural(edge.level))))


def _tried(run: pd.Series) -> list[tuple[str, bool]]:
    """Every phase that a run tried, and whether it fitted; those after the one that did not were not tried."""
    asked, failed = run.get("params.phases"), run.get("tags.phase")
    phases = asked.split(",") if isinstance(asked, str) else [""]
    if run["outcome"] == "ok":
        return [(phase, True) for phase in phases]
    if failed not in phases:
        return [(phase, False) for phase in phases]
    return [*((phase, True) for phase in phases[: phases.index(failed)]), (failed, False)]
