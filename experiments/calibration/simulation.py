"""Error rates of the tool: simulated campaigns, judged by the same code as real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Literal

import numpy as np
import pandas as pd
from scipy import signal
from statsmodels.stats.proportion import proportion_confint

from experiments.cell import timing
from experiments.comparison import compare
from experiments.comparison.runs import query
from experiments.comparison.statistics import significance
from experiments.comparison.statistics.estimates import Floats, log_ratios
from experiments.comparison.verdicts.decision import ALPHA, Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.planning import design
from tracking.errors import WrongCall
from tracking.records import StoredRun

Tails = Literal["normal", "lognormal", "student-t", "bimodal"]
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
        blocks, metrics: Numbers of them in this scenario.
        side_sd, side_tails, side_autocorrelation: Noise of the runs of b only, from block to block.
        campaigns, campaign_sd: Number of campaigns, and noise of b in each of them.
        outlier: Factor by which b's run in one block is slower.
        clock: Tick of the clock, as a share of a step.
    """

    name: str
    run_sd: float = 0.01
    step_sd: float = 0.02
    step_autocorrelation: float = 0.0
    drift: float = 0.0
    tails: Tails = "normal"
    metric_correlation: float = 0.5
    unrelated: bool = False
    blocks: int | None = None
    metrics: int | None = None
    side_sd: float = 0.0
    side_tails: Tails = "normal"
    side_autocorrelation: float = 0.0
    campaigns: int = 1
    campaign_sd: float = 0.0
    outlier: float = 1.0
    clock: float = 0.0

    @property
    def one_sided(self) -> bool:
        """Whether sides cannot be exchanged: then only false alarms are promised."""
        return self.side_sd > 0 or self.campaign_sd > 0 or self.outlier != 1


SCENARIOS = (
    Noise("quiet", run_sd=0.005, step_sd=0.01),
    Noise("autocorrelated steps", step_sd=0.05, step_autocorrelation=0.9),
    Noise("run-to-run spread 3 %", run_sd=0.03, step_autocorrelation=0.5),
    Noise("drift 5 %", drift=0.05),
    Noise("heavy tails", run_sd=0.03, step_sd=0.05, step_autocorrelation=0.5, tails="student-t"),
    Noise("bimodal", run_sd=0.03, step_autocorrelation=0.5, tails="bimodal"),
    *(
        Noise(
            f"{count} unrelated metric{'s' * (count > 1)}",
            0.03,
            metric_correlation=0.0,
            unrelated=True,
            metrics=count,
        )
        for count in (1, 5, 12, 30)
    ),
    Noise(
        "30 metrics, correlation 0.8",
        run_sd=0.03,
        metric_correlation=0.8,
        unrelated=True,
        metrics=30,
    ),
    Noise(
        "clock that ticks in 5 %",
        run_sd=0.03,
        metric_correlation=0.0,
        unrelated=True,
        clock=0.05,
        blocks=6,
    ),
    Noise(
        "one-sided skew",
        run_sd=0.003,
        metric_correlation=0.0,
        unrelated=True,
        side_sd=0.03,
        side_tails="lognormal",
    ),
    Noise(
        "differences with memory",
        0.003,
        metric_correlation=0.0,
        unrelated=True,
        side_sd=0.03,
        side_autocorrelation=0.7,
    ),
    Noise(
        "a block twice as slow", run_sd=0.01, metric_correlation=0.0, unrelated=True, outlier=2.0
    ),
    Noise(
        "3 campaigns, each its own",
        0.01,
        metric_correlation=0.0,
        unrelated=True,
        campaigns=3,
        campaign_sd=0.01,
        blocks=24,
    ),
)


@dataclass(frozen=True)
class Share:
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
    false_alarm_rows: Share
    false_alarms: Share
    false_verdicts: Share
    wrong_equivalent_rows: Share
    wrong_equivalent: Share
    wrong_beyond_rows: Share
    wrong_beyond: Share
    coverage: Share
    power: Share
    power_in_report: Share
    primary_false_alarms: Share
    exploratory_false_alarms: Share
    primary_power: Share
    steps_false_alarms: Share
    ordered_false_alarms: Share


