"""What a search found, in words and in a table. No arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from optuna.trial import FrozenTrial, TrialState

from experiments.comparison.report import wording
from experiments.config.console import Table
from experiments.sweep import search
from experiments.sweep.batches import NAME
from experiments.sweep.search import Goal
from experiments.sweep.space import Dimension, Value

SHOWN = 10


def table(trials: Sequence[FrozenTrial], goal: Goal) -> list[list[str]]:
    """A header and a row a trial: number, state, settings, objectives, what it broke or why it failed, its run."""
    names = [one.name for one in goal.dimensions]
    metrics = [one.metric for one in goal.objectives]
    steps = ["steps"] if any("steps" in one.user_attrs for one in trials) else []
    found = [["trial", "state", *names, *steps, *metrics, "seconds", "remark", "run"]]
    for one in trials:
        values = _values(one, goal) or [""] * len(metrics)
        seconds = f"{one.duration.total_seconds():.1f}" if one.duration else ""
        settings = [words_of(one.params[name]) if name in one.params else "" for name in names]
        taken = [str(one.user_attrs.get(name, "")) for name in steps]
        remark, run = _remark(one), one.user_attrs.get("run", "")
        found.append([str(one.number), one.state.name, *settings, *taken, *values, seconds, remark, run])
    return found


def _values(trial: FrozenTrial, goal: Goal) -> list[str]:
    if trial.state != TrialState.COMPLETE or _out_of_memory(trial):
        return []
    return [wording.quantity(trial.values[at], one.outcome) for at, one in enumerate(goal.objectives)]


def _out_of_memory(trial: FrozenTrial) -> bool:
    return trial.constraints.get(search.FITS, 0) > 0


def _remark(trial: FrozenTrial) -> str:
    if _out_of_memory(trial):
        return "out of memory"
    broken = [name for name, value in trial.constraints.items() if value > 0]
    if broken:
        return f"breaks {', '.join(broken)}"
    if search.original_number(trial) != trial.number:
        return f"trial {search.original_number(trial)} once more, whose worker was gone"
    return "" if trial.state == TrialState.COMPLETE else str(trial.user_attrs.get("reason", ""))[:200]


def sentences(trials: Sequence[FrozenTrial], best: Sequence[FrozenTrial], goal: Goal) -> list[str]:
    """How many trials ended how, the best, and what must be known about them."""
    told = [f"{_counts(trials)}."]
    if len(best) == 1 and goal.objectives:
        told.append(f"Best seen, {_described(best[0], goal)}.")
    elif best and goal.objectives:
        told.append(
            f"{len(best)} trials that none surpasses in everything; {'; '.join(_described(one, goal) for one in best[:3])}."
        )
    machines = {one.user_attrs["machine"] for one in trials if "machine" in one.user_attrs}
    if len(machines) > 1:
        told.append(f"Trials ran on {len(machines)} different machines: times of one are not those of another.")
    return told


def _counts(trials: Sequence[FrozenTrial]) -> str:
    kept = search.counted(trials)
    counts = Counter("out of memory" if _out_of_memory(one) else one.state.name.lower() for one in kept)
    return f"{len(kept)} trials: " + ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _described(trial: FrozenTrial, goal: Goal) -> str:
    settings = ", ".join(f"{name}={words_of(value)}" for name, value in trial.params.items())
    values = [
        f"{one.outcome.label} {wording.quantity(value, one.outcome)}"
        for one, value in zip(goal.objectives, trial.values, strict=True)
    ]
    return f"trial {trial.number} ({settings}): {', '.join(values)}"


def largest(found: Sequence[tuple[Mapping[str, Value], FrozenTrial | None]], dimensions: Sequence[Dimension]) -> list[str]:
    """The largest batch that fits, a sentence for each combination of what else was searched."""
    along = next(one for one in dimensions if one.name == NAME)
    top, least = max(map(int, along.extremes)), min(map(int, along.extremes))
    told = []
    for others, trial in found:
        where = f"{', '.join(map(words_of, others.values()))}: " if others else ""
        if trial is None:
            told.append(f"{where}no batch fits, not even one of {least}.")
        elif trial.params[NAME] == top:
            told.append(f"{where}every batch up to {top}, the largest asked for, fits.")
        else:
            told.append(f"{where}the largest batch that fits is {trial.params[NAME]}.")
    return told


def metrics(trials: Sequence[FrozenTrial], best: Sequence[FrozenTrial], goal: Goal) -> dict[str, float]:
    """What the sweep's own run keeps: how many trials, and the best value of a single objective under its metric's name."""
    kept = search.counted(trials)
    found = {
        f"sweep/{state.name.lower()}_trials": float(sum(one.state == state for one in kept))
        for state in {one.state for one in kept}
    }
    if len(goal.objectives) == 1 and best:
        found[f"sweep/best/{goal.objectives[0].metric}"] = best[0].values[0]
    return found


def terminal(rows: Sequence[Sequence[str]], best: Sequence[FrozenTrial]) -> Table:
    """Table of the best trials for the terminal."""
    header, *body = rows
    shown = Table(title="best trials", title_justify="left")
    for name in header[:-1]:
        shown.add_column(name)
    numbers = [str(one.number) for one in best[:SHOWN]]
    for row in sorted((row for row in body if row[0] in numbers), key=lambda row: numbers.index(row[0])):
        shown.add_row(*row[:-1])
    return shown


def words_of(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
