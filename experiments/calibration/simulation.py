"""Error rates of the tool: simulated campaigns, judged by the same code as real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Literal

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from experiments.comparison import compare
from experiments.comparison.runs import query
from experiments.comparison.statistics.estimates import Floats
from experiments.comparison.verdicts.decision import ALPHA, Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.planning import design
from tracking.records import StoredRun

Tails = Literal["normal", "student-t", "bimodal"]
BASELINE, OTHER = "a", "b"
MAIN = "train/step_seconds"
PLANNED_BLOCKS = 12
TRUE_RATIO, MARGIN = 1.05, 0.03
MAX_FALSE_ALARMS, COVERAGE, MIN_POWER = 0.06, (0.93, 0.97), 0.8
# At a true effect of the margin itself, row by row.
MAX_WRONG_EQUIVALENT, MAX_WRONG_BEYOND = 0.05, 0.025


@dataclass(frozen=True)
class Noise:
    """Effect of a machine on measurements; spreads are SDs of logarithms (0.03 is 3 %).

    Attributes:
        run_sd: Between processes of the same kind.
        drift: Slowdown from the campaign's first run to its last.
        tails: Shape of the spread.
        correlation: Between the metrics of a run; without any, Holm's correction costs most.
    """

    name: str
    run_sd: float = 0.03
    drift: float = 0.0
    tails: Tails = "normal"
    correlation: float = 0.5
    metrics: int = 12


SCENARIOS = (
    Noise("quiet", run_sd=0.005),
    Noise("run-to-run spread 3 %"),
    Noise("drift 5 %", run_sd=0.01, drift=0.05),
    Noise("heavy tails", tails="student-t"),
    Noise("bimodal", tails="bimodal"),
    Noise("1 unrelated metric", correlation=0.0, metrics=1),
    Noise("5 unrelated metrics", correlation=0.0, metrics=5),
    Noise("12 unrelated metrics", correlation=0.0),
    Noise("30 metrics, correlation 0.8", correlation=0.8, metrics=30),
)
# Rates of a scenario, with the headings of their table.
COLUMNS = {
    "false_alarm_rows": "false alarms: rows",
    "false_alarms": "reports",
    "false_verdicts": "false verdicts",
    "wrong_equivalent_rows": "wrongly equivalent: rows",
    "wrong_equivalent": "reports",
    "wrong_beyond_rows": "wrongly beyond: rows",
    "wrong_beyond": "reports",
    "coverage": "coverage",
    "power": "power",
    "power_in_report": "power in a report",
    "primary_false_alarms": "declared primary: false alarms",
    "exploratory_false_alarms": "exploratory: false alarms",
    "primary_power": "declared primary: power",
}
NOTE = (
    "In brackets: 95 % Monte-Carlo intervals. False alarms: A/A rows with a difference, and "
    "reports with any; false verdicts: reports with any verdict on one. Wrongly equivalent, "
    "wrongly beyond: the same at a true ratio of the margin. Coverage: 95 % intervals that hold "
    "the true ratio. Power: a difference of 5 % in the median step is shown, alone and in the "
    "whole report. Then that step is declared as the primary metric, and all others are "
    "exploratory."
)


@dataclass(frozen=True)
class Proportion:
    """Measured share with its 95 % Monte-Carlo interval (Wilson)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f}–{100 * self.high:.1f})"


@dataclass(frozen=True)
class Rates:
    """Error rates of the tool over simulated campaigns of one scenario, by name in `COLUMNS`."""

    noise: Noise
    campaigns: int
    blocks: int
    shares: Mapping[str, Proportion]


@dataclass(frozen=True)
class Claim:
    """Promise of a scenario's rate, and whether the measured interval reaches the limits.

    rate: its name in `COLUMNS`.
    """

    rate: str
    claim: str
    limit: str
    measured: Proportion
    holds: bool


