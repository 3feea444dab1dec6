"""Looks that campaigns have had, from their runs."""

from __future__ import annotations

import pandas as pd

from experiments.comparison.statistics.sequential import FIXED, Looks, schedule, strictest

UNTIL, FIRST, MOST, LOOKS = "params.until", "params.blocks", "params.max_blocks", "tags.looks"
SETTLED = "settled"


def looks_of_runs(frame: pd.DataFrame) -> Looks:
    """Return the looks up to the last block of these runs; of several campaigns the strictest.

    A run names the looks that came before it. Where no run does, a campaign has looked as its
    settings plan it. A report in between is one look more.
    """
    if not {UNTIL, FIRST, MOST, "block"} <= set(frame.columns):
        return FIXED
    runs = frame[frame[UNTIL] == SETTLED]
    return strictest(_of_campaign(campaign) for campaign in _by_campaign(runs).values())


def extended_looks(frame: pd.DataFrame) -> dict[str, tuple[int, ...]]:
    """Return the blocks after which each extended campaign was judged, the last of them now.

    A campaign is extended if it had a fixed number of blocks and got more since.
    """
    if not {UNTIL, LOOKS, "block"} <= set(frame.columns):
        return {}
    extended = {}
    for name, runs in _by_campaign(frame[frame[UNTIL] != SETTLED]).items():
        if looks := recorded_looks(runs):
            last = int(pd.to_numeric(runs["block"]).max())
            extended[name] = (*sorted(look for look in looks if look < last), last)
    return extended


def _by_campaign(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(name): inside for name, inside in runs.groupby(runs["campaign"].fillna(""))}


def _of_campaign(runs: pd.DataFrame) -> Looks:
    """Return the looks of one campaign, with the most blocks that were set at each of them."""
    numbers = runs[["block", FIRST, MOST]].apply(pd.to_numeric).sort_values("block", kind="stable")
    blocks, most = numbers["block"].to_numpy(), numbers[MOST].to_numpy()
    last = int(blocks[-1])
    before = recorded_looks(runs) or schedule(int(numbers[FIRST].iloc[0]), int(most[-1]))
    looks = sorted({*(at for at in before if at < last), last})
    limits = (int(most[blocks <= at][-1]) if (blocks <= at).any() else int(most[0]) for at in looks)
    return Looks(tuple(looks), tuple(limits))


def recorded_looks(runs: pd.DataFrame) -> set[int]:
    """Return the looks that the runs name, all of which came before them."""
    texts = runs[LOOKS].dropna().astype(str).unique() if LOOKS in runs.columns else ()
    return {int(look) for text in texts for look in text.split(",") if look}
