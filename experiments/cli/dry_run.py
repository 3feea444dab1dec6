"""A campaign's forecast in words: what `--dry_run` prints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from experiments.comparison.report import wording
from experiments.config import durations
from experiments.run.forecast import Detectable, Forecast

MAX_BLOCKS_SHOWN = 12
MAX_LEFT_OUT_SHOWN = 20


def lines(found: Forecast) -> list[str]:
    """Warnings, cells and order, data, time, and the detectable differences."""
    warned = (f"! {line}" for line in found.warnings)
    groups = (
        warned,
        _cells(found),
        _data(found),
        _time(found),
        _detectable(found),
    )
    return [*itertools.chain.from_iterable(groups), "Nothing was measured, nothing was written."]


def _cells(found: Forecast) -> Iterator[str]:
    a_block, most = len(found.plan.treatments), found.looks[-1]
    upto = (
        f"at most {most} blocks, the first look after {found.looks[0]}"
        if len(found.looks) > 1
        else wording.blocks(most)
    )
    yield f"cells      {len(found.cells):,}: {a_block} in each of {upto}, each a fresh process, in this order:"
    by_block = itertools.groupby(found.cells, key=lambda cell: cell.block)
    for number, block in itertools.islice(by_block, MAX_BLOCKS_SHOWN):
        yield f"  block {number}: {', '.join(cell.treatment for cell in block)}"
    if most > MAX_BLOCKS_SHOWN:
        yield f"  and so on, {most - MAX_BLOCKS_SHOWN:,} more"


def _data(found: Forecast) -> Iterator[str]:
    yield f"data       {found.data}; the settings fit them"
    if found.left_out:
        yield f"left out   {len(found.left_out):,}, each with the reason:"
        yield from (f"  {line}" for line in found.left_out[:MAX_LEFT_OUT_SHOWN])
    if len(found.left_out) > MAX_LEFT_OUT_SHOWN:
        yield f"  and so on, {len(found.left_out) - MAX_LEFT_OUT_SHOWN:,} more"


def _time(found: Forecast) -> Iterator[str]:
    if len(found.unknown) == len(found.plan.treatments):
        where = f"on this machine ({found.machine})"
        yield f"time       not known: no journal here has a cell with these settings that ended well {where}"
        return
    known = sum(map(len, found.seconds.values()))
    campaigns = f"{found.campaigns} earlier campaign{'s' * (found.campaigns > 1)}"
    least = "at least " if found.unknown else "about "
    for blocks in found.looks:
        middle, low, high = map(durations.told, found.seconds_of(blocks))
        bounds = (
            "" if found.unknown else f" ({low} to {high}, if all were as short or as long as any)"
        )
        yield f"time       {least}{middle} for {wording.blocks(blocks)}{bounds}"
    yield f"           by {known:,} cells of {campaigns} with these settings on this machine; preparation comes on top"
    if found.unknown:
        yield f"           not in it, since there is no such cell: {', '.join(found.unknown)}"


def _detectable(found: Forecast) -> Iterator[str]:
    if not found.detectable:
        needed = "both sides of three blocks with these settings on this machine"
        yield f"detectable not known: no earlier campaigns here have {needed}"
        return
    for at, one in enumerate(found.detectable):
        yield f"{'' if at else 'detectable':<11}{_difference(one)}"


def _difference(one: Detectable) -> str:
    ends = wording.outwards(one.low, one.high, digits=2)
    value, low, high = (wording.amount(share, one.finding) for share in (one.value, *ends))
    known = (
        f"{low} to {high} as the spread is known"
        if math.isfinite(one.high)
        else "the spread is hardly known"
    )
    who = f"{wording.named(one.finding)}, {one.finding.row.b} against {one.finding.row.a}"
    return (
        f"{who}: {value} after {wording.blocks(one.after)} in 80 % of campaigns ({known}; "
        f"SD of a block {wording.amount(one.sd, one.finding)}, {wording.blocks(one.blocks)})"
    )
