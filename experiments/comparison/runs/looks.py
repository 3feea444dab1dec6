"""The looks that campaigns have had, as their runs tell them: of those that go on until it is settled, and of extended ones."""

from __future__ import annotations

import pandas as pd

from experiments.comparison.statistics.sequential import FIXED, Looks, schedule, strictest

UNTIL, FIRST, MOST, LOOKS = "params.until", "params.blocks", "params.max_blocks", "tags.looks"
SETTLED = "settled"


def of_runs(frame: pd.DataFrame) -> Looks:
    """Return the looks up to the last block of these runs; of several campaigns the strictest.

    A run names the looks that came before it. Where no run does, a campaign has looked as its
    settings plan it. A report in between is one look more.
    """
    if not {UNTIL, FIRST, MOST, "block"} <= set(frame.columns):
        return FIXED
    asked = frame[frame[UNTIL] == SETTLED]
    if asked.empty:
        return FIXED
    campaigns = (
        asked["campaign"] if "campaign" in asked.columns else pd.Series("", index=asked.index)
    )
    return strictest(_of_campaign(runs) for _, runs in asked.groupby(campaigns.fillna("")))


def of_extended(frame: pd.DataFrame) -> dict[str, tuple[int, ...]]:
    """Campaign -> the blocks after which it was judged, the last of them now, where it had a fixed number and got more since."""
    if not {UNTIL, LOOKS, "block"} <= set(frame.columns):
        return {}
    fixed = frame[frame[UNTIL] != SETTLED]
    campaigns = (
        fixed["campaign"] if "campaign" in fixed.columns else pd.Series("", index=fixed.index)
    )
    found = {}
    for name, runs in fixed.groupby(campaigns.fillna("")):
        if looks := told(runs):
            last = int(pd.to_numeric(runs["block"]).max())
            found[str(name)] = (*sorted(at for at in looks if at < last), last)
    return found


def _of_campaign(runs: pd.DataFrame) -> Looks:
    """Return the looks of one campaign; each has the most blocks that the block before it was run with."""
    numbers = runs[["block", FIRST, MOST]].apply(pd.to_numeric).sort_values("block", kind="stable")
    blocks, most = numbers["block"].to_numpy(), numbers[MOST].to_numpy()
    last = int(blocks[-1])
    before = told(runs) or schedule(int(numbers[FIRST].iloc[0]), int(most[-1]))
    looks = sorted({*(at for at in before if at < last), last})
    limits = (int(most[blocks <= at][-1]) if (blocks <= at).any() else int(most[0]) for at in looks)
    return Looks(tuple(looks), tuple(limits))


def told(runs: pd.DataFrame) -> set[int]:
    """The looks that the runs know of, all of which came before them."""
    texts = runs[LOOKS].dropna().astype(str).unique() if LOOKS in runs.columns else ()
    return {int(look) for text in texts for look in text.split(",") if look}
