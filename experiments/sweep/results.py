"""Results of a search: sentences, a table, and a page of Optuna's plots without a network."""

from __future__ import annotations

import html
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from optuna import visualization
from optuna.distributions import CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial
from pandas import DataFrame

from experiments.metrics import outcome
from experiments.sweep import search
from experiments.sweep.search import Goal
from experiments.sweep.space import Value

MIN_TRIALS = 2
# With fewer trials a forest of random trees ranks chance: six trials ranked the batch size first
# where the framework mattered.
MIN_FOR_IMPORTANCE = 20
MAX_FRONT = 3  # trials of a Pareto front in a sentence
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto;
padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; font-size: 13px }}
th, td {{ text-align: left; padding: .2rem .7rem; border-bottom: 1px solid #ddd }}
.wide {{ overflow-x: auto; max-height: 32rem; overflow-y: auto }} .quiet {{ color: #666 }}
@media screen and (prefers-color-scheme: dark) {{
body {{ background: #14181f; color: #e6eaf0 }} th, td {{ border-color: #2c3440 }}
.quiet {{ color: #a3afbd }}
.plotly-graph-div {{ filter: invert(.92) hue-rotate(180deg) }}
}}
</style></head><body><h1>{title}</h1>
<ul>{lines}</ul>
<p class=quiet>A search looks at each setting once and picks the luckiest: no verdict rests on it.
A separate campaign measures the best again, with other seeds and in random blocks.</p>
{plots}<p class=quiet>{missing}</p>
<h2>Trials</h2><div class=wide>{table}</div>
</body></html>
"""


def sentences(trials: Sequence[FrozenTrial], best: Sequence[FrozenTrial], goal: Goal) -> list[str]:
    counted = search.counted(trials)
    counts = Counter(
        "out of memory" if trial.constraints.get(search.FITS, 0) > 0 else trial.state.name.lower()
        for trial in counted
    )
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    lines = [f"{len(counted)} trials: {outcomes}."]
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
    from experiments.comparison.report import wording

    return ", ".join(
        f"{objective.outcome.label} {wording.quantity(value, objective.outcome)}"
        for objective, value in zip(goal.objectives, values, strict=True)
    )


def format_point(values: Mapping[str, Value], separator: str = " ") -> str:
    texts = {
        name: f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
    }
    return separator.join(f"{name}={text}" for name, text in texts.items())


def _trials_frame(study: Study) -> DataFrame:
    """Return Optuna's table of the trials; a satisfied constraint is 0 or below; seconds."""
    frame = study.trials_dataframe(
        ("number", "state", "params", "values", "constraints", "duration", "user_attrs")
    )
    if "duration" in frame:
        frame["duration"] = frame["duration"].dt.total_seconds()
    return frame


def write_page(study: Study, folder: Path, title: str, lines: Sequence[str]) -> list[str]:
    """Write `sweep.html`; return a line for every plot that is not drawn."""
    trials = [trial for trial in study.get_trials() if search.has_finite_values(trial)]
    parts: list[str] = []
    missing: list[str] = []
    if len(trials) < MIN_FOR_IMPORTANCE:
        needed = f"{MIN_FOR_IMPORTANCE} are needed to tell settings from chance"
        missing.append(f"Importance: {len(trials)} finished trials; {needed}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, plot in _plots(study, trials):
            try:
                figure = plot().to_html(full_html=False, include_plotlyjs=not parts)
            except (ValueError, RuntimeError, ZeroDivisionError) as error:
                missing.append(f"{name}: {' '.join(str(error).split())[:120]}")
            else:
                parts.append(f"<h2>{html.escape(name)}</h2>{figure}")
    page = PAGE.format(
        title=html.escape(title),
        lines="".join(f"<li>{html.escape(line)}</li>" for line in lines),
        plots="".join(parts),
        missing=html.escape(f"Not drawn: {'; '.join(missing)}" if missing else ""),
        table=_trials_frame(study).to_html(index=False, na_rep="", border=0, justify="left"),
    )
    (folder / "sweep.html").write_text(page, encoding="utf-8")
    return missing


def _plots(study: Study, trials: Sequence[FrozenTrial]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each plot and the call that draws it. trials: those with finite values."""
    if len(trials) < MIN_TRIALS:
        return
    metrics = map(outcome, study.metric_names or ["objective"])
    names = [f"{metric.label}, {metric.unit}" for metric in metrics]
    if len(names) > 1:
        yield "Pareto front", partial(visualization.plot_pareto_front, study, target_names=names)
    # A contour between two frameworks would be an invention.
    kinds = trials[0].distributions.items()
    numeric = [name for name, kind in kinds if not isinstance(kind, CategoricalDistribution)]
    for position, name in enumerate(names):
        options: dict[str, Any] = {"target_name": name, "target": partial(_value, position)}
        yield f"History: {name}", partial(visualization.plot_optimization_history, study, **options)
        if len(trials) >= MIN_FOR_IMPORTANCE:
            draw = partial(visualization.plot_param_importances, study, **options)
            yield f"Importance: {name}", draw
        yield f"Each setting: {name}", partial(visualization.plot_slice, study, **options)
        if len(numeric) > 1:
            draw = partial(visualization.plot_contour, study, params=numeric, **options)
            yield f"Two settings: {name}", draw


def _value(position: int, trial: FrozenTrial) -> float:
    return float(trial.values[position])
