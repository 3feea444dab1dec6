"""Largest batch that fits into memory, by runs that ended well and runs that did not fit."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report.sections import Cell, Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs.pairing import column_of, natural
from experiments.comparison.verdicts.findings import Edge

ALONG = "batch_size"


def edges(table: pd.DataFrame, *, factor: str, strata: Sequence[str]) -> tuple[Edge, ...]:
    """Return the memory limit of every level and stratum in which a batch did not fit."""
    size = f"params.{ALONG}"
    if size not in table.columns or "outcome" not in table.columns:
        return ()
    finished = table[table["outcome"].isin(["ok", "out_of_memory"])]
    if not (finished["outcome"] == "out_of_memory").any():
        return ()
    outcomes = finished.reindex(columns=["outcome", "params.phases", "tags.phase"])
    keys = pd.DataFrame(
        {
            "level": finished[column_of(finished, factor)].astype(str),
            "stratum": _strata(finished, [name for name in strata if name.split(".")[-1] != ALONG]),
            "size": pd.to_numeric(finished[size], errors="coerce"),
            "tried": list(map(_tried, *(outcomes[name] for name in outcomes))),
        }
    ).explode("tried")
    keys = keys.assign(phase=keys["tried"].str[0], fits=keys["tried"].str[1].astype(bool)).dropna()
    limits = []
    for (stratum, level, phase), runs in keys.groupby(["stratum", "level", "phase"], sort=False):
        fits = set(runs[runs["fits"]]["size"])
        if too_large := set(runs["size"]) - fits:
            limits.append(
                Edge(
                    str(level),
                    str(stratum),
                    int(max(fits)) if fits else None,
                    int(min(too_large)),
                    str(phase),
                )
            )
    return tuple(
        sorted(limits, key=lambda edge: (natural(edge.stratum), edge.phase, natural(edge.level)))
    )


def _strata(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    columns = [
        [f"{name.split('.')[-1]}={value}" for value in runs[column_of(runs, name)]]
        for name in names
    ]
    return [", ".join(parts) for parts in zip(*columns, strict=True)] or [""] * len(runs)


def _tried(outcome: str, phases: object, failed: object) -> list[tuple[str, bool]]:
    """Return the phases that a run tried, and whether each fitted.

    Args:
        outcome: `ok` or `out_of_memory`.
        phases: the requested phases; may be missing.
        failed: the phase that did not fit; may be missing.
    """
    phases = phases.split(",") if isinstance(phases, str) else [""]
    if outcome == "ok":
        return [(phase, True) for phase in phases]
    if not isinstance(failed, str) or failed not in phases:
        return [(phase, False) for phase in phases]
    return [*((phase, True) for phase in phases[: phases.index(failed)]), (failed, False)]


def table(evidence: Evidence) -> list[Section]:
    caption = (
        "The largest batch with a run that ended well, and the smallest that ran out of memory; "
        "larger ones were not tried."
    )
    rows: list[Line] = [
        (
            *(edge.level, edge.stratum, edge.phase),
            "none" if edge.fits is None else str(edge.fits),
            Cell(str(edge.too_large), "alarm"),
        )
        for edge in evidence.comparison.frontier
    ]
    sizes = (number("fits"), number("does not fit"))
    header: Header = (evidence.comparison.factor, "stratum", "phase", *sizes)
    return [Section("Where memory ends", caption, header, rows)] if rows else []
