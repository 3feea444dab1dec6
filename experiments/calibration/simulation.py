"""The tool's own error rates: simulated campaigns, judged by the same code as real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
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
from experiments.config.console import Table, Text, box
from experiments.planning import design
from tracking.errors import WrongCall
from tracking.records import StoredRun

Tails = Literal["normal", "lognormal", "student-t", "bimodal"]
BASELINE, OTHER = "a", "b"
MAIN = "train/step_seconds"
# The phases of a run that are timed step by step, and the figures that a sensor gives once a run; in their units.
TRAINING_SECONDS, REQUEST_SECONDS = 0.03, 0.008
SENSORS = {"memory/peak_rss_bytes": 7e8, "energy/joules_per_example": 0.4, "power/watts_mean": 60.0}
METRICS = (
    *(
        MAIN,
        "train/step_seconds_p95",
        "train/examples_per_second",
        "train/total_seconds",
        "train/first_step_seconds",
    ),
    *(
        "inference/latency_seconds_p50",
        "inference/latency_seconds_p95",
        "inference/examples_per_second",
    ),
    *("inference/first_call_seconds", *SENSORS),
)
BATCH, WARMUP = 32, 5
MAX_UNRELATED, PLANNED_BLOCKS = 30, 12
TRUE_RATIO, MARGIN = 1.05, 0.03
MAX_FALSE_ALARMS, COVERAGE, MIN_POWER = 0.06, (0.93, 0.97), 0.8
# At a true effect of the margin itself, row by row.
MAX_WRONG_EQUIVALENT, MAX_WRONG_BEYOND = 0.05, 0.025


@dataclass(frozen=True)
class Noise:
    """What a machine does to measurements; all spreads are standard deviations of logarithms (0.03 is 3 %).

    run_sd: between processes of the same kind; step_sd, step_autocorrelation: between the steps of a process.
    drift: what the machine slows by from the campaign's first run to its last. tails: the shape of both spreads.
    metric_correlation: between a run's phases (training, inference, each sensor); metrics of one phase share its steps.
    unrelated: every metric comes from a phase of its own; without correlation the hardest case for Holm's correction.
    blocks, metrics: where a scenario has its own numbers of them.

    What breaks the exchange of sides, by which every test lives, and must be found out: side_sd befalls the runs of b alone, with
    a shape and an autocorrelation from block to block of its own; campaign_sd is drawn for b anew in each of `campaigns`;
    outlier: b's run in one block takes so many times as long. clock: steps are read from one that ticks in such shares of a step.
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
        """Whether the sides cannot be exchanged: no false alarm is promised all the same, intervals and power are not."""
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
    """A measured share with its 95 % Monte-Carlo interval (Wilson)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f}–{100 * self.high:.1f})"


@dataclass(frozen=True)
class Rates:
    """How often the tool was right and wrong over simulated campaigns of one scenario.

    false_alarms: A/A reports in which any row shows a difference, false_alarm_rows: rows of them; false_verdicts: reports in
    which any row says faster, slower, lower or higher. At a true ratio of the margin, rows and reports with any of them:
    wrong_equivalent_rows, wrong_equivalent: called equivalent; wrong_beyond_rows, wrong_beyond: said to lie beyond the margin.
    coverage: 95 % intervals that hold the true ratio of 1.05. power: campaigns in which that difference is shown for the
    median training step as the only outcome of a report, power_in_report: among all metrics, after Holm's correction.
    With the median step declared as primary: primary_false_alarms of that family, exploratory_false_alarms of all others;
    primary_power: campaigns in which its difference is shown. For comparison, both false alarms too: steps_false_alarms of the
    papers' signed-rank test on the steps of one run a side, ordered_false_alarms of the main outcome where all runs of a precede
    all runs of b.
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
    """What is promised of a scenario's rate, and whether that holds: the measured interval reaches the limits."""

    claim: str
    limit: str
    measured: Share
    holds: bool


@dataclass(frozen=True)
class _Run:
    """One simulated process: its cell, its training steps and what they and its other phases are summarised to."""

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
    """A campaign's finished runs as `query.table` tells them: two frameworks, b taking `ratio` times what a takes.

    Steps are drawn, then summarised by the same functions as measured ones; runs are in random order inside blocks.
    Raises WrongCall for more metrics than there are, or too few steps.
    """
    return _table(noise, _campaign(noise, blocks, metrics, steps, ratio, rng))


def _campaign(
    noise: Noise,
    blocks: int,
    metrics: int,
    steps: int,
    ratio: float,
    rng: np.random.Generator,
    shuffled: bool = True,
) -> list[_Run]:
    """The runs of a campaign in their order; not shuffled: all of a, then all of b."""
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
    seconds = np.exp(
        runs[:, :timed, None] + noise.step_sd * _steps(noise, (len(cells), timed, steps), rng)
    )
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
    """What happens to the runs of b alone: a row a cell, a column for each of what a run has apart."""
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
    """Which of a scenario's campaigns a block belongs to: 0, 1, …"""
    return (block - 1) * noise.campaigns // blocks


