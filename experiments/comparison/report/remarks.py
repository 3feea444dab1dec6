"""Advice on what to do next, and warnings before any number."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from experiments.comparison.report import wording
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.verdicts import outlook
from experiments.comparison.verdicts.findings import Comparison
from experiments.config import shell
from tracking.records import JIT_COMPILE, JIT_PLANNED, RAN_EAGERLY


@dataclass(frozen=True)
class Advice:
    """Command that measures more.

    Attributes:
        arguments: of the call.
        here: arguments that only this machine needs.
    """

    what: str
    arguments: tuple[str, ...]
    here: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """Command without a folder or server of this machine."""
        return shlex.join(["evenhand", *self.arguments])

    @property
    def pasted(self) -> str:
        """Command for the terminal that it is printed in."""
        return shell.from_anywhere(*self.arguments, *self.here)

    def __str__(self) -> str:
        return f"{self.what}: {self.pasted}"


# Number of blocks and stratum -> how they are measured; None if they cannot be.
Measured = Callable[[int, str], Advice | None]


def on_more_blocks(comparison: Comparison, measured: Measured) -> Advice | None:
    """Return how the headline that needs most blocks can be settled."""
    needed = [(outlook.more_blocks(finding), finding) for finding in wording.headlines(comparison)]
    blocks_needed, longest = max(needed, key=lambda need: need[0], default=(0, None))
    if not blocks_needed or longest is None:
        return None
    advice, stratum = measured(blocks_needed, longest.row.stratum), longest.row.stratum
    served = [
        finding.outcome.label
        for blocks, finding in needed
        if blocks and finding.row.stratum == stratum
    ]
    return advice and replace(
        advice, what=f"{advice.what} (for {wording.joined(list(dict.fromkeys(served)))})"
    )


def on_eager(environment: Mapping[str, Mapping[str, str]]) -> list[ComparisonWarning]:
    """Return a warning for each level that was not compiled as its variant is to be.

    Args:
        environment: level -> fact -> value, as in a comparison.
    """
    text = "What was not compiled ran eagerly: read the times with that in mind"
    eager = [
        ComparisonWarning(
            WarningCode.NOT_COMPILED,
            f"NOT COMPILED THROUGHOUT, {level}: {facts[RAN_EAGERLY]}. {text}",
        )
        for level, facts in environment.items()
        if RAN_EAGERLY in facts
    ]
    by_xla = [
        ComparisonWarning(
            WarningCode.COMPILED_OTHERWISE,
            f"COMPILED OTHERWISE, {level}: jit_compile is {facts[JIT_COMPILE]}, expected "
            f"{facts[JIT_PLANNED]}. "
            "The framework decided by the network and the device: read the times with that in mind",
        )
        for level, facts in environment.items()
        if facts.get(JIT_COMPILE) != facts.get(JIT_PLANNED)
    ]
    return eager + by_xla
