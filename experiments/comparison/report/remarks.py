"""What a report says beside its verdicts, in sentences: learning curves, batch sizes and controls."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.comparison.report import wording
from experiments.comparison.verdicts import outlook, precision
from experiments.comparison.verdicts.batch_sizes import Curve
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS
from experiments.comparison.verdicts.findings import Comparison, Control, Finding
from experiments.comparison.verdicts.learning import Agreement
from experiments.comparison.verdicts.precision import Precision
from experiments.config import shell
from experiments.config.outcomes import outcome
from tracking.records import JIT_COMPILE, JIT_PLANNED, RAN_EAGERLY


@dataclass(frozen=True)
class Advice:
    """Something that can be done next. arguments: of the call that does it; here: those that only this machine needs."""

    what: str
    arguments: tuple[str, ...]
    here: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """For everyone who reads of it: no folder and no server of this machine is in it."""
        return shlex.join(["evenhand", *self.arguments])

    @property
    def pasted(self) -> str:
        """For the terminal that it is printed in."""
        return shell.from_anywhere(*self.arguments, *self.here)

    def __str__(self) -> str:
        return f"{self.what}: {self.pasted}"


# So many more blocks, in that stratum -> how they are measured; None where they cannot be.
Measured = Callable[[int, str], Advice | None]


def on_more_blocks(comparison: Comparison, measured: Measured) -> Advice | None:
    """How the headline that needs most would be settled, where so many more blocks can be measured, and which ones it is for."""
    needed = [(outlook.more_blocks(finding), finding) for finding in wording.headlines(comparison)]
    wanted, longest = max(needed, key=lambda one: one[0], default=(0, None))
    if not wanted or longest is None:
        return None
    advice, stratum = measured(wanted, longest.row.stratum), longest.row.stratum
    served = [one.outcome.label for blocks, one in needed if blocks and one.row.stratum == stratum]
    return advice and replace(advice, what=f"{advice.what} (for {wording.joined(list(dict.fromkeys(served)))})")


# What a part of the spread is called, and what makes it smaller.
PARTS = {"block": "lies between blocks", "drift": "is drift", "process": "lies between processes", "apart": "is drift apart"}
MIN_SHARE = 0.05


def smallest(found: Sequence[Precision]) -> str:
    """The smallest effects that these runs could detect; empty without a test."""
    if not found:
        return ""
    by_metric = _by_metric(found)
    told = [f"{_told_apart(group)} in {group[0].finding.outcome.label}" for group in by_metric.values()]
    blocks = sorted({one.finding.row.n_blocks for one in found})
    count = wording.blocks(blocks[0]) if len(blocks) == 1 else f"{blocks[0]} to {wording.blocks(blocks[-1])}"
    return f"about {wording.joined(told)} (80 % power, {count})"


def on_precision(found: Sequence[Precision]) -> str:
    """The smallest effect that these runs could detect, what limits it, and where their spread lies; empty without a test."""
    if not found:
        return ""
    worst = _by_size(next(iter(_by_metric(found).values())))[-1]
    of = f" of {wording.named(worst.finding)}" if len(found) > 1 else ""
    parts = sorted(precision.shares(worst.parts).items(), key=lambda one: -one[1])
    shares = wording.joined([f"{100 * share:.0f} % {PARTS[name]}" for name, share in parts if share >= MIN_SHARE])
    return (
        f"Smallest detectable effect: {smallest(found)}. {_limit(worst)}. "
        f"Of the variance of runs{of} {shares}; what both sides of a block share cancels."
    )


def _by_metric(found: Sequence[Precision]) -> dict[str, list[Precision]]:
    groups: dict[str, list[Precision]] = {}
    for one in found:
        groups.setdefault(one.finding.row.metric, []).append(one)
    return groups


def _by_size(group: Sequence[Precision]) -> list[Precision]:
    return sorted(group, key=lambda one: one.finding.row.minimum_in_family or 0.0)


def _told_apart(group: Sequence[Precision]) -> str:
    least, most = (wording.detectable(one.finding) for one in (_by_size(group)[0], _by_size(group)[-1]))
    return most if least == most else f"{least} to {most}"


def _limit(one: Precision) -> str:
    finding, parts = one.finding, one.parts
    if one.limit == precision.STEPS and one.steps:
        return f"The limit is the spread of steps inside a process (SD {wording.spread(one.steps.sd)}): longer runs narrow it"
    if one.limit == precision.APART:
        rise = wording.rise(parts.apart.rise, finding)
        who = f"{finding.row.b} against {finding.row.a}"
        return f"The limit is a drift of {who}, {rise} over the blocks: more blocks do not narrow it"
    return f"The limit is the spread between processes (SD {wording.amount(parts.process, finding)}): more blocks narrow it"


def on_learning(found: Sequence[Agreement]) -> tuple[list[str], list[str]]:
    """Warnings that stand before everything else, and plain remarks."""
    loud, plain = [], []
    for one in found:
        where = f" [{one.stratum}]" if one.stratum else ""
        label, shift, who = outcome(one.metric).label, one.estimate, f"{one.b} against {one.a}{where}"
        if shift is None:
            plain.append(f"Learning curves, {who}: {one.n_blocks} blocks are too few to say whether they overlap.")
            continue
        low, high = wording.outwards(shift.low, shift.high, decimals=3)
        at = f"in epoch {one.epoch} by {shift.value:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", wording.MINUS)
        furthest = f"furthest {at}" if shift.low < shift.high or shift.value else "identical in every epoch"
        if one.alike is None:
            few = one.n_blocks < MINIMUM_BLOCKS
            why = "are too few to say whether they overlap" if few else f"do not show whether they overlap within ±{one.margin:g}"
            plain.append(f"Learning curves, {who}: {one.n_blocks} blocks {why}; {furthest}.")
        elif one.alike:
            plain.append(
                f"Learning curves, {who}: they overlap. In each of {one.n_epochs} epochs the {label} is equivalent "
                f"within ±{one.margin:g} (TOST, {one.n_blocks} blocks); {furthest}."
            )
        else:
            loud.append(f"LEARNING DIFFERS, {who}: the {label} differs {at}: read the times with that in mind")
    return loud, plain


def on_eager(environment: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each level that was not compiled as its variant is to be.

    environment: level -> fact -> what it is, as a comparison has it.
    """
    told = "What was not compiled ran eagerly: read the times with that in mind"
    eager = [
        f"NOT COMPILED THROUGHOUT, {level}: {facts[RAN_EAGERLY]}. {told}"
        for level, facts in environment.items()
        if RAN_EAGERLY in facts
    ]
    by_xla = [
        f"COMPILED OTHERWISE, {level}: jit_compile is {facts[JIT_COMPILE]}, expected {facts[JIT_PLANNED]}. "
        "The framework decided by the network and the device: read the times with that in mind"
        for level, facts in environment.items()
        if facts.get(JIT_COMPILE) != facts.get(JIT_PLANNED)
    ]
    return eager + by_xla


