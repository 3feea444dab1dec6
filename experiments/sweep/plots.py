"""Page of a sweep: Optuna's plots and table in one file, which needs no network."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from optuna import visualization
from optuna.distributions import CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial

from experiments.metrics import outcome
from experiments.sweep import search
from experiments.sweep.report import trials_frame

MIN_TRIALS = 2
# With fewer trials a forest of random trees ranks chance: six trials ranked the batch size first
# where the framework mattered.
MIN_FOR_IMPORTANCE = 20


def write(
    study: Study, folder: Path, title: str, sentences: Sequence[str], warned: Sequence[str] = ()
) -> list[str]:
    """Write `sweep.html`; return a line for every plot that is not drawn.

    Args:
        warned: the terminal's warnings.
    """
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
    table = trials_frame(study).to_html(index=False, na_rep="", border=0, justify="left")
    lines = [*(f"⚠ {line}" for line in warned), *sentences]
    (folder / "sweep.html").write_text(_page(title, lines, table, parts, missing), encoding="utf-8")
    return missing


def _plots(study: Study, trials: Sequence[FrozenTrial]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each plot and the call that draws it. trials: those with finite values."""
    if len(trials) < MIN_TRIALS:
        return
    names = [
        f"{metric.label}, {metric.unit}"
        for metric in map(outcome, study.metric_names or ["objective"])
    ]
    if len(names) > 1:
        yield "Pareto front", partial(visualization.plot_pareto_front, study, target_names=names)
    # A contour between two frameworks would be an invention.
    distributions = trials[0].distributions.items()
    numeric = [
        name for name, kind in distributions if not isinstance(kind, CategoricalDistribution)
    ]
    for position, name in enumerate(names):
        target = {"target": partial(_value, position)} if len(names) > 1 else {}
        options: dict[str, Any] = {"target_name": name, **target}
        yield f"History: {name}", partial(visualization.plot_optimization_history, study, **options)
        if len(trials) >= MIN_FOR_IMPORTANCE:
            yield (
                f"Importance: {name}",
                partial(visualization.plot_param_importances, study, **options),
            )
        yield f"Each setting: {name}", partial(visualization.plot_slice, study, **options)
        if len(numeric) > 1:
            yield (
                f"Two settings: {name}",
                partial(visualization.plot_contour, study, params=numeric, **options),
            )


def _value(position: int, trial: FrozenTrial) -> float:
    return float(trial.values[position])


def _page(
    title: str, lines: Sequence[str], table: str, parts: Sequence[str], missing: Sequence[str]
) -> str:
    left_out = f"<p class=quiet>Not drawn: {html.escape('; '.join(missing))}</p>" if missing else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>
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
</style></head><body><h1>{html.escape(title)}</h1>
<ul>{"".join(f"<li>{html.escape(line)}</li>" for line in lines)}</ul>
<p class=quiet>A search looks at each setting once and picks the luckiest: no verdict rests on it.
A separate campaign measures the best again, with other seeds and in random blocks.</p>
{"".join(parts)}{left_out}
<h2>Trials</h2><div class=wide>{table}</div>
</body></html>
"""
