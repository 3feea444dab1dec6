"""Error rates of the tool: simulated campaigns, judged by the same code as real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Literal

import numpy as np
import pandas as pd
from scipy import signal, stats
from statsmodels.stats.proportion import proportion_confint

from experiments.cell import timing
from experiments.comparison import compare
from experiments.comparison.runs import query
from experiments.comparison.statistics.estimates import Floats, is_constant, log_ratios
from experiments.comparison.verdicts.decision import ALPHA, Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.planning import design
from tracking.errors import ErrorCode, UsageError
from tracking.records import StoredRun

Tails = Literal["normal", "student-t", "bimodal"]
BASELINE, OTHER = "a", "b"
MAIN = "train/step_seconds"
# Phases that are timed step by step, and values that a sensor gives once a run.
TRAINING_SECONDS, REQUEST_SECONDS = 0.03, 0.008
SENSORS = {"memory/peak_rss_bytes": 7e8, "energy/joules_per_example": 0.4, "power/watts_mean": 60.0}
METRICS = (
    MAIN,
    "train/step_seconds_p95",
    "train/examples_per_second",
    "train/total_seconds",
    "train/first_step_seconds",
    "inference/latency_seconds_p50",
    "inference/latency_seconds_p95",
    "inference/examples_per_second",
    "inference/first_call_seconds",
    *SENSORS,
)
BATCH, WARMUP = 32, 5
MAX_UNRELATED, PLANNED_BLOCKS = 30, 12
TRUE_RATIO, MARGIN = 1.05, 0.03
MAX_FALSE_ALARMS, COVERAGE, MIN_POWER = 0.06, (0.93, 0.97), 0.8
# At a true effect of the margin itself, row by row.
MAX_WRONG_EQUIVALENT, MAX_WRONG_BEYOND = 0.05, 0.025


@dataclass(frozen=True)
class Noise:
    """Effect of a machine on measurements; spreads are SDs of logarithms (0.03 is 3 %).

    Attributes:
        run_sd: Between processes of the same kind.
        step_sd, step_autocorrelation: Between the steps of a process.
        drift: Slowdown from the campaign's first run to its last.
        tails: Shape of both spreads.
        metric_correlation: Between a run's phases; metrics of one phase share its steps.
        unrelated: Each metric comes from a separate phase; uncorrelated, this is the hardest case
            for Holm's correction.
        metrics: Number of them in this scenario.
    """

    name: str
    run_sd: float = 0.01
    step_sd: float = 0.02
    step_autocorrelation: float = 0.0
    drift: float = 0.0
    tails: Tails = "normal"
    metric_correlation: float = 0.5
    unrelated: bool = False
    metrics: int | None = None


SCENARIOS = (
    Noise("quiet", run_sd=0.005, step_sd=0.01),
    Noise("autocorrelated steps", step_sd=0.05, step_autocorrelation=0.9),
    Noise("run-to-run spread 3 %", run_sd=0.03, step_autocorrelation=0.5),
    Noise("drift 5 %", drift=0.05),
    Noise("heavy tails", run_sd=0.03, step_sd=0.05, step_autocorrelation=0.5, tails="student-t"),
    Noise("bimodal", run_sd=0.03, step_autocorrelation=0.5, tails="bimodal"),
    Noise("1 unrelated metric", 0.03, metric_correlation=0.0, unrelated=True, metrics=1),
    Noise("5 unrelated metrics", 0.03, metric_correlation=0.0, unrelated=True, metrics=5),
    Noise("12 unrelated metrics", 0.03, metric_correlation=0.0, unrelated=True, metrics=12),
    Noise("30 metrics, correlation 0.8", 0.03, metric_correlation=0.8, unrelated=True, metrics=30),
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
    """Error rates of the tool over simulated campaigns of one scenario.

    Attributes:
        false_alarms: A/A reports in which any row shows a difference; `…_rows`: such rows.
        false_verdicts: A/A reports in which any row has a verdict with a direction.
        wrong_equivalent: Reports at a true ratio of the margin with a row called equivalent.
        wrong_beyond: The same with a row called beyond the margin.
        coverage: 95 % intervals that hold the true ratio of 1.05.
        power: Campaigns in which that difference is shown for the median training step as the
            only outcome of a report; `power_in_report`: among all metrics, after Holm.
        primary_false_alarms: The same with the median step declared as primary.
        exploratory_false_alarms: Of all other metrics then.
        primary_power: Power for the declared outcome.
        steps_false_alarms: Of the papers' signed-rank test on the steps of one run a side.
        ordered_false_alarms: Of a t test if all runs of a precede all runs of b.
    """

    noise: Noise
    campaigns: int
    blocks: int
    metrics: int
    false_alarm_rows: Proportion
    false_alarms: Proportion
    false_verdicts: Proportion
    wrong_equivalent_rows: Proportion
    wrong_equivalent: Proportion
    wrong_beyond_rows: Proportion
    wrong_beyond: Proportion
    coverage: Proportion
    power: Proportion
    power_in_report: Proportion
    primary_false_alarms: Proportion
    exploratory_false_alarms: Proportion
    primary_power: Proportion
    steps_false_alarms: Proportion
    ordered_false_alarms: Proportion


@dataclass(frozen=True)
class Claim:
    """Promise of a scenario's rate, and whether the measured interval reaches the limits."""

    claim: str
    limit: str
    measured: Proportion
    holds: bool


