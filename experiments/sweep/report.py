"""Result of a search as sentences and as a table. No arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial
from pandas import DataFrame

from experiments.sweep import search
from experiments.sweep.search import Goal
from experiments.sweep.space import Dimension, Value
from tracking import spreadsheet


def trials_frame(study: Study) -> DataFrame:
    """Return Optuna's table of the trials; a satisfied constraint is 0 or below; seconds."""
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
    text = spreadsheet.as_csv([list(frame.columns), *cells])
    (folder / "trials.csv").write_text(text, encoding="utf-8")


def sentences(trials: Sequence[FrozenTrial], best: Sequence[FrozenTrial], goal: Goal) -> list[str]:
    counted = search.counted(trials)
    counts = Counter(
        "out of memory" if trial.constraints.get(search.FITS, 0) > 0 else trial.state.name.lower()
        for trial in counted
    )
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    lines = [f"{len(counted)} trials: {outcomes}."]
    if goal.objectives and best:
        texts = []
        for trial in best[:3]:
            point = ", ".join(f"{name}={words_of(value)}" for name, value in trial.params.items())
            texts.append(f"trial {trial.number} ({point}): {quantities(trial.values, goal)}")
        front = f"{len(best)} trials that none surpasses in everything; {'; '.join(texts)}."
        lines.append(f"Best seen, {texts[0]}." if len(best) == 1 else front)
    machines = {trial.user_attrs.get("machine", "") for trial in trials} - {""}
    if len(machines) > 1:
        different = f"Trials ran on {len(machines)} different machines"
        lines.append(f"{different}: times of one are not those of another.")
    return lines


def quantities(values: Sequence[float], goal: Goal) -> str:
    from experiments.comparison.report import wording

    return ", ".join(
        f"{objective.outcome.label} {wording.quantity(value, objective.outcome)}"
        for objective, value in zip(goal.objectives, values, strict=True)
    )


def largest(
    trials: Sequence[tuple[Mapping[str, Value], FrozenTrial | None]], along: Dimension
) -> list[str]:
    """Return the largest batch that fits, a sentence for each combination of the other settings."""
    smallest, *_, top = along.sizes()
    lines = []
    for others, trial in trials:
        where = f"{', '.join(map(words_of, others.values()))}: " if others else ""
        if trial is None:
            lines.append(f"{where}no batch fits, not even one of {smallest}.")
        elif trial.params[along.name] == top:
            lines.append(f"{where}every batch up to {top}, the largest of the search, fits.")
        else:
            lines.append(f"{where}the largest batch that fits is {trial.params[along.name]}.")
    return lines


def words_of(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
