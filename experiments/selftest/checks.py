"""What a check of the acceptance kit is, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models import frameworks
from models.contract import ModelError

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Skip(Exception):
    """Why a check cannot run here."""


@dataclass(frozen=True)
class Figure:
    """One measured value with the limit that it must keep.

    holds: None if the value is only reported, or could not be measured: `reason` then states why.
    """

    name: str
    value: float | str | None
    limit: str = ""
    holds: bool | None = None
    reason: str = ""


def within(name: str, value: float, low: float, high: float) -> Figure:
    """Return a figure that must lie in an interval, its ends included."""
    return Figure(name, value, f"{low:g} to {high:g}", low <= value <= high)


def at_most(name: str, value: float, limit: float) -> Figure:
    """Return a figure that must not exceed a limit."""
    return Figure(name, value, f"at most {limit:g}", value <= limit)


def equal(name: str, value: float | str, expected: float | str) -> Figure:
    """Return a figure that must have one value."""
    return Figure(name, value, f"equal to {expected}", value == expected)


def reported(name: str, value: float | str) -> Figure:
    """Return a figure that nothing depends on."""
    return Figure(name, value)


def unmeasured(name: str, reason: str) -> Figure:
    """Return a figure that is not available."""
    return Figure(name, None, reason=reason)


@dataclass(frozen=True)
class Context:
    """Where a check runs. frameworks: those that are compared, the installed ones first; folder: for its files."""

    device: str
    frameworks: tuple[str, ...]
    folder: Path

    @property
    def has_gpu(self) -> bool:
        return self.device == "cuda"

    def installed(self, *names: str) -> tuple[list[str], list[Figure]]:
        """Return those frameworks that can run, and a figure with the reason for each of the others.

        names: a selection; none: all frameworks of this run.

        Raises:
            Skip: if none of them can run.
        """
        running, missing = list[str](), list[Figure]()
        for name in [name for name in self.frameworks if name in (names or self.frameworks)]:
            if reason := reason_missing(name):
                missing.append(unmeasured(name, reason))
            else:
                running.append(name)
        if not running:
            reasons = "; ".join(figure.reason for figure in missing)
            raise Skip(reasons or f"needs one of {', '.join(names)}, which this run leaves out")
        return running, missing


def reason_missing(name: str) -> str:
    """Return why a framework cannot run here, or an empty text."""
    try:
        return frameworks.missing(name) or ""
    except (ModelError, ImportError, ValueError) as error:
        return str(error)


@dataclass(frozen=True)
class Check:
    """One check of the acceptance kit.

    seconds: about, on one GPU. must_hold: the statement that it proves. on_cpu: whether it means something
    without a GPU.
    """

    number: int
    name: str
    seconds: int
    must_hold: str
    function: Callable[[Context], Sequence[Figure]]
    on_cpu: bool = False


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check. reason: why it was skipped, or what ended it."""

    number: int
    name: str
    must_hold: str
    status: str
    seconds: float
    reason: str = ""
    figures: tuple[Figure, ...] = field(default=())