def simulate(
    noise: Noise, blocks: int, ratio: float, rng: np.random.Generator, *, shuffled: bool = True
) -> pd.DataFrame:
    """Return the runs of a campaign in order; if not shuffled, all of a, then all of b."""
    cells = design.blocks([[BASELINE, OTHER]], blocks, rng)
    if not shuffled:
        cells.sort(key=lambda cell: (cell.treatment, cell.block))
    shift = np.array([math.log(ratio) if cell.treatment == OTHER else 0.0 for cell in cells])
    drift = math.log1p(noise.drift) * np.linspace(0, 1, len(cells))
    shared = math.sqrt(noise.correlation) * _draw(noise.tails, (len(cells), 1), rng)
    single = _draw(noise.tails, (len(cells), noise.metrics), rng)
    spread = shared + math.sqrt(1 - noise.correlation) * single
    values = 0.03 * np.exp((shift + drift)[:, None] + noise.run_sd * spread)
    names = [MAIN, *(f"inference/batch_{size}/latency_seconds_p50" for size in range(1, 99))]
    runs = []
    for at, cell in enumerate(cells):
        tags = {
            "kind": "cell",
            "campaign": "simulated",
            "framework": cell.treatment,
            "machine": "simulated",
            "outcome": "ok",
            "block": str(cell.block),
            "order_in_block": str(cell.order_in_block),
            "settings_hash": "simulated",
        }
        metrics = dict(zip(names, values[at].tolist(), strict=False))
        runs.append(StoredRun(cell.key, cell.key, "FINISHED", at, at + 1, {}, metrics, tags))
    return query.table(runs)


