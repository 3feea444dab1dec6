"""Optuna's own plots of a search, as one page that needs no network, and as pictures."""

from __future__ import annotations

import html
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("MPLBACKEND", "Agg")

import optuna
from optuna import visualization
from optuna.distributions import CategoricalDistribution
from optuna.importance import BaseImportanceEvaluator, FanovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as pictures

from experiments.comparison.report import wording
from experiments.config.outcomes import outcome

MIN_TRIALS = 2
# Of fewer trials a forest of random trees ranks chance: six said that the batch size matters most where the framework did.
MIN_FOR_IMPORTANCE = 20
DOTS_PER_INCH = 120
TREES, RESAMPLES = 32, 20
NOWHERE: Mapping[str, str] = {}


@dataclass(frozen=True)
class Plot:
    """name: of its file; interactive, picture: draw it with plotly, with matplotlib; title: what it shows."""

    name: str
    title: str
    interactive: Callable[[], Any]
    picture: Callable[[], Any]


def write(
    study: Study,
    folder: Path,
    title: str,
    sentences: Sequence[str],
    table: Sequence[Sequence[str]],
    *,
    warned: Sequence[str] = (),
    pages: Mapping[str, str] = NOWHERE,
) -> list[str]:
    """`sweep.html` and `figures/*.png`. Returns a line for every plot that is not drawn.

    warned: what the terminal warned of. pages: of the runs in MLflow, by their names in the table.
    """
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    parts: list[str] = []
    missing = _too_few(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for plot in _plots(study, pages):
            try:
                drawn = plot.interactive().to_html(full_html=False, include_plotlyjs=not parts)
                _save(plot.picture(), folder / "figures" / f"{plot.name}.png")
                parts.append(f"<h2>{html.escape(plot.title)}</h2>{drawn}")
            except (ValueError, RuntimeError, ZeroDivisionError) as error:
                missing.append(f"{plot.title}: {' '.join(str(error).split())[:120]}")
    (folder / "sweep.html").write_text(
        _page(title, [*(f"⚠ {one}" for one in warned), *sentences], table, parts, missing, pages), encoding="utf-8"
    )
    return missing


@dataclass(frozen=True)
class Target:
    """An objective as people read it: values divided by `factor` are in the unit that its label ends with."""

    name: str
    label: str
    factor: float


def _targets(study: Study) -> list[Target]:
    finished = [one for one in study.get_trials() if _has_values(one)]
    found = []
    for at, name in enumerate(study.metric_names or ["objective"]):
        known = outcome(name)
        scale = wording.scale(known.unit, [one.values[at] for one in finished])
        found.append(Target(name, ", ".join(filter(None, (known.label, scale.unit))), scale.factor))
    return found


def _plots(study: Study, pages: Mapping[str, str] = NOWHERE) -> list[Plot]:
    targets = _targets(study)
    if len(_finished(study)) < MIN_TRIALS:
        return []
    found = []
    if len(targets) > 1:
        both, names = _in_units(study, targets), [one.label for one in targets]
        found.append(
            Plot(
                "pareto_front",
                "What none surpasses in every objective",
                lambda: visualization.plot_pareto_front(both, target_names=names),
                lambda: pictures.plot_pareto_front(both, target_names=names),
            )
        )
    for target in targets:
        suffix = f"_{target.name.replace('/', '_')}" if len(targets) > 1 else ""
        found += _of_objective(
            _in_units(study, [target]), target, suffix, [pages.get(_run(one), "") for one in study.get_trials()]
        )
    return found


def _too_few(study: Study) -> list[str]:
    count = len(_finished(study))
    wanted = f"What matters: {count} finished trials; {MIN_FOR_IMPORTANCE} are needed to tell settings from chance"
    return [wanted] if count < MIN_FOR_IMPORTANCE else []


def _of_objective(study: Study, target: Target, suffix: str, pages: Sequence[str]) -> list[Plot]:
    """study: with this objective alone, so that Optuna draws the best so far. pages: of the trials' runs."""
    named, numeric = {"target_name": target.label}, _numeric(study)

    def plot(kind: str, title: str, call: str, **more: Any) -> Plot:
        drawn, pictured = (partial(getattr(one, call), study, **named, **more) for one in (visualization, pictures))
        return Plot(f"{kind}{suffix}", f"{title}: {target.label}", drawn, pictured)

    history = plot("history", "Best so far", "plot_optimization_history")
    found = [replace(history, interactive=lambda: _with_pages(history.interactive(), pages))]
    if len(_finished(study)) >= MIN_FOR_IMPORTANCE:
        ranked = plot("importance", "What matters", "plot_param_importances", evaluator=_evaluator())
        bars = cache(partial(_resampled, study))
        found.append(
            replace(
                ranked,
                interactive=lambda: _with_bars(ranked.interactive(), bars()),
                picture=lambda: _with_lines(ranked.picture(), bars()),
            )
        )
    found.append(plot("slice", "Setting by setting", "plot_slice"))
    return [*found, plot("contour", "Two settings together", "plot_contour", params=numeric)] if len(numeric) > 1 else found


def _with_pages(drawn: Any, pages: Sequence[str]) -> Any:
    """A click on a trial opens its run: its page is what the point carries."""
    drawn.update_xaxes(title="trial")
    for trace in drawn.select_traces({"mode": "markers"}):
        trace.customdata = [pages[number] for number in trace.x]
    return drawn


# ---- what matters, and how sure that is


def _evaluator() -> BaseImportanceEvaluator:
    return FanovaImportanceEvaluator(n_trees=TREES, seed=0)


def _resampled(study: Study) -> dict[str, tuple[float, float]]:
    """The middle 90 % of every setting's importance over resamples of the trials (bootstrap): by chance it might be any of it."""
    rng, trials = np.random.default_rng(0), _finished(study)
    found: dict[str, list[float]] = {}
    for _ in range(RESAMPLES):
        again = optuna.create_study(directions=study.directions)
        again.add_trials([trials[at] for at in rng.integers(0, len(trials), len(trials))])
        with suppress(ValueError, RuntimeError, ZeroDivisionError):  # of trials that are all alike
            for name, share in optuna.importance.get_param_importances(again, evaluator=_evaluator()).items():
                found.setdefault(name, []).append(share)
    return {name: tuple(np.quantile(shares, (0.05, 0.95))) for name, shares in found.items()}


SHARE = "share of the variance (fANOVA); lines: 90 % intervals over resampled trials"


def _with_bars(drawn: Any, intervals: Mapping[str, tuple[float, float]]) -> Any:
    ends = [(end, name) for name, interval in intervals.items() for end in (*interval, None)]
    shares, names = zip(*ends, strict=True) if ends else ((), ())
    drawn.add_scatter(x=shares, y=names, mode="lines", line={"color": "#333"}, showlegend=False)
    drawn.update_xaxes(title=SHARE)
    return drawn


def _with_lines(axes: Any, intervals: Mapping[str, tuple[float, float]]) -> Any:
    for at, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        if label.get_text() in intervals:
            axes.plot(intervals[label.get_text()], [at, at], color="0.2", linewidth=1.2)
    axes.set_xlabel(SHARE)
    return axes


# ---- trials


def _numeric(study: Study) -> list[str]:
    """The settings between whose values something lies: a contour between two frameworks would be an invention."""
    found = _finished(study)[0].distributions.items()
    return [name for name, one in found if not isinstance(one, CategoricalDistribution)]


def _in_units(study: Study, targets: Sequence[Target]) -> Study:
    """Its trials with the values of these objectives in people's units.

    Trials without values stay, as failed ones: every trial keeps the number that it has in the table.
    """
    at = [(study.metric_names or ["objective"]).index(one.name) for one in targets]
    shown = optuna.create_study(directions=[study.directions[place] for place in at])
    for one in study.get_trials():
        if _has_values(one):
            values = [one.values[place] / target.factor for place, target in zip(at, targets, strict=True)]
            kept = optuna.trial.create_trial(
                values=values, params=one.params, distributions=one.distributions, constraints=one.constraints
            )
        else:
            kept = optuna.trial.create_trial(state=TrialState.FAIL, params=one.params, distributions=one.distributions)
        shown.add_trial(kept)
    return shown


def _finished(study: Study) -> list[FrozenTrial]:
    return [one for one in study.get_trials() if _has_values(one)]


def _has_values(trial: FrozenTrial) -> bool:
    """What ran out of memory has none to draw."""
    return trial.state == TrialState.COMPLETE and all(abs(value) < float("inf") for value in trial.values)


def _run(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get("run", ""))


# A point that carries the page of its run opens it.
CLICKS = """for (const one of document.querySelectorAll(".plotly-graph-div"))
one.on("plotly_click", (event) => event.points[0].customdata && open(event.points[0].customdata, "_blank"));"""


def _save(drawn: Any, path: Path) -> None:
    axes = drawn if hasattr(drawn, "figure") else drawn.flat[0]
    axes.figure.savefig(path, dpi=DOTS_PER_INCH, bbox_inches="tight")
    axes.figure.clear()


def _page(
    title: str,
    sentences: Sequence[str],
    table: Sequence[Sequence[str]],
    parts: Sequence[str],
    missing: Sequence[str],
    pages: Mapping[str, str],
) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        told = [html.escape(cell) for cell in cells]
        if tag == "td" and (page := pages.get(cells[-1])):
            told[-1] = f'<a href="{html.escape(page)}" target="_blank">{told[-1]}</a>'
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in told) + "</tr>"

    rows = "".join(row(cells, "th" if not at else "td") for at, cells in enumerate(table))
    left_out = f"<p class=quiet>Not drawn: {html.escape('; '.join(missing))}</p>" if missing else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; font-size: 13px }}
th, td {{ text-align: left; padding: .2rem .7rem; border-bottom: 1px solid #ddd }}
.wide {{ overflow-x: auto; max-height: 32rem; overflow-y: auto }} .quiet {{ color: #666 }}
@media screen and (prefers-color-scheme: dark) {{
body {{ background: #14181f; color: #e6eaf0 }} th, td {{ border-color: #2c3440 }}
.quiet {{ color: #a3afbd }} a {{ color: #7db2ee }}
.plotly-graph-div {{ filter: invert(.92) hue-rotate(180deg) }}
}}
</style></head><body><h1>{html.escape(title)}</h1>
<ul>{"".join(f"<li>{html.escape(one)}</li>" for one in sentences)}</ul>
<p class=quiet>A search looks at each setting once and picks the luckiest: no verdict rests on it.
What it found is measured again, with other seeds and in random blocks, by a campaign of its own.</p>
{"".join(parts)}{left_out}
<h2>Trials</h2><div class=wide><table>{rows}</table></div>
<script>{CLICKS}</script></body></html>
"""
