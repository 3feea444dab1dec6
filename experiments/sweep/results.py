"""Results of a search: sentences, and a page with figures and a table of the trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial

from experiments.comparison.report import rendering, wording
from experiments.comparison.report.canvas import Figure
from experiments.comparison.report.sections import Cell, Column, Header, Line, Section
from experiments.metrics import outcome
from experiments.sweep import plots, search
from experiments.sweep.search import Goal
from experiments.sweep.settings import Sweep
from experiments.sweep.space import Value

MAX_FRONT = 3  # trials of a Pareto front in a sentence


def sentences(trials: Sequence[FrozenTrial], best: Sequence[FrozenTrial], goal: Goal) -> list[str]:
    counted = search.counted(trials)
    counts = Counter(map(format_state, counted))
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    plural = "" if len(counted) == 1 else "s"
    lines = [f"{len(counted)} trial{plural}: {outcomes}."]
    if best:
        texts = []
        for trial in best[:MAX_FRONT]:
            values = format_quantities(trial.values, goal)
            texts.append(f"trial {trial.number} ({format_point(trial.params, ', ')}): {values}")
        lines.append(f"Best trial: {texts[0]}.")
        if len(best) > 1:
            lines[-1] = f"Pareto front of {len(best)} trials: {'; '.join(texts)}."
    machines = {trial.user_attrs.get("machine", "") for trial in trials} - {""}
    if len(machines) > 1:
        lines.append(f"Trials ran on {len(machines)} machines, whose times are not comparable.")
    return lines


def format_quantities(values: Sequence[float], goal: Goal) -> str:
    return ", ".join(
        f"{objective.outcome.label} {wording.quantity(value, objective.outcome)}"
        for objective, value in zip(goal.objectives, values, strict=True)
    )


def format_state(trial: FrozenTrial) -> str:
    is_out_of_memory = trial.constraints.get(search.FITS, 0) > 0
    return "out of memory" if is_out_of_memory else trial.state.name.lower()


def format_value(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_point(values: Mapping[str, Value], separator: str = " ") -> str:
    return separator.join(f"{name}={format_value(value)}" for name, value in values.items())


def write_page(
    study: Study,
    folder: Path,
    sweep: Sweep,
    lines: Sequence[str],
    warnings: Sequence[str],
    runs: Mapping[int, Cell],
) -> list[str]:
    """Write `sweep.html`; return a line for every figure that is not drawn.

    Args:
        study: The search.
        folder: That gets the page.
        sweep: Settings of the search.
        lines: Sentences of its result.
        warnings: Of the search.
        runs: Run id in MLflow by number of the trial; a missing one is shown as the journal's.
    """
    figures, missing = plots.draw(study)
    notes = [f"Not drawn: {'; '.join(missing)}."] if missing else []
    body: list[Section | Figure] = [*figures, _trials(study, runs)]
    title, question = f"Sweep of {sweep.experiment}", f"Searched: {sweep.search.replace(',', ', ')}"
    texts = {"title": title, "question": question, "warnings": warnings, "notes": notes}
    page = rendering.render("sweep.html.j2", sentences=lines, body=body, **texts)
    (folder / "sweep.html").write_text(page, encoding="utf-8")
    return missing


def _trials(study: Study, runs: Mapping[int, Cell]) -> Section:
    """Return the table of all trials."""
    trials = study.get_trials()
    settings = list(dict.fromkeys(name for trial in trials for name in trial.params))
    metrics = [outcome(name) for name in study.metric_names or ["objective"]]
    rows: list[Line] = []
    for trial in trials:
        values = trial.values or [math.nan] * len(metrics)
        took = f"{trial.duration.total_seconds():.1f} s" if trial.duration else ""
        rows.append(
            (
                str(trial.number),
                format_state(trial),
                *(
                    format_value(trial.params[name]) if name in trial.params else ""
                    for name in settings
                ),
                *(
                    wording.quantity(value, metric) if math.isfinite(value) else ""
                    for value, metric in zip(values, metrics, strict=True)
                ),
                took,
                runs.get(trial.number, str(trial.user_attrs.get("run", ""))),
                str(trial.user_attrs.get("reason", "")),
            )
        )
    header: Header = [
        Column("trial", numeric=True),
        "state",
        *settings,
        *(Column(metric.label, numeric=True) for metric in metrics),
        Column("took", numeric=True),
        "run",
        "reason",
    ]
    return Section(
        "Trials",
        "Each is one process. Times of processes that failed are no results.",
        header,
        rows,
    )
