"""How large a batch fits into memory, told by runs that ended well and runs that did not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from experiments.comparison.gates import column_of, natural

ALONG = "batch_size"


@dataclass(frozen=True)
class Edge:
    """One level in one stratum. fits: the largest size with a run that ended well; too_large: the smallest that never did."""

    level: str
    stratum: str
    fits: int | None
    too_large: int


def edges(table: pd.DataFrame, *, factor: str, strata: Sequence[str]) -> tuple[Edge, ...]:
    """For every level, in every stratum without the batch size, of which something did not fit; nothing where all did."""
    size = f"params.{ALONG}"
    if size not in table.columns or "outcome" not in table.columns:
        return ()
    ended = table[table["outcome"].isin(["ok", "out_of_memory"])]
    if not (ended["outcome"] == "out_of_memory").any():
        return ()
    names = [name for name in strata if name.split(".")[-1] != ALONG]
    keys = pd.DataFrame(
        {
            "level": ended[column_of(ended, factor)].astype(str),
            "stratum": [
                ", ".join(f"{name.split('.')[-1]}={run[column_of(ended, name)]}" for name in names) for _, run in ended.iterrows()
            ],
            "size": pd.to_numeric(ended[size], errors="coerce"),
            "fits": ended["outcome"] == "ok",
        }
    ).dropna()
    found = []
    for (stratum, level), runs in keys.groupby(["stratum", "level"], sort=False):
        fits = set(runs[runs["fits"]]["size"])
        if too_large := set(runs["size"]) - fits:
            found.append(Edge(str(level), str(stratum), int(max(fits)) if fits else None, int(min(too_large))))
    return tuple(sorted(found, key=lambda edge: (natural(edge.stratum), natural(edge.level))))
