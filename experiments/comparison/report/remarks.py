"""What a report says beside its verdicts, in sentences: learning curves, batch sizes and controls."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.comparison.report import wording
from experiments.comparison.verdicts.batch_sizes import Curve
from experiments.comparison.verdicts.findings import Control, Finding
from experiments.comparison.verdicts.learning import Agreement
from experiments.config.outcomes import outcome


def on_learning(found: Sequence[Agreement]) -> tuple[list[str], list[str]]:
    """What must be said before anything else, and what may be said."""
    loud, plain = [], []
    for one in found:
        where = f" [{one.stratum}]" if one.stratum else ""
        label, shift = outcome(one.metric).label, one.estimate
        at = f"in epoch {one.epoch} by {shift.value:+.3f} ({shift.low:+.3f} to {shift.high:+.3f})"
        who = f"{one.b} against {one.a}{where}"
        if one.alike is None:
            plain.append(f"Learning curves, {who}: {one.n_blocks} blocks are too few to say whether they overlap; furthest {at}.")
        elif one.alike:
            plain.append(
                f"Learning curves, {who}: they overlap. Over {one.n_epochs} epochs and {one.n_blocks} blocks the {label} "
                f"nowhere differs by more than ±{one.margin:g} beyond chance; furthest {at}."
            )
        else:
            loud.append(f"LEARNING DIFFERS, {who}: the {label} differs {at}: read the times with that in mind")
    return loud, plain


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
