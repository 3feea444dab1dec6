"""Campaigns that may be compared with each other: of several kinds in one selection, the newest kind is taken, the rest named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from experiments.comparison.runs import nature, pairing

SHOWN = 3


@dataclass(frozen=True)
class Kind:
    """Campaigns of the same settings, the newest first. differs: by what they are told from the others, as `epochs=2`."""

    campaigns: tuple[str, ...]
    newest_ms: float
    differs: str


@dataclass(frozen=True)
class Choice:
    """The runs to compare, of which kind they are, and the kinds that were left out, the newest first."""

    table: pd.DataFrame
    kind: Kind | None = None
    others: tuple[Kind, ...] = ()


def newest(
    table: pd.DataFrame,
    *,
    factor: str,
    strata: Sequence[str] = (),
    allowed_to_differ: Sequence[str] = (),
) -> Choice:
    """The newest kind of campaigns, where those selected are of several kinds; else the table as it is.

    Raises WrongCall as `pairing.usable` does.
    """
    if (
        nature.is_apart(factor)
        or "campaign" not in table.columns
        or table["campaign"].nunique() < 2
    ):
        return Choice(table)
    frame = pairing.usable(pairing.without_controls(table), factor=factor, strata=strata).frame
    if (
        frame["campaign"].isna().any()
    ):  # runs of others, which have none: to leave them out would be no choice of campaigns
        return Choice(table)
    groups = [inside for _, inside in frame.groupby("group")]
    if not any(pairing.incomparable(inside, factor, allowed_to_differ) for inside in groups):
        return Choice(table)
    same = [*pairing.settings_of(frame, factor, strata, allowed_to_differ), *_hashed(frame, factor)]
    kinds = _kinds(frame, same)
    if len(kinds) < 2:
        return Choice(table)
    first, *others = kinds
    return Choice(table[table["campaign"].isin(first.campaigns)], first, tuple(others))


def _hashed(frame: pd.DataFrame, factor: str) -> list[str]:
    """Where frameworks are compared, all else that cells were given has one hash."""
    return (
        ["settings_hash"]
        if pairing.plain_name(factor) == "framework" and "settings_hash" in frame.columns
        else []
    )


def _kinds(frame: pd.DataFrame, columns: Sequence[str]) -> list[Kind]:
    """Campaigns with both sides, by the values that their runs have in these columns."""
    found: dict[tuple[tuple[str, ...], ...], list[tuple[float, str]]] = {}
    for campaign, runs in frame.groupby("campaign"):
        if runs["level"].nunique() > 1:
            values = tuple(tuple(sorted(set(pairing.as_text(runs[column])))) for column in columns)
            began = (
                pd.to_numeric(runs["start_ms"], errors="coerce").max()
                if "start_ms" in runs.columns
                else runs["sequence"].max()
            )
            found.setdefault(values, []).append((float(began), str(campaign)))
    several = [at for at in range(len(columns)) if len({values[at] for values in found}) > 1]
    kinds = []
    for values, campaigns in found.items():
        named = [
            f"{pairing.plain_name(columns[at])}={','.join(values[at]) or 'none'}" for at in several
        ]
        told = ", ".join(named[:SHOWN]) + (
            f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        )
        ordered = sorted(campaigns, reverse=True)
        kinds.append(Kind(tuple(name for _, name in ordered), ordered[0][0], told))
    return sorted(kinds, key=lambda kind: -kind.newest_ms)
