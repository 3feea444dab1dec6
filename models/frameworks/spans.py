"""Events of profilers, which are nested in one another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from models.contract import Span


class Event(NamedTuple):
    """Event on one thread, in seconds: events of a thread are nested or do not overlap.

    plane, line: names in a trace of XLA's profiler. is_xla: whether it is a kernel of XLA.
    """

    name: str
    start: float
    end: float
    thread: Hashable = 0
    plane: str = ""
    line: str = ""
    is_xla: bool = False

    @property
    def span(self) -> Span:
        return self.start, self.end


def leaves(events: Iterable[Event]) -> list[Event]:
    """Return the events that contain no others, thread by thread in the order of time."""
    by_thread = defaultdict[Hashable, list[Event]](list)
    for event in events:
        by_thread[event.thread].append(event)
    innermost: list[Event] = []
    for nested in by_thread.values():
        # an event is followed at once by those that it contains
        nested.sort(key=lambda event: (event.start, -event.end))
        innermost += [event for event, after in pairwise(nested) if after.start >= event.end]
        innermost += nested[-1:]
    return innermost


def begun_in(events: Iterable[Event], steps: Sequence[Span]) -> list[Event]:
    """Return the events that begin in a step.

    Args:
        events: On any thread.
        steps: (start, end) of each, in seconds.
    """
    return [event for event in events if any(start <= event.start < end for start, end in steps)]


def by_kind(events: Iterable[Event]) -> dict[str, list[Span]]:
    """Return spans by the name of their event."""
    spans = defaultdict[str, list[Span]](list)
    for event in events:
        spans[event.name].append(event.span)
    return dict(spans)
