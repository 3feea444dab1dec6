"""Optuna's own plots of a search, as one page that needs no network, and as pictures."""

from __future__ import annotations

import html
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")

import optuna
from optuna import visualization
from optuna.distributions import CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as pictures

LEAST_TRIALS = 2
# Of fewer trials a forest of random trees ranks chance: six said that the batch size matters most where the framework did.
LEAST_FOR_IMPORTANCE = 20
DOTS_PER_INCH = 120


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
) -> list[str]:
    """`sweep.html` and `figures/*.png`. Returns a line for every plot that is not drawn. warned: what the terminal warned of."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    parts: list[str] = []
    missing = _too_few(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for plot in _plots(study):
            try:
                drawn = plot.interactive().to_html(full_html=False, include_plotlyjs=not parts)
                _save(plot.picture(), folder / "figures" / f"{plot.name}.png")
                parts.append(f"<h2>{html.escape(plot.title)}</h2>{drawn}")
            except (ValueError, RuntimeError, ZeroDivisionError) as error:
                missing.append(f"{plot.title}: {' '.join(str(error).split())[:120]}")
    (folder / "sweep.html").write_text(
        _page(title, [*(f"⚠ {one}" for one in warned), *sentences], table, parts, missing), encoding="utf-8"
    )
    return missing


def _plots(study: Study) -> list[Plot]:
    names = study.metric_names or ["objective"]
    several = len(study.directions) > 1
    found = []
    shown = _finite(study)
    if len(shown.trials) < LEAST_TRIALS:
        return []
    if several:
        found.append(
            Plot(
                "pareto_front",
                "What none surpasses in every objective",
                lambda: visualization.plot_pareto_front(shown),
                lambda: pictures.plot_pareto_front(shown),
            )
        )
    for at, name in enumerate(names):
        found += _of_objective(shown, name, at if several else None)
    return found


def _too_few(study: Study) -> list[str]:
    count = len(_finite(study).trials)
    wanted = f"What matters: {count} finished trials; {LEAST_FOR_IMPORTANCE} are needed to tell settings from chance"
    return [wanted] if count < LEAST_FOR_IMPORTANCE else []


def _of_objective(study: Study, name: str, at: int | None) -> list[Plot]:
    target: dict[str, Any] = {"target_name": name}
    if at is not None:
        target["target"] = lambda trial: trial.values[at]
    kinds = {
        "history": ("Best so far", "plot_optimization_history"),
        "importance": ("What matters", "plot_param_importances"),
        "slice": ("Setting by setting", "plot_slice"),
        "contour": ("Two settings together", "plot_contour"),
    }
    if len(study.trials) < LEAST_FOR_IMPORTANCE:
        del kinds["importance"]
    if len(_numeric(study)) < 2:
        del kinds["contour"]
    suffix = f"_{name.replace('/', '_')}" if at is not None else ""
    return [
        Plot(
            f"{kind}{suffix}",
            f"{title}: {name}",
            lambda call=call, more=more: getattr(visualization, call)(study, **target, **more),  # type: ignore[misc]
            lambda call=call, more=more: getattr(pictures, call)(study, **target, **more),  # type: ignore[misc]
        )
        for kind, (title, call) in kinds.items()
        for more in [{"params": _numeric(study)} if kind == "contour" else {}]
    ]


def _numeric(study: Study) -> list[str]:
    """The settings between whose values something lies: a contour between two frameworks would be an invention."""
    found = study.trials[0].distributions.items()
    return [name for name, one in found if not isinstance(one, CategoricalDistribution)]


def _finite(study: Study) -> Study:
    """The finished trials that have values: what ran out of memory has none to draw."""
    shown = optuna.create_study(directions=study.directions)
    shown.set_metric_names(study.metric_names or ["objective"])
    shown.add_trials([one for one in study.get_trials() if one.state == TrialState.COMPLETE and _has_values(one)])
    return shown


def _has_values(trial: FrozenTrial) -> bool:
    return all(abs(value) < float("inf") for value in trial.values)


def _save(drawn: Any, path: Path) -> None:
    axes = drawn if hasattr(drawn, "figure") else drawn.flat[0]
    axes.figure.savefig(path, dpi=DOTS_PER_INCH, bbox_inches="tight")
    axes.figure.clear()


def _page(
    title: str, sentences: Sequence[str], table: Sequence[Sequence[str]], parts: Sequence[str], missing: Sequence[str]
) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    rows = "".join(row(cells, "th" if not at else "td") for at, cells in enumerate(table))
    left_out = f"<p class=quiet>Not drawn: {html.escape('; '.join(missing))}</p>" if missing else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; font-size: 13px }}
th, td {{ text-align: left; padding: .2rem .7rem; border-bottom: 1px solid #ddd }}
.wide {{ overflow-x: auto; max-height: 32rem; overflow-y: auto }} .quiet {{ color: #666 }}
</style></head><body><h1>{html.escape(title)}</h1>
<ul>{"".join(f"<li>{html.escape(one)}</li>" for one in sentences)}</ul>
<p class=quiet>A search looks at each setting once and picks the luckiest: no verdict rests on it.
What it found is measured again, with other seeds and in random blocks, by a campaign of its own.</p>
{"".join(parts)}{left_out}
<h2>Trials</h2><div class=wide><table>{rows}</table></div></body></html>
"""