def _standard(tails: Tails, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Independent values with mean 0 and SD 1."""
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


def _steps(noise: Noise, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Steps that remember the step before (AR(1) along the last axis), with SD 1."""
    return _remembering(_standard(noise.tails, shape, rng), noise.step_autocorrelation)


def _remembering(drawn: Floats, autocorrelation: float) -> Floats:
    """AR(1) along the last axis from independent values, with their SD."""
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
    """The metrics of a training, of one series of requests, and of the sensors."""
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
    """One metric of a training, and one of each of the series of requests at several batch sizes."""
    found = {MAIN: timing.summarise_training(training, math.fsum(training.seconds))[MAIN]}
    for at in range(1, metrics):
        name = f"inference/batch_{at}"
        metric = f"{name}/latency_seconds_p50"
        found[metric] = timing.summarise_requests(_requests(seconds[at]), name)[metric]
    return found


def _table(noise: Noise, runs: Sequence[_Run]) -> pd.DataFrame:
    return query.table(_stored(noise, runs))


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
    """The error rates of `compare` under every scenario; the same seed gives the same rates, however many workers there are.

    workers: processes; several start anew, so a script that asks for them needs its `if __name__ == "__main__"`.
    progress: called with the number of campaigns done and of all there are.
    """
    tasks = [
        (noise, seeds)
        for noise in scenarios
        for seeds in np.random.SeedSequence([seed, *noise.name.encode()]).spawn(campaigns)
    ]
    judge = partial(_judge, blocks=blocks, metrics=metrics, steps=steps)
    results = []
    for result in _in_order(judge, tasks, workers):
        results.append(result)
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


def _in_order(
    judge: Callable[[tuple[Noise, np.random.SeedSequence]], dict[str, float]],
    tasks: Sequence[tuple[Noise, np.random.SeedSequence]],
    workers: int,
) -> Iterator[dict[str, float]]:
    if workers < 2:
        yield from map(judge, tasks)
        return
    # spawned, not forked: whoever asks may have threads (MLflow does)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(judge, tasks, chunksize=10)


def _judge(
    task: tuple[Noise, np.random.SeedSequence], *, blocks: int, metrics: int, steps: int
) -> dict[str, float]:
    """Return what four campaigns contribute to each of `COLUMNS`, as a share of a report's rows or as 0 or 1.

    A/A, a true difference, one of the margin itself, and A/A in the wrong order.
    """
    noise, seeds = task
    rng = np.random.default_rng(seeds)
    alike = _campaign(noise, blocks, metrics, steps, 1.0, rng)
    others = (
        _campaign(noise, blocks, metrics, steps, ratio, rng) for ratio in (TRUE_RATIO, 1 + MARGIN)
    )
    ordered = _campaign(replace(noise, metrics=1), blocks, 1, steps, 1.0, rng, shuffled=False)
    tables = [_table(noise, runs) for runs in (alike, *others)]
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
    """What a report says of the machine: its rows, or of several campaigns, which are strata, their summaries."""
    return report.summaries or report.findings


def _rows(report: Comparison, wrong: Callable[[Finding], bool]) -> float:
    """The share of a report's rows that err."""
    return sum(map(wrong, _spoken(report))) / len(_spoken(report))


def _covered(report: Comparison) -> float:
    """The share of intervals that hold the true ratio; a rate's is the inverse."""
    told = [finding.row for finding in _spoken(report)]
    rows = [
        (row, 1 / TRUE_RATIO if row.metric.endswith("_per_second") else TRUE_RATIO) for row in told
    ]
    return sum(
        (row.ci_low or 0.0) <= true <= (row.ci_high or math.inf) for row, true in rows
    ) / len(rows)


def _main(report: Comparison) -> Finding:
    return next(finding for finding in _spoken(report) if finding.row.metric == MAIN)


def _papers_way(runs: Sequence[_Run]) -> bool:
    """Whether a paired signed-rank test on the steps of one run a side calls a and b different."""
    a, b = (
        next(run.training.steady[0] for run in runs if run.cell.treatment == side)
        for side in (BASELINE, OTHER)
    )
    return significance.signed_rank(np.subtract(b, a)).p <= ALPHA


def _in_wrong_order(runs: Sequence[_Run]) -> bool:
    """Whether the paired t test on run-level figures, sound but for the order of the runs, calls a and b different."""
    a, b = (
        [run.metrics[MAIN] for run in runs if run.cell.treatment == side]
        for side in (BASELINE, OTHER)
    )
    tested = significance.paired_t(log_ratios(a, b))
    return tested is not None and tested.p <= ALPHA


def share(found: Sequence[float]) -> Share:
    """The mean of shares, one a campaign; the interval counts campaigns, since the intervals of one report are alike."""
    shares = np.asarray(found, dtype=float)
    value, spread = float(shares.mean()), float(shares.var())
    worth = len(shares) * value * (1 - value) / spread if spread else len(shares)
    low, high = proportion_confint(value * worth, worth, method="wilson")
    return Share(value, float(low), float(high))


def meets(rates: Sequence[Rates]) -> list[Claim]:
    """What is promised, scenario by scenario, and whether it stands."""
    claims = []
    for one in rates:
        scenario = one.noise.name
        promised = [
            (
                f"{scenario}: any false alarm among {one.metrics} metrics",
                0.0,
                MAX_FALSE_ALARMS,
                one.false_alarms,
            ),
            (
                f"{scenario}: a false alarm of a primary metric",
                0.0,
                MAX_FALSE_ALARMS,
                one.primary_false_alarms,
            ),
            (
                f"{scenario}: any false alarm of exploratory metrics",
                0.0,
                MAX_FALSE_ALARMS,
                one.exploratory_false_alarms,
            ),
        ]
        if not one.noise.one_sided:
            at_the_margin = f"{scenario}: rows at the margin called"
            promised += [
                (
                    f"{at_the_margin} equivalent",
                    0.0,
                    MAX_WRONG_EQUIVALENT,
                    one.wrong_equivalent_rows,
                ),
                (f"{at_the_margin} beyond it", 0.0, MAX_WRONG_BEYOND, one.wrong_beyond_rows),
                (f"{scenario}: 95 % intervals hold the true ratio", *COVERAGE, one.coverage),
            ]
        if not one.noise.one_sided and one.blocks >= PLANNED_BLOCKS:
            shown = f"{scenario}: a difference of {100 * (TRUE_RATIO - 1):.0f} % is shown,"
            promised.append((f"{shown} declared alone", MIN_POWER, 1.0, one.power))
            promised.append((f"{shown} declared primary", MIN_POWER, 1.0, one.primary_power))
        for claim, least, most, share in promised:
            claims.append(
                Claim(claim, limit(least, most), share, share.high >= least and share.low <= most)
            )
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
    "In brackets: 95 % Monte-Carlo intervals. False alarms: A/A rows with a difference, and reports with any; false verdicts: "
    "reports with any verdict on one. Wrongly equivalent, wrongly beyond: the same at a true ratio of the margin. Coverage: 95 % "
    "intervals that hold the true ratio. Power: a difference of 5 % in the median step is shown, alone and in the whole report. "
    "Then that step is declared as the primary metric, and all others are exploratory. The last two columns are false alarms of "
    "what this tool does not do: a signed-rank test on the steps of one run a side, and runs that are not in random order."
)