@dataclass(frozen=True)
class _Run:
    """Simulated process: its cell, its training steps and its metrics."""

    cell: design.Cell
    training: timing.PhaseValues
    metrics: dict[str, float]


def _campaign(
    noise: Noise,
    blocks: int,
    metrics: int,
    steps: int,
    ratio: float,
    rng: np.random.Generator,
    shuffled: bool = True,
) -> list[_Run]:
    """Return the runs of a campaign in order; if not shuffled, all of a, then all of b."""
    metrics = noise.metrics or metrics
    most = MAX_UNRELATED if noise.unrelated else len(METRICS)
    if not 1 <= metrics <= most:
        raise UsageError(
            ErrorCode.INVALID_VALUE, f"metrics={metrics} cannot be simulated; choose 1 to {most}"
        )
    if steps < (least := timing.EARNED_AT[95] + WARMUP):
        raise UsageError(
            ErrorCode.TOO_FEW, f"steps={steps} are too few for a p95; at least {least}"
        )
    cells = design.blocks([[BASELINE, OTHER]], blocks, rng)
    if not shuffled:
        cells.sort(key=lambda cell: (cell.treatment, cell.block))
    shift = np.array([math.log(ratio) if cell.treatment == OTHER else 0.0 for cell in cells])
    drift = math.log1p(noise.drift) * np.linspace(0, 1, len(cells))
    timed = metrics if noise.unrelated else 2
    apart = timed if noise.unrelated else timed + len(SENSORS)
    shared = math.sqrt(noise.metric_correlation) * _standard(noise.tails, (len(cells), 1), rng)
    single = _standard(noise.tails, (len(cells), apart), rng)
    spread = shared + math.sqrt(1 - noise.metric_correlation) * single
    runs = (shift + drift)[:, None] + noise.run_sd * spread
    # steps are AR(1) with SD 1
    drawn = _standard(noise.tails, (len(cells), timed, steps), rng)
    drawn[..., 1:] *= math.sqrt(1 - noise.step_autocorrelation**2)
    of_steps = signal.lfilter([1.0], [1.0, -noise.step_autocorrelation], drawn, axis=-1)
    seconds = np.exp(runs[:, :timed, None] + noise.step_sd * of_steps)
    summarise = _unrelated if noise.unrelated else _related
    processes = []
    for at, cell in enumerate(cells):
        training = timing.PhaseValues(
            "train",
            tuple((TRAINING_SECONDS * seconds[at, 0]).tolist()),
            (BATCH,) * steps,
            WARMUP,
        )
        processes.append(_Run(cell, training, summarise(training, seconds[at], runs[at], metrics)))
    return processes