def on_batches(found: Sequence[Curve]) -> list[str]:
    """Which batch size to take, a sentence a curve."""
    told = []
    for curve in found:
        where = ", ".join(filter(None, [curve.stratum.removeprefix("framework="), curve.level, curve.what]))
        p = curve.trend_p
        if not curve.limit:
            told.append(f"{where}: no batch size is named, {curve.reason}.")
            continue
        shown = "" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
        rises = f"; throughput rises with the size (Page's trend test, {shown})" if shown else ""
        told.append(f"{where}: a batch of {curve.limit} is enough, {curve.reason}{rises}.")
    return told


def on_control(control: Control) -> str:
    """What had to come out of a control, and what did."""
    return f"Control {control.name} of {control.comparison.baseline}: expected {control.expected}; {control_result(control)}."


def control_result(control: Control) -> str:
    """Which outcomes a control called different, and whether those are the ones that it should."""
    if not control.tested:
        return "nothing could be tested"
    return _same_work(control) if control.name.startswith("A/A") else _slowed(control)


def _same_work(control: Control) -> str:
    """Nothing must be called different; what is inconclusive shows neither."""
    wrong, count = control.flagged, len(control.tested)
    told = f"{len(wrong)} of {count} tested outcomes {'was' if len(wrong) == 1 else 'were'} called different"
    told += f", falsely: {_named(wrong)}" if wrong else ""
    still_open = sum(not finding.judged for finding in control.tested)
    return told + (f"; {still_open} of the {count} are inconclusive" if still_open else "")


def _slowed(control: Control) -> str:
    """Every median time must be slower, and by what was injected."""
    if not control.delayed:
        return "no median time of steps or requests was tested, in which it must show"
    found = [one for one in control.delayed if control.shows_delay(one)]
    missed = [one for one in control.delayed if one not in found]
    other = [one for one in found if not control.as_injected(one)]
    beside = [one for one in control.flagged if one not in control.delayed]
    expected = f"{1 + (control.injected or 0.0):.3g}×"
    parts = (
        ("NOT FOUND in", missed, True),
        ("found in", [one for one in found if one not in other], True),
        (f"found, but not as the {expected} that was injected, in", other, True),
        ("also called different:", beside, False),
    )
    return "; ".join(f"{what} {_named(those, effects=effects)}" for what, those, effects in parts if those)


def _named(findings: Sequence[Finding], *, effects: bool = False) -> str:
    """Outcomes by their names in a report, and what was seen of them."""
    told = []
    for one in findings:
        seen = f" ({wording.effect(one)}, {wording.effect_interval(one) or 'always'})" if effects else ""
        told.append(wording.named(one) + seen)
    return wording.joined(told)
