"""Text of a campaign's forecast, for `--dry_run`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from experiments.comparison.report import wording
from experiments.config import durations
from experiments.run.forecast import Detectable, Forecast

MAX_BLOCKS_SHOWN = 12
MAX_LEFT_OUT_SHOWN = 20


def lines(forecast: Forecast) -> list[str]:
    """Return warnings, cells in their order, data, time and detectable effects."""
    return [
        *(f"! {line}" for line in forecast.warnings),
        *_cells(forecast),
        *_data(forecast),
        *_time(forecast),
        *_titled("detectable", _detectable(forecast)),
        "Nothing was measured, nothing was written.",
    ]


def _titled(title: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield lines with a title before the first."""
    for number, text in enumerate(texts):
        yield f"{'' if number else title:<11}{text}"


def _cells(forecast: Forecast) -> Iterator[str]:
    count, most = len(forecast.plan.treatments), forecast.looks[-1]
    blocks = wording.blocks(most)
    if len(forecast.looks) > 1:
        blocks = f"at most {most} blocks, the first look after {forecast.looks[0]}"
    yield (
        f"cells      {len(forecast.cells):,}: {count} in each of {blocks}, "
        f"each a fresh process, in this order:"
    )
    by_block = itertools.groupby(forecast.cells, key=lambda cell: cell.block)
    for number, cells in itertools.islice(by_block, MAX_BLOCKS_SHOWN):
        yield f"  block {number}: {', '.join(cell.treatment for cell in cells)}"
    if most > MAX_BLOCKS_SHOWN:
        yield f"  and so on, {most - MAX_BLOCKS_SHOWN:,} more"


def _data(forecast: Forecast) -> Iterator[str]:
    yield f"data       {forecast.data}; the settings fit them"
    count = len(forecast.left_out)
    if count:
        yield f"left out   {count:,}, each with the reason:"
        yield from (f"  {line}" for line in forecast.left_out[:MAX_LEFT_OUT_SHOWN])
    if count > MAX_LEFT_OUT_SHOWN:
        yield f"  and so on, {count - MAX_LEFT_OUT_SHOWN:,} more"


def _is_unknown(forecast: Forecast) -> bool:
    return len(forecast.unknown) == len(forecast.plan.treatments)


def _time(forecast: Forecast) -> Iterator[str]:
    if _is_unknown(forecast):
        yield (
            "time       not known: no journal here has a cell with these settings that ended well "
            f"on this machine ({forecast.machine})"
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


def _detectable(forecast: Forecast) -> list[str]:
    if not forecast.detectable:
        needed = "both sides of three blocks with these settings on this machine"
        return [f"not known: the last campaign here lacks {needed}"]
    return [_effect(effect) for effect in forecast.detectable]


def _effect(effect: Detectable) -> str:
    finding, row = effect.finding, effect.finding.row
    value, sd = (wording.amount(share, finding) for share in (effect.value, effect.sd))
    return (
        f"{wording.describe_outcome(finding)}, {row.b} against {row.a}: {value} after "
        f"{wording.blocks(effect.after)} in 80 % of campaigns (SD of a block {sd}, "
        f"{wording.blocks(len(finding.pairs))})"
    )