def table(rates: Sequence[Rates]) -> Table:
    """The rates for a terminal; what breaks a promise is red."""
    drawn = Table(
        box=box.SIMPLE_HEAD,
        title=_title(rates),
        title_justify="left",
        title_style="bold",
        caption=NOTE,
    )
    drawn.caption_justify = "left"
    drawn.add_column("scenario", min_width=14)
    for name in COLUMNS.values():
        drawn.add_column(name, justify="right", overflow="fold")
    broken = [claim.measured for claim in meets(rates) if not claim.holds]
    for one in rates:
        cells = [
            Text(str(share), style="bold red" * any(share is bad for bad in broken))
            for share in _shares(one)
        ]
        drawn.add_row(one.noise.name, *cells)
    return drawn


def as_markdown(rates: Sequence[Rates]) -> str:
    """The rates, then every promise with whether it stands."""
    lines = [
        f"**{_title(rates)}**",
        "",
        f"| scenario | {' | '.join(COLUMNS.values())} |",
        f"|---|{'--:|' * len(COLUMNS)}",
    ]
    lines += [f"| {one.noise.name} | {' | '.join(map(str, _shares(one)))} |" for one in rates]
    lines += ["", NOTE, "", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    lines += [
        f"| {one.claim} | {one.limit} | {one.measured} | {'holds' if one.holds else '**does not hold**'} |"
        for one in meets(rates)
    ]
    return "\n".join(lines) + "\n"


def _title(rates: Sequence[Rates]) -> str:
    sizes = {
        (one.campaigns, one.metrics, one.blocks)
        for one in rates
        if not (one.noise.metrics or one.noise.blocks)
    }
    sizes = sizes or {(one.campaigns, one.metrics, one.blocks) for one in rates}
    return "; ".join(
        f"{n:,} simulated campaigns a scenario, {metrics} metrics, {blocks} blocks"
        for n, metrics, blocks in sorted(sizes)
    )


def _shares(rates: Rates) -> list[Share]:
    return [getattr(rates, name) for name in COLUMNS]