def _standard(tails: Tails, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return independent values with mean 0 and SD 1."""
    if tails == "student-t":
        return rng.standard_t(3, shape) / math.sqrt(3)
    if tails == "bimodal":
        modes = math.sqrt(0.9) * rng.choice([-1.0, 1.0], shape)
        return np.asarray(modes + math.sqrt(0.1) * rng.standard_normal(shape))
    return rng.standard_normal(shape)


def _requests(seconds: Floats) -> timing.PhaseValues:
    return timing.PhaseValues(
        "inference", tuple((REQUEST_SECONDS * seconds).tolist()), (1,) * len(seconds), WARMUP
    )


def _related(
    training: timing.PhaseValues, seconds: Floats, run: Floats, metrics: int
) -> dict[str, float]:
    """Return the metrics of a training, of one series of requests, and of the sensors."""
    values = timing.summarise_training(training, math.fsum(training.seconds))
    if not set(METRICS[:metrics]) <= set(values):
        values |= timing.summarise_requests(_requests(seconds[1]))
    for at, (name, value) in enumerate(SENSORS.items(), start=2):
        values[name] = value * math.exp(run[at])
    return {name: values[name] for name in METRICS[:metrics]}


def _unrelated(
    training: timing.PhaseValues, seconds: Floats, _run: Floats, metrics: int
) -> dict[str, float]:
    """Return one metric of a training, and one of each series of requests."""
    values = {MAIN: timing.summarise_training(training, math.fsum(training.seconds))[MAIN]}
    for at in range(1, metrics):
        name = f"inference/batch_{at}"
        metric = f"{name}/latency_seconds_p50"
        values[metric] = timing.summarise_requests(_requests(seconds[at]), name)[metric]
    return values


def _table(runs: Sequence[_Run]) -> pd.DataFrame:
    stored = []
    for at, run in enumerate(runs):
        tags = {
            "kind": "cell",
            "campaign": "simulated",
            "framework": run.cell.treatment,
            "machine": "simulated",
            "outcome": "ok",
            "block": str(run.cell.block),
            "order_in_block": str(run.cell.order_in_block),
            "settings_hash": "simulated",
        }
        key = run.cell.key
        stored.append(StoredRun(key, key, "FINISHED", at, at + 1, {}, run.metrics, tags))
    return query.table(stored)


def calibrate(
    scenarios: Sequence[Noise] = SCENARIOS,
    *,
    campaigns: int = 300,
    blocks: int = 12,
    metrics: int = 12,
    steps: int = 100,
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
    judge = partial(_judge, blocks=blocks, metrics=metrics, steps=steps)
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
        rates.append(Rates(noise, campaigns, blocks, noise.metrics or metrics, **shares))
    return rates


def _judge(
    task: tuple[Noise, np.random.SeedSequence], *, blocks: int, metrics: int, steps: int
) -> dict[str, float]:
    """Return the results of four campaigns for `COLUMNS`, as shares of rows, or as 0 or 1.

    The campaigns are A/A, a true difference, one of the margin itself, and A/A in the wrong order.
    """
    noise, seeds = task
    rng = np.random.default_rng(seeds)
    alike = _campaign(noise, blocks, metrics, steps, 1.0, rng)
    others = (
        _campaign(noise, blocks, metrics, steps, ratio, rng) for ratio in (TRUE_RATIO, 1 + MARGIN)
    )
    ordered = _campaign(replace(noise, metrics=1), blocks, 1, steps, 1.0, rng, shuffled=False)
    tables = [_table(runs) for runs in (alike, *others)]
    null, report, edge = (compare(table, baseline=BASELINE, margin=MARGIN) for table in tables)
    declared_null, declared = (
        compare(table, baseline=BASELINE, margin=MARGIN, primary=[MAIN]) for table in tables[:2]
    )
    main = _main(report)
    false_alarms = _rows(null, lambda finding: finding.different)
    equivalent = _rows(
        edge, lambda finding: finding.decision in (Decision.EQUIVALENT, Decision.WITHIN_MARGIN)
    )
    beyond = _rows(edge, lambda finding: finding.decision is Decision.DIFFERENT)
    return {
        "false_alarm_rows": false_alarms,
        "false_alarms": false_alarms > 0,
        "false_verdicts": any(
            finding.row.verdict in finding.outcome.words for finding in null.findings
        ),
        "wrong_equivalent_rows": equivalent,
        "wrong_equivalent": equivalent > 0,
        "wrong_beyond_rows": beyond,
        "wrong_beyond": beyond > 0,
        "coverage": _covered(report),
        "power": main.row.p is not None and main.row.p <= ALPHA,
        "power_in_report": main.different,
        "primary_false_alarms": any(
            finding.different and finding.primary for finding in declared_null.findings
        ),
        "exploratory_false_alarms": any(
            finding.different and not finding.primary for finding in declared_null.findings
        ),
        "primary_power": _main(declared).different,
        "steps_false_alarms": _papers_way(alike),
        "ordered_false_alarms": _in_wrong_order(ordered),
    }


def _rows(report: Comparison, wrong: Callable[[Finding], bool]) -> float:
    """Return the share of a report's rows that are wrong."""
    return sum(map(wrong, report.findings)) / len(report.findings)


def _covered(report: Comparison) -> float:
    """Return the share of intervals that hold the true ratio; a rate's is the inverse."""
    rows = [finding.row for finding in report.findings]
    covered = 0
    for row in rows:
        true = 1 / TRUE_RATIO if row.metric.endswith("_per_second") else TRUE_RATIO
        covered += (row.ci_low or 0.0) <= true <= (row.ci_high or math.inf)
    return covered / len(rows)


def _main(report: Comparison) -> Finding:
    return next(finding for finding in report.findings if finding.row.metric == MAIN)


def _papers_way(runs: Sequence[_Run]) -> bool:
    """Return whether a signed-rank test on the steps of one run a side rejects equality."""
    a, b = (
        next(run.training.steady[0] for run in runs if run.cell.treatment == side)
        for side in (BASELINE, OTHER)
    )
    return not np.array_equal(a, b) and bool(stats.wilcoxon(a, b).pvalue <= ALPHA)


def _in_wrong_order(runs: Sequence[_Run]) -> bool:
    """Return whether the paired t test on runs that are not in random order rejects equality."""
    a, b = (
        [run.metrics[MAIN] for run in runs if run.cell.treatment == side]
        for side in (BASELINE, OTHER)
    )
    shifts = log_ratios(a, b)
    return not is_constant(shifts) and bool(stats.ttest_1samp(shifts, 0.0).pvalue <= ALPHA)


def share(values: Sequence[float]) -> Proportion:
    """Return the mean of shares, one per campaign, since intervals of one report are dependent."""
    shares = np.asarray(values, dtype=float)
    value, spread = float(shares.mean()), float(shares.var())
    worth = len(shares) * value * (1 - value) / spread if spread else len(shares)
    low, high = proportion_confint(value * worth, worth, method="wilson")
    return Proportion(value, float(low), float(high))


def meets(rates: Sequence[Rates]) -> list[Claim]:
    """Return the promises of each scenario, and whether they hold."""
    claims = []
    for scenario in rates:
        alarms = {
            f"any false alarm among {scenario.metrics} metrics": scenario.false_alarms,
            "a false alarm of a primary metric": scenario.primary_false_alarms,
            "any false alarm of exploratory metrics": scenario.exploratory_false_alarms,
        }
        promises = [(text, 0.0, MAX_FALSE_ALARMS, share) for text, share in alarms.items()]
        equivalent, beyond = scenario.wrong_equivalent_rows, scenario.wrong_beyond_rows
        promises += [
            ("rows at the margin called equivalent", 0.0, MAX_WRONG_EQUIVALENT, equivalent),
            ("rows at the margin called beyond it", 0.0, MAX_WRONG_BEYOND, beyond),
            ("95 % intervals hold the true ratio", *COVERAGE, scenario.coverage),
        ]
        if scenario.blocks >= PLANNED_BLOCKS:
            shown = f"a difference of {100 * (TRUE_RATIO - 1):.0f} % is shown, declared"
            promises += [
                (f"{shown} alone", MIN_POWER, 1.0, scenario.power),
                (f"{shown} primary", MIN_POWER, 1.0, scenario.primary_power),
            ]
        for text, least, most, share in promises:
            holds = share.high >= least and share.low <= most
            claims.append(
                Claim(f"{scenario.noise.name}: {text}", _limit(least, most), share, holds)
            )
    return claims


def _limit(least: float, most: float) -> str:
    if least == 0:
        return f"≤ {100 * most:g} %"
    return f"≥ {100 * least:.0f} %" if most == 1 else f"{100 * least:.0f}–{100 * most:.0f} %"


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
    "steps_false_alarms": "papers' test on steps",
    "ordered_false_alarms": "all a, then all b",
}
NOTE = (
    "In brackets: 95 % Monte-Carlo intervals. False alarms: A/A rows with a difference, and "
    "reports with any; false verdicts: reports with any verdict on one. Wrongly equivalent, "
    "wrongly beyond: the same at a true ratio of the margin. Coverage: 95 % intervals that hold the true "
    "ratio. Power: a difference of 5 % in the median step is shown, alone and in the whole report. "
    "Then that step is declared as the primary metric, and all others are exploratory. "
    "The last two columns are false alarms of what this tool does not do: a signed-rank test on "
    "the steps of one run a side, and runs that are not in random order."
)


def as_markdown(rates: Sequence[Rates]) -> str:
    """Return the rates, then the promises and whether they hold."""
    sizes = {
        (scenario.campaigns, scenario.metrics, scenario.blocks)
        for scenario in rates
        if not scenario.noise.metrics
    } or {(scenario.campaigns, scenario.metrics, scenario.blocks) for scenario in rates}
    title = "; ".join(
        f"{campaigns:,} simulated campaigns a scenario, {metrics} metrics, {blocks} blocks"
        for campaigns, metrics, blocks in sorted(sizes)
    )
    lines = [
        f"**{title}**",
        "",
        f"| scenario | {' | '.join(COLUMNS.values())} |",
        f"|---|{'--:|' * len(COLUMNS)}",
    ]
    for scenario in rates:
        shares = " | ".join(str(getattr(scenario, name)) for name in COLUMNS)
        lines.append(f"| {scenario.noise.name} | {shares} |")
    lines += ["", NOTE, "", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    for claim in meets(rates):
        holds = "holds" if claim.holds else "**does not hold**"
        lines.append(f"| {claim.claim} | {claim.limit} | {claim.measured} | {holds} |")
    return "\n".join(lines) + "\n"
