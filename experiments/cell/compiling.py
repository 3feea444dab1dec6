"""What a framework compiles while a cell trains: how much, how much of it after the first step, and what it left to Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from experiments.contract import CellSpec, Output
from models.contract import Framework
from models.frameworks import described
from tracking.records import RAN_EAGERLY, Tags

MAX_LETTERS = 160


class Compiling:
    """Counts from where it is made. What is compiled between the epochs, as for a validation, is no recompilation."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._began, self._left = framework.compilations(), dict(framework.graph_breaks() or {})
        self._first: int | None = None
        self._in_steps = 0

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Steps of training."""
        before = self._framework.compilations()
        yield
        self._in_steps += self._framework.compilations() - before

    def stepped(self) -> None:
        """A step has ended; what was compiled until the first one had, had to be."""
        if self._first is None:
            self._first = self._framework.compilations() - self._began

    def tell(self, spec: CellSpec, model: str, output: Output) -> None:
        """As metrics, and as tags, which the report shows beside what the runs ran on: they are judged by nobody.

        Where a variant that compiles ran eagerly, as a whole or in part, the tag `ran_eagerly` and a warning in the
        report say so.
        """
        counts = {"compilations": self._framework.compilations() - self._began}
        if self._first is not None:
            counts["recompilations"] = self._in_steps - self._first
        breaks = self._breaks()
        if breaks is not None:
            counts["graph_breaks"] = sum(breaks.values())
        output.metrics({f"train/{name}": count for name, count in counts.items()})
        tags = {f"train.{name}": str(count) for name, count in counts.items()}
        if (
            self._first is not None
            and described(spec.framework).compiles
            and (why := _eager(counts, breaks or {}))
        ):
            tags[RAN_EAGERLY] = f"{model}: {why}"
        output.record(Tags(spec.run, tags))

    def _breaks(self) -> dict[str, int] | None:
        found = self._framework.graph_breaks()
        if found is None:
            return None
        since = {reason: count - self._left.get(reason, 0) for reason, count in found.items()}
        return {reason: count for reason, count in since.items() if count > 0}


def _eager(counts: dict[str, int], breaks: dict[str, int]) -> str:
    """What of a training that should be compiled was not; empty if all of it was."""
    if not counts["compilations"]:
        return "nothing was compiled"
    if not breaks:
        return ""
    reason, count = " ".join(next(iter(breaks)).split()), sum(breaks.values())
    shown = reason if len(reason) <= MAX_LETTERS else f"{reason[: MAX_LETTERS - 1]}…"
    return f"{count} graph break{'s' * (count > 1)}, first: {shown}"
