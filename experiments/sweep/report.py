"""The result of a search, as sentences and as a table. No arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial
from pandas import DataFrame

from experiments.comparison.report import wording
from experiments.sweep import search
from experiments.sweep.batches import NAME
from experiments.sweep.search import Goal
from experiments.sweep.space import Dimension, Value
from tracking import spreadsheet


def trials_frame(study: Study) -> DataFrame:
    """Return Optuna's table of the trials. A constraint that a trial kept is 0 or below; durations are in seconds."""
    frame = study.trials_dataframe(
        ("number", "state", "params", "values", "constraints", "duration", "user_attrs")
    )
    if "duration" in frame:
        frame["duration"] = frame["duration"].dt.total_seconds()
    return frame


def write_table(study: Study, folder: Path) -> None:
    """Write `trials.csv`, which MLflow's UI shows as a table."""
    frame = trials_frame(study)
    cells = frame.astype(object).where(frame.notna(), "").to_numpy().tolist()
    (folder / "trials.csv").write_text(
        spreadsheet.as_csv([list(frame.columns), *cells]), encoding="utf-8"
    )


def _out_of_memory(trial: FrozenTrial) -> bool:
    return trial.constraints.get(search.FITS, 0) > 0


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
        told.append(
            f"Trials ran on {len(machines)} different machines: times of one are not those of another."
        )
    return told


def _counts(trials: Sequence[FrozenTrial]) -> str:
    kept = search.counted(trials)
    counts = Counter(
        "out of memory" if _out_of_memory(one) else one.state.name.lower() for one in kept
    )
    return f"{len(kept)} trials: " + ", ".join(
        f"{count} {name}" for name, count in counts.most_common()
    )


def _described(trial: FrozenTrial, goal: Goal) -> str:
    settings = ", ".join(f"{name}={words_of(value)}" for name, value in trial.params.items())
    values = [
        f"{one.outcome.label} {wording.quantity(value, one.outcome)}"
        for one, value in zip(goal.objectives, trial.values, strict=True)
    ]
    return f"trial {trial.number} ({settings}): {', '.join(values)}"


def largest(
    found: Sequence[tuple[Mapping[str, Value], FrozenTrial | None]], dimensions: Sequence[Dimension]
) -> list[str]:
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


def words_of(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
