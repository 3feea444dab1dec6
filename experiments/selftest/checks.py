"""Checks of the acceptance kit: definition, figures and results."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from models import frameworks
from models.contract import ModelError
from tracking.errors import EvenhandError

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NEEDS_GPU = "needs an NVIDIA GPU; this run is on the CPU"


class Skip(Exception):
    """Reason why a check cannot run here."""


@dataclass(frozen=True)
class Figure:
    """A measured value with its limit.

    holds: None if the value is only reported, or not available: `reason` then states why.
    """

    name: str
    value: float | str | None
    limit: str = ""
    holds: bool | None = None
    reason: str = ""


@dataclass(frozen=True)
class Context:
    """Conditions of a check, and the figures that it measures.

    frameworks: those that are checked. folder: for files of the check.
    """

    device: str
    frameworks: tuple[str, ...]
    folder: Path
    figures: list[Figure] = field(default_factory=list)

    @property
    def has_gpu(self) -> bool:
        return self.device == "cuda"

    def within(self, name: str, value: float, low: float, high: float) -> None:
        """Add a figure that must lie in an interval, its ends included."""
        self.figures.append(Figure(name, value, f"{low:g} to {high:g}", low <= value <= high))

    def equal(self, name: str, value: float | str, expected: float | str, reason: str = "") -> None:
        is_equal = value == expected
        self.figures.append(Figure(name, value, f"equal to {expected}", is_equal, reason))

    def report(self, name: str, value: float | str | None, reason: str = "") -> None:
        """Add a figure without a limit; the reason states why there is no value."""
        self.figures.append(Figure(name, value, reason=reason))

    def installed(self, *names: str) -> list[str]:
        """Return those of some frameworks that can run; add a figure for each of the others.

        Raises:
            Skip: if no framework can run.
        """
        requested = [name for name in self.frameworks if name in names]
        reasons = {name: reason_missing(name) for name in requested}
        for name, reason in reasons.items():
            if reason:
                self.report(name, None, reason)
        available = [name for name, reason in reasons.items() if not reason]
        if not available:
            needed = f"needs one of {', '.join(names)}, which this run leaves out"
            raise Skip("; ".join(reasons.values()) or needed)
        return available


def reason_missing(framework: str) -> str:
    """Return why a framework cannot run here, or an empty text."""
    try:
        return frameworks.missing(framework) or ""
    except (ModelError, ImportError, ValueError) as error:
        return str(error)


@dataclass(frozen=True)
class Check:
    """A check of the acceptance kit.

    must_hold: the statement that it proves. on_cpu: whether it is valid without a GPU.
    """

    number: int
    name: str
    must_hold: str
    function: Callable[[Context], None]
    on_cpu: bool = False


@dataclass(frozen=True)
class CheckResult:
    """Outcome of a check. reason: why it was skipped, or failed."""

    number: int
    name: str
    must_hold: str
    status: str
    seconds: float
    reason: str
    figures: tuple[Figure, ...]


def run_check(check: Check, context: Context) -> CheckResult:
    """Run a check and return its result, even if it raises."""
    began = time.perf_counter()
    context = replace(context, figures=[])
    status, reason = SKIPPED, NEEDS_GPU
    if context.has_gpu or check.on_cpu:
        status, reason = _measure(check, context)
    return CheckResult(
        check.number,
        check.name,
        check.must_hold,
        status,
        round(time.perf_counter() - began, 1),
        " ".join(reason.split()),
        tuple(context.figures),
    )


def _measure(check: Check, context: Context) -> tuple[str, str]:
    """Measure the figures of a check, and return its status with the reason."""
    try:
        with tempfile.TemporaryDirectory(dir=context.folder) as folder:
            check.function(replace(context, folder=Path(folder)))
    except Skip as error:
        return SKIPPED, str(error)
    except EvenhandError as error:
        return FAILED, str(error)
    except Exception as error:  # the other checks run all the same
        return FAILED, f"{type(error).__name__}: {error}"
    if unmet := [figure.name for figure in context.figures if figure.holds is False]:
        return FAILED, f"does not hold: {', '.join(unmet)}"
    if not any(figure.holds for figure in context.figures):
        reasons = filter(None, (figure.reason for figure in context.figures))
        return SKIPPED, "; ".join(reasons) or "nothing was measured"
    return PASSED, ""
