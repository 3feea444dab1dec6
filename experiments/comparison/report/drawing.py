"""Who draws the figures: this process, and a second one beside it where there are many runs."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from experiments.cell.lifetime import die_with_parent

if TYPE_CHECKING:
    from experiments.comparison.report.figures import Drawing, Figure

Finish = Callable[[], list["Figure"]]
# Begins what can be begun beside this process; what is returned draws the rest here and waits for all.
Begin = Callable[[Sequence["Drawing"]], Finish]
Drawn = tuple["Figure", list[warnings.WarningMessage]]


def here(drawings: Sequence[Drawing]) -> Finish:
    """All in this process, in the end."""
    from experiments.comparison.report import figures

    return lambda: list(map(figures.made, drawings))


def nobody(_: Sequence[Drawing]) -> Finish:
    """No figures."""
    return list


@contextmanager
def hands(*, second: bool) -> Iterator[Begin]:
    """Who draws until the context ends. second: a second process too.

    It starts at once and imports what drawing takes, while this one does other work.
    """
    if not second:
        yield here
        return
    # spawned, not forked: this process has threads (MLflow does)
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_prepare, initargs=(os.getpid(),))
    try:
        pool.submit(int)
        yield partial(_beside, pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _prepare(parent: int) -> None:
    """In the second process: it ends with the first, which alone hears Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL, parent)
    gc.disable()
    from experiments.comparison.report import figures  # noqa: F401


def _beside(pool: ProcessPoolExecutor, drawings: Sequence[Drawing]) -> Finish:
    try:
        return partial(_finish, [pool.submit(_drawn, one) for one in drawings], drawings)
    except BrokenExecutor:
        return here(drawings)


def _drawn(drawing: Drawing) -> Drawn:
    """In the second process: with its warnings, which the first alone knows how to print."""
    from experiments.comparison.report import figures

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return figures.made(drawing), said


def _finish(begun: Sequence[Future[Drawn]], drawings: Sequence[Drawing]) -> list[Figure]:
    """The second process takes the figures from the first on, this one from the last on."""
    from experiments.comparison.report import figures

    found = {at: figures.made(drawings[at]) for at in reversed(range(len(drawings))) if begun[at].cancel()}
    for at, one in enumerate(begun):
        if at not in found:
            found[at] = _received(one, drawings[at])
    return [found[at] for at in range(len(drawings))]


def _received(one: Future[Drawn], drawing: Drawing) -> Figure:
    """What the second process drew; drawn here where it is gone, killed for memory perhaps."""
    from experiments.comparison.report import figures

    try:
        figure, said = one.result()
    except BrokenExecutor:
        return figures.made(drawing)
    for told in said:
        warnings.warn_explicit(told.message, told.category, told.filename, told.lineno)
    return figure
