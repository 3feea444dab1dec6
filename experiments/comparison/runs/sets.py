"""Kinds of campaigns in a selection, of which the newest is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from experiments.comparison.runs import expected_differences, pairing

SHOWN = 3


@dataclass(frozen=True)
class Kind:
    """Campaigns of the same settings, the newest first, and their difference, as `epochs=2`."""

    campaigns: tuple[str, ...]
    newest_ms: float
    differs: str


def choose_newest(
    table: pd.DataFrame,
    *,
    factor: str,
    strata: Sequence[str] = (),
    allowed_to_differ: Sequence[str] = (),
    pair_by: str = "",
) -> tuple[pd.DataFrame, list[Kind]]:
    """Choose the newest kind of campaigns if there are several.

    Returns:
        The runs to compare, and the kinds, the newest first; no kind if all runs are compared.

    Raises:
        UsageError: There is no usable run.
    """
    has_several = "campaign" in table.columns and table["campaign"].nunique() > 1
    if expected_differences.is_apart(factor) or not has_several:
        return table, []
    frame = pairing.select_usable(
        pairing.without_controls(table), factor=factor, strata=strata, pair_by=pair_by
    ).frame
    groups = [inside for _, inside in frame.groupby("group")]
    may_pool = not any(pairing.find_mismatch(runs, factor, allowed_to_differ) for runs in groups)
    # runs of other tools would be left out without a choice
    if may_pool or frame["campaign"].isna().any():
        return table, []
    columns = pairing.settings_of(frame, factor, strata, allowed_to_differ)
    if pairing.plain_name(factor) == "framework":
        columns.append("settings_hash")  # all else that cells were given has one hash
    kinds = _kinds(frame, columns)
    if len(kinds) < 2:
        return table, []
    return table[table["campaign"].isin(kinds[0].campaigns)], kinds


def _kinds(frame: pd.DataFrame, columns: Sequence[str]) -> list[Kind]:
    """Return campaigns with both sides by the values of their runs, the newest kind first."""
    groups: dict[tuple[tuple[str, ...], ...], list[tuple[float, str]]] = {}
    for campaign, runs in frame.groupby("campaign"):
        if runs["level"].nunique() > 1:
            values = tuple(tuple(sorted(set(pairing.as_text(runs[column])))) for column in columns)
            times = pd.to_numeric(runs["start_ms"], errors="coerce").fillna(runs["sequence"])
            groups.setdefault(values, []).append((float(times.max()), str(campaign)))
    differing = [at for at in range(len(columns)) if len({values[at] for values in groups}) > 1]
    kinds = []
    for values, campaigns in groups.items():
        texts = [
            f"{pairing.plain_name(columns[at])}={','.join(values[at]) or 'none'}"
            for at in differing
        ]
        more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        ordered = sorted(campaigns, reverse=True)
        names = tuple(name for _, name in ordered)
        kinds.append(Kind(names, ordered[0][0], f"{', '.join(texts[:SHOWN])}{more}"))
    return sorted(kinds, key=lambda kind: -kind.newest_ms)
