"""Text of a campaign's forecast, for `--dry_run`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from experiments.comparison.report import wording
from experiments.config import durations
from experiments.run.forecast import Forecast

MAX_BLOCKS_SHOWN = 12
MAX_LEFT_OUT_SHOWN = 20


def lines(forecast: Forecast) -> list[str]:
    """Return warnings, cells in their order, data, time and detectable effects."""
    return [
        *(f"! {line}" for line in forecast.warnings),
        *_cells(forecast),
        *([f"data       {forecast.data}; the settings fit them"] if forecast.data else []),
        *_left_out(forecast.left_out),
        *_time(forecast),
        *_detectable(forecast),
        "Nothing was measured, nothing was written.",
    ]


def _cells(forecast: Forecast) -> list[str]:
    count, most = len(forecast.plan.treatments), forecast.looks[-1]
    blocks = wording.blocks(most)
    if len(forecast.looks) > 1:
        blocks = f"at most {most} blocks, the first look after {forecast.looks[0]}"
    by_block = itertools.groupby(forecast.cells, key=lambda cell: cell.block)
    orders = [
        f"  block {number}: {', '.join(cell.treatment for cell in cells)}"
        for number, cells in by_block
    ]
    head = f"cells      {len(forecast.cells):,}: {count} in each of {blocks}, in this order:"
    return [head, *_shortened(orders, MAX_BLOCKS_SHOWN, most)]


def _left_out(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"left out   {len(lines):,}, each with the reason:"
        yield from _shortened([f"  {line}" for line in lines], MAX_LEFT_OUT_SHOWN, len(lines))


def _shortened(lines: Sequence[str], count: int, total: int) -> list[str]:
    more = [f"  and so on, {total - count:,} more"] if total > count else []
    return [*lines[:count], *more]


def _time(forecast: Forecast) -> Iterator[str]:
    if len(forecast.unknown) == len(forecast.plan.treatments):
        yield (
            "time       not known: no journal here has a cell with these settings that ended well "
            "on this machine"
        )
        return
    for blocks in forecast.looks:
        median, low, high = map(durations.format_duration, forecast.seconds_of(blocks))
        if forecast.unknown:
            yield f"time       at least {median} for {wording.blocks(blocks)}"
        else:
            yield (
                f"time       about {median} for {wording.blocks(blocks)} ({low} to {high}, "
                f"if all were as short or as long as any)"
            )
    count = sum(map(len, forecast.seconds.values()))
    yield (
        f"           by {count:,} cells of the last campaign with these settings on this machine; "
        f"preparation comes on top"
    )
    if forecast.unknown:
        names = ", ".join(forecast.unknown)
        yield f"           not in it, since there is no such cell: {names}"


def _detectable(forecast: Forecast) -> Iterator[str]:
    if not forecast.detectable:
        needed = "both sides of three blocks with these settings on this machine"
        yield f"detectable not known: the last campaign here lacks {needed}"
    for number, effect in enumerate(forecast.detectable):
        finding, row = effect.finding, effect.finding.row
        value, sd = (wording.amount(share, finding) for share in (effect.value, effect.sd))
        yield (
            f"{'' if number else 'detectable':<11}{wording.describe_outcome(finding)}, "
            f"{row.b} against {row.a}: {value} after "
            f"{wording.blocks(effect.after)} in 80 % of campaigns (SD of a block {sd}, "
            f"{wording.blocks(len(finding.pairs))})"
        )
