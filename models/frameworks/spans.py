"""What the profilers of all frameworks have in common: events that lie inside of one another."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from models.contract import Span


class Event(NamedTuple):
    """What went on from start to end, in seconds, on one thread: events of a thread lie apart or inside of one another."""

    name: str
    start: float
    end: float
    thread: Hashable = 0

    @property
    def span(self) -> Span:
        return self.start, self.end


def leaves(events: Iterable[Event]) -> list[Event]:
    """The events inside of which none of the others lies, thread by thread in the order of time."""
    by_thread: dict[Hashable, list[Event]] = {}
    for event in events:
        by_thread.setdefault(event.thread, []).append(event)
    found: list[Event] = []
    for inside in by_thread.values():
        ordered = sorted(
            inside, key=lambda one: (one.start, -one.end)
        )  # what lies in an event follows it at once
        found += [one for one, following in pairwise(ordered) if following.start >= one.end]
        found += ordered[-1:]
    return found


def begun_in(events: Iterable[Event], steps: Sequence[Span]) -> list[Event]:
    """The events that begin in a step."""
    return [event for event in events if any(start <= event.start < end for start, end in steps)]


def by_kind(events: Iterable[Event]) -> dict[str, list[Span]]:
    """Spans by the name of their event."""
    found: dict[str, list[Span]] = {}
    for event in events:
        found.setdefault(event.name, []).append(event.span)
    return found