def _draw(tails: Tails, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return independent values with mean 0 and SD 1."""
    if tails == "student-t":
        return rng.standard_t(3, shape) / math.sqrt(3)
    if tails == "bimodal":
        modes = math.sqrt(0.9) * rng.choice([-1.0, 1.0], shape)
        return np.asarray(modes + math.sqrt(0.1) * rng.standard_normal(shape))
    return rng.standard_normal(shape)


def calibrate(
    scenarios: Sequence[Noise] = SCENARIOS,
    *,
    campaigns: int = 300,
    blocks: int = PLANNED_BLOCKS,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Rates]:
    """Return the error rates of `compare` in each scenario; the same seed gives the same rates.

    Args:
        workers: Processes. They are spawned: a script needs `if __name__ == "__main__"`.
        progress: Called with the number of campaigns so far and of all.
    """
    tasks = [
        (noise, seeds)
        for noise in scenarios
        for seeds in np.random.SeedSequence([seed, *noise.name.encode()]).spawn(campaigns)
    ]
    judge = partial(_judge, blocks=blocks)
    results = []
    with ExitStack() as stack:
        answers: Iterable[dict[str, float]] = map(judge, tasks)
        if workers > 1:  # spawned, not forked: the caller may have threads (MLflow does)
            pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
            answers = stack.enter_context(pool).map(judge, tasks, chunksize=10)
        for answer in answers:
            results.append(answer)
            if progress:
                progress(len(results), len(tasks))
    rates = []
    for at, noise in enumerate(scenarios):
        group = results[at * campaigns : (at + 1) * campaigns]
        shares = {name: share([result[name] for result in group]) for name in COLUMNS}
        rates.append(Rates(noise, campaigns, blocks, shares))
    return rates


def _judge(task: tuple[Noise, np.random.SeedSequence], *, blocks: int) -> dict[str, float]:
    """Return the results of three campaigns for `COLUMNS`, as shares of rows, or as 0 or 1.

    The campaigns are A/A, a true difference, and one of the margin itself.
    """
    noise, seeds = task
    rng = np.random.default_rng(seeds)
    tables = [simulate(noise, blocks, ratio, rng) for ratio in (1.0, TRUE_RATIO, 1 + MARGIN)]
    null, report, edge = (compare(table, baseline=BASELINE, margin=MARGIN) for table in tables)
    declared_null, declared = (
        compare(table, baseline=BASELINE, margin=MARGIN, primary=[MAIN]) for table in tables[:2]
    )
    main, declared_main = (
        next(finding for finding in comparison.findings if finding.row.metric == MAIN)
        for comparison in (report, declared)
    )
    false_alarms = _rows(null, lambda finding: finding.different)
    inside = (Decision.EQUIVALENT, Decision.WITHIN_MARGIN)
    equivalent = _rows(edge, lambda finding: finding.decision in inside)
    beyond = _rows(edge, lambda finding: finding.decision is Decision.DIFFERENT)
    alarms = [finding.primary for finding in declared_null.findings if finding.different]
    return {
        "false_alarm_rows": false_alarms,
        "false_alarms": false_alarms > 0,
        "false_verdicts": _rows(null, lambda finding: finding.decision is Decision.DIFFERENT) > 0,
        "wrong_equivalent_rows": equivalent,
        "wrong_equivalent": equivalent > 0,
        "wrong_beyond_rows": beyond,
        "wrong_beyond": beyond > 0,
        "coverage": _rows(report, _covers),
        "power": main.row.p is not None and main.row.p <= ALPHA,
        "power_in_report": main.different,
        "primary_false_alarms": True in alarms,
        "exploratory_false_alarms": False in alarms,
        "primary_power": declared_main.different,
    }


def _rows(report: Comparison, condition: Callable[[Finding], bool]) -> float:
    """Return the share of a report's rows that meet a condition."""
    return sum(map(condition, report.findings)) / len(report.findings)


def _covers(finding: Finding) -> bool:
    high = math.inf if finding.row.ci_high is None else finding.row.ci_high
    return (finding.row.ci_low or 0.0) <= TRUE_RATIO <= high


def share(values: Sequence[float]) -> Proportion:
    """Return the mean of shares, one per campaign, since intervals of one report are dependent."""
    shares = np.asarray(values, dtype=float)
    value, spread = float(shares.mean()), float(shares.var())
    worth = len(shares) * value * (1 - value) / spread if spread else len(shares)
    low, high = proportion_confint(value * worth, worth, method="wilson")
    return Proportion(value, float(low), float(high))


def meets(rates: Sequence[Rates]) -> list[Claim]:
    """Return the promises of each scenario, and whether they hold."""
    promises = {
        "any false alarm among {} metrics": ("false_alarms", 0.0, MAX_FALSE_ALARMS),
        "a false alarm of a primary metric": ("primary_false_alarms", 0.0, MAX_FALSE_ALARMS),
        "any false alarm of exploratory metrics": (
            "exploratory_false_alarms",
            0.0,
            MAX_FALSE_ALARMS,
        ),
        "rows at the margin called equivalent": (
            "wrong_equivalent_rows",
            0.0,
            MAX_WRONG_EQUIVALENT,
        ),
        "rows at the margin called beyond it": ("wrong_beyond_rows", 0.0, MAX_WRONG_BEYOND),
        "95 % intervals hold the true ratio": ("coverage", *COVERAGE),
        "a difference of 5 % is shown, declared alone": ("power", MIN_POWER, 1.0),
        "a difference of 5 % is shown, declared primary": ("primary_power", MIN_POWER, 1.0),
    }
    claims = []
    for scenario in rates:
        for text, (name, least, most) in promises.items():
            if least == MIN_POWER and scenario.blocks < PLANNED_BLOCKS:
                continue
            limit = f"{100 * least:.0f}–{100 * most:.0f} %"
            if least == 0:
                limit = f"≤ {100 * most:g} %"
            elif most == 1:
                limit = f"≥ {100 * least:.0f} %"
            measured = scenario.shares[name]
            holds = measured.high >= least and measured.low <= most
            claim = f"{scenario.noise.name}: {text.format(scenario.noise.metrics)}"
            claims.append(Claim(name, claim, limit, measured, holds))
    return claims


def as_markdown(rates: Sequence[Rates]) -> str:
    """Return the rates, then the promises and whether they hold."""
    campaigns, blocks = rates[0].campaigns, rates[0].blocks
    lines = [
        f"**{campaigns:,} simulated campaigns a scenario, {blocks} blocks**",
        "",
        f"| scenario | {' | '.join(COLUMNS.values())} |",
        f"|---|{'--:|' * len(COLUMNS)}",
    ]
    for scenario in rates:
        shares = " | ".join(str(scenario.shares[name]) for name in COLUMNS)
        lines.append(f"| {scenario.noise.name} | {shares} |")
    lines += ["", NOTE, "", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    for claim in meets(rates):
        holds = "holds" if claim.holds else "**does not hold**"
        lines.append(f"| {claim.claim} | {claim.limit} | {claim.measured} | {holds} |")
    return "\n".join(lines) + "\n"