@dataclass(frozen=True)
class Claim:
    """Promise of a scenario's rate, and whether the measured interval reaches the limits."""

    claim: str
    limit: str
    measured: Share
    holds: bool


@dataclass(frozen=True)
class _Run:
    """Simulated process: its cell, its training steps and its metrics."""

    cell: design.Cell
    training: timing.PhaseValues
    metrics: dict[str, float]


def simulate(
    noise: Noise,
    *,
    blocks: int = 12,
    metrics: int = 12,
    steps: int = 100,
    ratio: float = 1.0,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Return the finished runs of a campaign in which b takes `ratio` times what a takes.

    Steps are drawn, then summarised by the functions for measured steps. Runs are in random order
    inside blocks.

    Raises:
        WrongCall: More metrics than there are, or too few steps.
    """
    return query.table(_stored(noise, _campaign(noise, blocks, metrics, steps, ratio, rng)))


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
    metrics, blocks, most = (
        noise.metrics or metrics,
        noise.blocks or blocks,
        MAX_UNRELATED if noise.unrelated else len(METRICS),
    )
    if not 1 <= metrics <= most:
        raise WrongCall(f"metrics={metrics} cannot be simulated; choose 1 to {most}")
    if steps < (least := timing.EARNED_AT[95] + WARMUP):
        raise WrongCall(f"steps={steps} are too few for a p95; at least {least}")
    cells = design.blocks([[BASELINE, OTHER]], blocks, rng)
    if not shuffled:
        cells.sort(key=lambda cell: (cell.treatment, cell.block))
    shift = np.array([math.log(ratio) if cell.treatment == OTHER else 0.0 for cell in cells])
    drift = math.log1p(noise.drift) * np.linspace(0, 1, len(cells))
    timed = metrics if noise.unrelated else 2
    apart = timed if noise.unrelated else timed + len(SENSORS)
    shared = math.sqrt(noise.metric_correlation) * _standard(noise.tails, (len(cells), 1), rng)
    own = math.sqrt(1 - noise.metric_correlation) * _standard(noise.tails, (len(cells), apart), rng)
    runs = (
        (shift + drift)[:, None]
        + noise.run_sd * (shared + own)
        + _on_one_side(noise, cells, apart, rng)
    )
    # steps that depend on the step before, with SD 1
    drawn = _standard(noise.tails, (len(cells), timed, steps), rng)
    of_steps = _remembering(drawn, noise.step_autocorrelation)
    seconds = np.exp(runs[:, :timed, None] + noise.step_sd * of_steps)
    if noise.clock:
        seconds = noise.clock * np.rint(seconds / noise.clock)
    summarise = _unrelated if noise.unrelated else _related
    found = []
    for at, cell in enumerate(cells):
        training = _training(seconds[at, 0])
        found.append(_Run(cell, training, summarise(training, seconds[at], runs[at], metrics)))
    return found


def _on_one_side(
    noise: Noise, cells: Sequence[design.Cell], apart: int, rng: np.random.Generator
) -> Floats:
    """Return the noise of b's runs: a row per cell, a column per phase."""
    blocks = max(cell.block for cell in cells)
    found = (
        noise.side_sd
        * _remembering(
            _standard(noise.side_tails, (apart, blocks), rng), noise.side_autocorrelation
        ).T
    )
    of_campaign = noise.campaign_sd * rng.standard_normal((noise.campaigns, apart))
    found += of_campaign[[_campaign_of(noise, block + 1, blocks) for block in range(blocks)]]
    found[rng.integers(blocks)] += math.log(noise.outlier)
    return np.array(
        [found[cell.block - 1] if cell.treatment == OTHER else np.zeros(apart) for cell in cells]
    )


def _campaign_of(noise: Noise, block: int, blocks: int) -> int:
    """Return the number of the campaign of a block: 0, 1, …"""
    return (block - 1) * noise.campaigns // blocks


def _standard(tails: Tails, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return independent values with mean 0 and SD 1."""
    if tails == "student-t":
        return rng.standard_t(3, shape) / math.sqrt(3)
    if tails == "bimodal":
        return math.sqrt(0.9) * rng.choice([-1.0, 1.0], shape) + math.sqrt(
            0.1
        ) * rng.standard_normal(shape)
    if tails == "lognormal":
        spread = 0.8**2
        skewed = np.exp(0.8 * rng.standard_normal(shape)) - math.exp(spread / 2)
        return np.asarray(skewed / math.sqrt(math.expm1(spread) * math.exp(spread)))
    return rng.standard_normal(shape)


def _remembering(drawn: Floats, autocorrelation: float) -> Floats:
    """Return AR(1) series along the last axis from independent values, with their SD."""
    drawn[..., 1:] *= math.sqrt(1 - autocorrelation**2)
    return np.asarray(signal.lfilter([1.0], [1.0, -autocorrelation], drawn, axis=-1))


def _training(seconds: Floats) -> timing.PhaseValues:
    return timing.PhaseValues(
        "train", tuple((TRAINING_SECONDS * seconds).tolist()), (BATCH,) * len(seconds), WARMUP
    )


def _requests(seconds: Floats) -> timing.PhaseValues:
    return timing.PhaseValues(
        "inference", tuple((REQUEST_SECONDS * seconds).tolist()), (1,) * len(seconds), WARMUP
    )


def _related(
    training: timing.PhaseValues, seconds: Floats, run: Floats, metrics: int
) -> dict[str, float]:
    """Return the metrics of a training, of one series of requests, and of the sensors."""
    found = timing.summarise_training(training, math.fsum(training.seconds))
    if not set(METRICS[:metrics]) <= set(found):
        found |= timing.summarise_requests(_requests(seconds[1]))
    found |= {
        name: value * math.exp(run[2 + at]) for at, (name, value) in enumerate(SENSORS.items())
    }
    return {name: found[name] for name in METRICS[:metrics]}


def _unrelated(
    training: timing.PhaseValues, seconds: Floats, _run: Floats, metrics: int
) -> dict[str, float]:
    """Return one metric of a training, and one of each series of requests."""
    found = {MAIN: timing.summarise_training(training, math.fsum(training.seconds))[MAIN]}
    for at in range(1, metrics):
        name = f"inference/batch_{at}"
        metric = f"{name}/latency_seconds_p50"
        found[metric] = timing.summarise_requests(_requests(seconds[at]), name)[metric]
    return found


def _stored(noise: Noise, runs: Sequence[_Run]) -> Iterator[StoredRun]:
    blocks = max(run.cell.block for run in runs)
    for at, run in enumerate(runs):
        campaign = f"simulated-{_campaign_of(noise, run.cell.block, blocks)}"
        tags = {
            "kind": "cell",
            "campaign": campaign,
            "framework": run.cell.treatment,
            "machine": "simulated",
            "outcome": "ok",
        }
        tags |= {
            "block": str(run.cell.block),
            "order_in_block": str(run.cell.order_in_block),
            "settings_hash": "simulated",
        }
        yield StoredRun(run.cell.key, run.cell.key, "FINISHED", at, at + 1, {}, run.metrics, tags)


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
        rates.append(
            Rates(noise, campaigns, noise.blocks or blocks, noise.metrics or metrics, **shares)
        )
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
    tables = [query.table(_stored(noise, runs)) for runs in (alike, *others)]
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
            finding.row.verdict in finding.outcome.words for finding in _spoken(null)
        ),
        "wrong_equivalent_rows": equivalent,
        "wrong_equivalent": equivalent > 0,
        "wrong_beyond_rows": beyond,
        "wrong_beyond": beyond > 0,
        "coverage": _covered(report),
        "power": main.row.p is not None and main.row.p <= ALPHA,
        "power_in_report": main.different,
        "primary_false_alarms": any(
            finding.different and finding.primary for finding in _spoken(declared_null)
        ),
        "exploratory_false_alarms": any(
            finding.different and not finding.primary for finding in _spoken(declared_null)
        ),
        "primary_power": _main(declared).different,
        "steps_false_alarms": _papers_way(alike),
        "ordered_false_alarms": _in_wrong_order(ordered),
    }


def _spoken(report: Comparison) -> Sequence[Finding]:
    """Return the rows of a report, or, of several campaigns, their summaries."""
    return report.summaries or report.findings


def _rows(report: Comparison, wrong: Callable[[Finding], bool]) -> float:
    """Return the share of a report's rows that are wrong."""
    return sum(map(wrong, _spoken(report))) / len(_spoken(report))


def _covered(report: Comparison) -> float:
    """Return the share of intervals that hold the true ratio; a rate's is the inverse."""
    rows = [finding.row for finding in _spoken(report)]
    covered = 0
    for row in rows:
        true = 1 / TRUE_RATIO if row.metric.endswith("_per_second") else TRUE_RATIO
        covered += (row.ci_low or 0.0) <= true <= (row.ci_high or math.inf)
    return covered / len(rows)


def _main(report: Comparison) -> Finding:
    return next(finding for finding in _spoken(report) if finding.row.metric == MAIN)


def _papers_way(runs: Sequence[_Run]) -> bool:
    """Return whether a signed-rank test on the steps of one run a side rejects equality."""
    a, b = (
        next(run.training.steady[0] for run in runs if run.cell.treatment == side)
        for side in (BASELINE, OTHER)
    )
    return significance.signed_rank(np.subtract(b, a)).p <= ALPHA


def _in_wrong_order(runs: Sequence[_Run]) -> bool:
    """Return whether the paired t test on runs that are not in random order rejects equality."""
    a, b = (
        [run.metrics[MAIN] for run in runs if run.cell.treatment == side]
        for side in (BASELINE, OTHER)
    )
    tested = significance.paired_t(log_ratios(a, b))
    return tested is not None and tested.p <= ALPHA


def share(found: Sequence[float]) -> Share:
    """Return the mean of shares, one per campaign, since intervals of one report are dependent."""
    shares = np.asarray(found, dtype=float)
    value, spread = float(shares.mean()), float(shares.var())
    worth = len(shares) * value * (1 - value) / spread if spread else len(shares)
    low, high = proportion_confint(value * worth, worth, method="wilson")
    return Share(value, float(low), float(high))


def meets(rates: Sequence[Rates]) -> list[Claim]:
    """Return the promises of each scenario, and whether they hold."""
    claims = []
    for scenario in rates:
        name, noise = scenario.noise.name, scenario.noise
        alarms = {
            f"any false alarm among {scenario.metrics} metrics": scenario.false_alarms,
            "a false alarm of a primary metric": scenario.primary_false_alarms,
            "any false alarm of exploratory metrics": scenario.exploratory_false_alarms,
        }
        promises = [(text, 0.0, MAX_FALSE_ALARMS, share) for text, share in alarms.items()]
        if not noise.one_sided:
            equivalent, beyond = scenario.wrong_equivalent_rows, scenario.wrong_beyond_rows
            called = "rows at the margin called"
            promises += [
                (f"{called} equivalent", 0.0, MAX_WRONG_EQUIVALENT, equivalent),
                (f"{called} beyond it", 0.0, MAX_WRONG_BEYOND, beyond),
                ("95 % intervals hold the true ratio", *COVERAGE, scenario.coverage),
            ]
        if not noise.one_sided and scenario.blocks >= PLANNED_BLOCKS:
            shown = f"a difference of {100 * (TRUE_RATIO - 1):.0f} % is shown, declared"
            promises += [
                (f"{shown} alone", MIN_POWER, 1.0, scenario.power),
                (f"{shown} primary", MIN_POWER, 1.0, scenario.primary_power),
            ]
        for text, least, most, share in promises:
            holds = share.high >= least and share.low <= most
            claims.append(Claim(f"{name}: {text}", limit(least, most), share, holds))
    return claims


def limit(least: float, most: float) -> str:
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
    "reports with any; false verdicts: reports with any verdict on one. Wrongly equivalent, wrongly "
    "beyond: the same at a true ratio of the margin. Coverage: 95 % intervals that hold the true "
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
        if not (scenario.noise.metrics or scenario.noise.blocks)
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
