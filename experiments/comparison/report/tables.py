"""The tables of a report, in the order in which they are read. No arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from experiments.comparison.report import remarks, wording
from experiments.comparison.report.sections import Cell, Column, Header, Line, Section
from experiments.comparison.runs.raw import WINDOWS, RawRun
from experiments.comparison.statistics import sequential
from experiments.comparison.verdicts import survival
from experiments.comparison.verdicts.batch_sizes import Curve
from experiments.comparison.verdicts.breakdown import Breakdown, breakdowns
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Control, Finding, PaperRow
from experiments.comparison.verdicts.precision import Precision
from experiments.comparison.verdicts.steadiness import KINDS, RunSteadiness, by_level
from experiments.config.outcomes import outcome

NONE, NOT_COUNTED = wording.NONE, "not counted"
Link = Callable[[str], str]
# A page lists no more runs than that; all stand in MLflow.
MAX_RUNS = 2_000
ONE_FAMILY = "at most 5 % of reports show a difference where there is none (Holm’s correction over all rows). "
TWO_FAMILIES = (
    "at most 5 % of reports show a difference where there is none among the primary rows, declared beforehand, and at most "
    "another 5 % among the exploratory ones (Holm’s correction inside each family). "
)
PROMISE = (
    "The two other claims are promised for each row: a true effect that just reaches the margin is called equivalent in at most "
    "5 % of rows, and beyond the margin in at most 2.5 %. Many rows together have more such errors. "
    "“Smallest detectable effect”: the true effect that 80 % of such campaigns show, among all rows of its family. “Smallest "
    "effect with a verdict”: the true effect that 80 % of them show to lie beyond the margin."
)


def nowhere(_run: str) -> str:
    """Where a run leads of which no page is known."""
    return ""


def number(name: str, **more: int) -> Column:
    return Column(name, numeric=True, **more)  # type: ignore[arg-type]


def under(name: str, **more: int) -> Column:
    return Column(name, under=True, **more)  # type: ignore[arg-type]


def style(finding: Finding) -> str:
    """How a verdict is coloured."""
    if finding.decision is Decision.NOT_COMPARABLE:
        return "none"
    if not finding.judged:
        return "open"
    if finding.decision is not Decision.DIFFERENT:
        return "alike"
    return {True: "better", False: "worse", None: "differs"}[finding.good]


def several(comparison: Comparison) -> bool:
    """Whether there are more comparisons than one: every line then names its level."""
    return len({(finding.row.a, finding.row.b) for finding in comparison.findings}) > 1


def versus(comparison: Comparison) -> str:
    baseline, others = _labels(comparison)
    return f"{wording.joined(others)} against {baseline}"


def _labels(comparison: Comparison) -> tuple[str, list[str]]:
    """Return the baseline and the other levels as prose names them."""
    others = [wording.labelled(level, comparison.factor) for level in comparison.levels[1:]]
    return wording.labelled(comparison.baseline, comparison.factor), others


def _side_names(comparison: Comparison) -> tuple[str, str]:
    baselines = {finding.row.a for finding in comparison.findings} or {comparison.baseline}
    a = baselines.pop() if len(baselines) == 1 else "baseline"
    return (a, "value") if several(comparison) else (a, comparison.levels[1])


def glance(comparison: Comparison) -> list[Section]:
    """Every level's effect on every outcome, where there are several levels and all have the same baseline."""
    if not several(comparison) or len({finding.row.a for finding in comparison.findings}) > 1:
        return []
    table: dict[str, dict[str, Finding]] = {}
    for finding in comparison.findings:
        table.setdefault(wording.named(finding), {})[finding.row.b] = finding
    levels = comparison.levels[1:]
    rows: list[Line] = [(name, *(_effect_in_colour(by_level.get(level)) for level in levels)) for name, by_level in table.items()]
    caption = "Green: better; red: worse; blue: equivalent, deterministic, or different within the margin; amber: inconclusive."
    return [Section("", caption, (f"against {comparison.baseline}", *levels), rows, page_only=True)]


def _effect_in_colour(finding: Finding | None) -> Cell:
    if finding is None:
        return Cell("")
    return Cell(wording.effect(finding) if finding.row.estimate is not None else finding.row.verdict, style(finding))


def verdicts(comparison: Comparison) -> Section:
    """A row a finding; strata and families under headings of their own."""
    many, (first, second) = several(comparison), _side_names(comparison)
    header: Header = (
        Column("outcome", once=True, terminal=16),
        *([Column(comparison.factor, terminal=8), under("")] if many else []),
        *(number(name, terminal=1) for name in (first, second)),
        *(Column("effect", terminal=1), under("95 % interval", terminal=1)),
        *(Column("verdict", pill=True, terminal=14), under("reason")),
        *(
            number("p (Holm)", terminal=8),
            number("b > a in a block"),
            number("smallest detectable effect (80 % power)"),
            number("smallest effect with a verdict"),
        ),
        number("blocks", terminal=6),
    )
    rows: list[Line] = []
    heading, one_reason = "", len({finding.row.reason for finding in comparison.findings}) == 1
    for finding in comparison.findings:
        row = finding.row
        over = wording.heading(finding, comparison)
        if over != heading:
            heading = over
            rows.append(heading)
        against = f"against {row.a}" if row.a != comparison.baseline else ""
        rows.append(
            (
                finding.outcome.label,
                *((row.b, against) if many else ()),
                *_sides(finding),
                *_effect(finding, quiet=one_reason),
                *(wording.p_value(row.p_holm), _share(row.probability_within_blocks)),
                *(wording.detectable(finding), wording.decidable(finding), str(row.n_blocks)),
            )
        )
    whom = " (or the baseline named in the line)" if many else ""
    whose = "those of the baseline and of the level" if many else "those of each side"
    baseline, others = _labels(comparison)
    caption = (
        f"Every line compares {wording.joined(others)} with the baseline {baseline}{whom}. "
        f"Values are {whose}: geometric means over blocks for ratios, means for differences. "
        "“b > a in a block”: the share of blocks in which the level (b) has the greater value than the baseline (a), ties half. "
        f"Error rates: {TWO_FAMILIES if comparison.primary else ONE_FAMILY}{PROMISE}"
    )
    return Section("Verdicts", caption, header, rows)


def _share(value: float | None) -> str:
    return _decimal(None if value is None else 100 * value, "{:.0f} %")


EFFECT: Header = ("effect", under("95 % interval"), Column("verdict", pill=True), under("reason"))


def _effect(finding: Finding, *, quiet: bool = False) -> tuple[str | Cell, ...]:
    """As `EFFECT` says. quiet: the reason is shown only where the reader points at the verdict."""
    row = finding.row
    verdict = (Cell(row.verdict, style(finding)), Cell(row.reason, aside=quiet or finding.judged))
    return wording.effect(finding), wording.effect_interval(finding), *verdict


def _sides(finding: Finding) -> tuple[str, str]:
    return wording.quantity(finding.a_value, finding.outcome), wording.quantity(finding.b_value, finding.outcome)


def _decimal(value: float | None, form: str = "{:.2f}") -> str:
    return NONE if value is None else form.format(value)


def second_opinions(comparison: Comparison) -> Section:
    many = several(comparison)
    names = (
        *("estimate", "95 % interval", "Hodges-Lehmann", "95 % interval"),
        *("p", "p, signed-rank", "p, permutation"),
        *("p, equivalence", "margin", "A12", "Cliff’s delta"),
    )
    header: Header = ("outcome", under(""), *((comparison.factor,) if many else ()), *map(number, names))
    rows: list[Line] = [
        (
            *(wording.named(one), one.row.metric, *((one.row.b,) if many else ())),
            *(wording.estimate(one), wording.interval(one) or NONE),
            *_hodges_lehmann(one),
            *map(wording.p_value, (one.row.p, one.signed_rank_p, one.permutation_p, one.tost_p)),
            *(wording.margin(one), _decimal(one.row.effect_size), _decimal(one.cliffs_delta, "{:+.2f}")),
        )
        for one in comparison.findings
        if one.row.estimate is not None
    ]
    return Section("Second opinions: other estimates and tests of the same pairs", "", header, rows, folded=True)


def _hodges_lehmann(finding: Finding) -> tuple[str, str]:
    """The estimate, and its interval as far as so few blocks bound one."""
    found = finding.hodges_lehmann
    if found is None:
        return NONE, NONE
    bounds = wording.outwards(found.low, found.high, digits=4)
    known = all(map(math.isfinite, bounds)) and (found.low > 0 or finding.row.kind == "difference")
    return wording.number(found.value, 4), " to ".join(wording.number(one, 4) for one in bounds) if known else NONE


def looks(comparison: Comparison) -> list[Section]:
    """When it was looked, and how strictly, where the campaign went on until it was settled."""
    names = ("after blocks", "of at most", "error rate spent", "level of the test", "level of its interval")
    rows: list[Line] = [
        (
            *(one.stratum, str(one.blocks), str(one.max_blocks)),
            *(f"{100 * one.spent:.2f} %", f"{100 * one.level:.2f} %", f"{100 * one.confidence:.2f} %"),
        )
        for one in comparison.looks
    ]
    caption = (
        "The number of blocks was not fixed: the campaign went on until its primary outcomes were settled. Every look may err, "
        f"so the error rate of 5 % is spent over all of them, {sequential.SPENDING}. Every interval and p of this report, and "
        "every equivalence test, is that of its last look: repeated confidence intervals, which together hold the truth in 95 % "
        "(Jennison and Turnbull 2000). “95 % interval” means these. Limits of batch sizes, learning curves and rankings are "
        "not corrected for the looks."
    )
    return [Section("Looks", caption, ("stratum", *map(number, names)), rows)] if rows else []


LIMITS = {"processes": "processes", "steps": "steps", "apart": "drift apart"}


def precision(found: Sequence[Precision]) -> list[Section]:
    """What the spread of every headline's runs is made of."""
    names = (
        "smallest detectable effect (80 % power)",
        "between processes",
        "of steps in a process",
        "between blocks",
        "drift",
        "drift apart",
    )
    header: Header = ("outcome", under(""), *map(number, names), "limit")
    rows: list[Line] = [
        (
            *(wording.named(one.finding), f"{one.finding.row.b} against {one.finding.row.a}", wording.detectable(one.finding)),
            wording.amount(one.parts.process, one.finding),
            wording.spread(one.steps.sd) if one.steps else NONE,
            wording.amount(one.parts.block, one.finding),
            *(wording.rise(line.rise, one.finding) if line.is_shown else NONE for line in (one.parts.drift, one.parts.apart)),
            LIMITS[one.limit],
        )
        for one in found
    ]
    caption = (
        "SDs of one run: between two processes of a block, between steps of one process, between blocks about their drift. Drift "
        "is the rise of a straight line from the first block to the last, of both sides’ mean and, apart, of their difference, "
        "where chance does not explain it (its 95 % interval leaves 0 out). "
        "Drift and blocks are shared by both sides and cancel in the difference; processes and a drift apart do not."
    )
    return [Section("What limited the precision", caption, header, rows)] if rows else []


def across_strata(comparison: Comparison) -> list[Section]:
    caption = (
        "Random-effects means over strata (Hartung and Knapp’s interval); no run is pooled. The prediction interval says "
        "where one more stratum is expected (Nagashima’s construction); I² is the share of what the strata differ by that chance "
        "does not explain. "
    )
    header: Header = (
        *("outcome", comparison.factor, under(""), number("strata")),
        *EFFECT,
        *map(number, ("p (Holm)", "prediction", "I²", "tau", "p, alike (Q)")),
    )
    rows: list[Line] = [
        (
            *(one.outcome.label, one.row.b, f"against {one.row.a}", str(len(across.names))),
            *_effect(one),
            *(wording.p_value(one.row.p_holm), wording.prediction(one) or NONE),
            *(_decimal(across.i_squared_percent, "{:.0f} %"), NONE if across.tau is None else wording.number(across.tau, 2)),
            wording.p_value(across.q_p),
        )
        for one in comparison.summaries
        if (across := one.across)
    ]
    return [Section("Across strata", caption + wording.rests_on(comparison), header, rows)] if rows else []


def times_to_accuracy(comparison: Comparison) -> list[Section]:
    caption = (
        "Seconds of training, without validation, until an epoch ended with this accuracy. The median is the time by "
        "which half of all runs had got there, as in the figure. A run that ended without stays among those that have "
        "not (cumulative incidence), in the interval and in the log-rank test too, which is against the first of each "
        "group, block by block, and corrected over all rows (Holm). An interval needs six runs, the test six blocks."
    )
    header: Header = ("accuracy", "", "runs", "got there", "median time", "95 % interval", "p, log-rank (Holm)")
    rows = [_time_to_accuracy(one) for one in survival.middles(survival.reached(comparison), tested=not comparison.busy)]
    return [Section("Time to accuracy", caption, header, rows)] if rows else []


def _time_to_accuracy(one: survival.Middle) -> tuple[str, ...]:
    def seconds(value: float) -> str:
        return f"{value:.3g} s" if math.isfinite(value) else "never"

    of, known = one.of, math.isfinite(one.low)
    name = f"{of.percent} %" + (f" [{of.stratum}]" if of.stratum else "")
    got = f"{int(of.reached.sum())} of {len(of.reached)}"
    low, high = wording.outwards(one.low, one.high)
    interval = f"{low:.3g} to {seconds(high)}" if known else NONE
    return name, of.level, str(len(of.reached)), got, seconds(one.seconds), interval, wording.p_value(one.log_rank_p)


def time_of_a_step(comparison: Comparison) -> list[Section]:
    """Where the time of a step went, in the runs that were profiled; nothing where none was."""
    found = breakdowns(comparison)
    several_strata = len({one.stratum for one in found}) > 1
    first: list[str | Column] = [Column("stratum", once=True)] if several_strata else []
    header: Header = (
        *(*first, comparison.factor, number("step")),
        *(*map(number, wording.PARTS.values()), number("gaps")),
        *map(number, ("operators a step", "launches a step", "wait for input", "cost of profiling")),
    )
    rows: list[Line] = [((one.stratum,) if several_strata else ()) + _time_of_a_step(one) for one in found]
    caption = (
        "Steps under each framework’s own profiler, made after everything was measured; none of them is judged. Means "
        "over the profiled runs. A moment of a step belongs to the first column that goes on then: operators on the CPU "
        "or kernels on a GPU; copies; code that runs operators which the profiler does not show one by one; other code of "
        "the framework; the rest is Python. The last two are the gaps, in which no operator ran. Operators a step: those "
        "that compute, and inside of which no other ran. The wait for input lies between steps. Cost of profiling: a "
        "profiled step over the same step without the profiler in the same process, in every profiled run; “—”: in some "
        "run the steps do not show one. It has made some part longer. Traces are artifacts of the runs (profile/)."
    )
    return [Section("Where a step's time goes", caption, header, rows)] if rows else []


def _time_of_a_step(one: Breakdown) -> tuple[str, ...]:
    seconds = outcome("train/step_seconds")
    return (
        *(one.level, wording.quantity(one.step_seconds, seconds)),
        *(f"{100 * share:.1f} %" for share in (*map(one.share, wording.PARTS), one.gap_share)),
        *(NOT_COUNTED if one.ops is None else _decimal(one.ops, "{:,.0f}"), _decimal(one.launches, "{:,.0f}")),
        *(wording.quantity(one.input_seconds, seconds), _decimal(one.cost, "{:.2f}×")),
    )


def memory_limits(comparison: Comparison) -> list[Section]:
    caption = "The largest batch with a run that ended well, and the smallest that ran out of memory; larger ones were not tried."
    rows: list[Line] = [
        (
            *(edge.level, ", ".join(filter(None, (edge.stratum, edge.phase)))),
            *("none" if edge.fits is None else str(edge.fits), Cell(str(edge.too_large), "alarm")),
        )
        for edge in comparison.frontier
    ]
    header: Header = (comparison.factor, under(""), number("fits"), number("does not fit"))
    return [Section("Where memory ends", caption, header, rows)] if rows else []


def batch_limits(comparison: Comparison, curves: Sequence[Curve]) -> list[Section]:
    caption = (
        "The limit is the smallest size that is shown to lie within 2 % of the best one, looked for where Page’s test "
        "shows that throughput rises with the size at all. Sizes are compared inside blocks, each with all others (Holm)."
    )
    rows: list[Line] = [
        (
            *(curve.what, curve.stratum, curve.level or "all runs", ", ".join(str(point.size) for point in curve.points)),
            *(NONE if curve.limit is None else str(curve.limit), curve.reason, wording.p_value(curve.trend_p)),
        )
        for curve in curves
    ]
    header: Header = ("what", under(""), comparison.factor, number("sizes"), number("limit"), "why", number("p, trend (Page)"))
    return [Section("Batch-size limits", caption, header, rows)] if rows else []


def anchors(comparison: Comparison) -> dict[str, str]:
    """Run → the id of its row in `runs`, in the order in which they began; none where nobody would read so many."""
    began = {value.run: value.sequence for values in comparison.values.values() for value in values}
    in_order = sorted(began, key=lambda run: began[run]) if len(began) <= MAX_RUNS else []
    return {run: f"r{at}" for at, run in enumerate(in_order, 1)}


def runs(comparison: Comparison, of_runs: Mapping[str, str], link: Link) -> list[Section]:
    """Every run that counts, with its value of each headline, in the order in which they began. of_runs: as `anchors`."""
    headlines = {one.row.metric: one.outcome for one in wording.headlines(comparison)}
    first = {value.run: value for values in comparison.values.values() for value in values}
    told = {metric: {one.run: one.value for one in comparison.values.get(metric, ())} for metric in headlines}
    strata = len({value.group for value in first.values()}) > 1
    header: Header = (
        *("run", comparison.factor, *(["stratum"] if strata else []), "block"),
        *(number(one.label) for one in headlines.values()),
    )
    rows: list[Line] = [
        (
            Cell(run, link=link(run), anchor=anchor),
            *(first[run].level, *([first[run].group] if strata else []), first[run].block),
            *(wording.quantity(told[metric].get(run), one) for metric, one in headlines.items()),
        )
        for run, anchor in of_runs.items()
    ]
    return [Section("Every run that counts", "In the order in which they began.", header, rows, folded=True)] if rows else []


def steadiness(comparison: Comparison, found: Sequence[RunSteadiness], link: Link = nowhere) -> list[Section]:
    """What the steps of the runs that were read came to: by level, the runs that never rested, and every run."""
    if not found:
        return []
    of_runs = f"all {len(found):,} runs" if len(found) >= comparison.n_runs else f"{len(found):,} of {comparison.n_runs:,} runs"
    caption = (
        f"The steps of {of_runs}: changepoints of the medians of five, the first step apart; a run is steady from where no"
        " stretch differs by more than 2 % from its last, unless its steps drift. Nothing is left out for it: a run "
        "without a steady state counts like any other, and is named here."
        + " Where steps ran freely, a window of them stands for a step."
        * any(one.phase == WINDOWS for one in found)
    )
    counts = ("steady from step, median", "steps left out as warm-up", "runs summarised before they were steady")
    header: Header = (comparison.factor, *map(number, ("runs read", *KINDS, *counts)))
    rows: list[Line] = [
        (
            *(one.level, str(one.n_runs)),
            *(_count(one.counts[kind], alarming=kind == "no steady state") for kind in KINDS),
            *(_decimal(one.first_steady, "{:.0f}"), ", ".join(map(str, one.warmup)), _count(one.too_early, alarming=True)),
        )
        for one in by_level(found)
    ]
    restless = [one for one in found if one.steady.kind == "no steady state"]
    runs: Header = ("run", comparison.factor, under(""), "block")
    named = [(*_run(one, link), f"{one.phase}: {one.steady.reason}") for one in restless]
    of_all: list[Line] = [
        (
            *(*_run(one, link), one.steady.kind, one.steady.reason),
            *(_decimal(one.steady.first_steady_step, "{:.0f}"), _decimal(one.steady.drift_percent, "{:+.1f} %")),
        )
        for one in found
    ]
    every: Header = (*runs, "found", under(""), number("steady from step"), number("drift of the last stretch"))
    return [
        Section("Was steady state reached?", caption, header, rows),
        *([Section("Runs without a steady state", "", (*runs, "why"), named, level=3)] if named else []),
        Section("Every run that was read", "", every, of_all, folded=True),
    ]


def _count(count: int, *, alarming: bool) -> Cell:
    return Cell(str(count or "·"), "alarm" if alarming and count else "")


def _run(one: RunSteadiness, link: Link) -> tuple[Cell, str, str, str]:
    return Cell(one.run.run_id, link=link(one.run.run_id)), one.run.level, one.run.stratum, one.run.block


def unread(raw: Sequence[RawRun]) -> list[str]:
    return [f"The steps of {run.level}, block {run.block} are not shown: {run.trouble}" for run in raw if run.trouble]


def controls(comparison: Comparison) -> list[Section]:
    if not comparison.controls:
        return []
    return [Section("Controls: is the measurement to be trusted?", "", (), ()), *map(_control, comparison.controls)]


def _control(control: Control) -> Section:
    inside = control.comparison
    header: Header = (
        *("outcome", number(inside.baseline), number(inside.levels[1]), *EFFECT),
        *(number("p (Holm)"), number("blocks")),
    )
    rows: list[Line] = [
        (
            *(wording.named(one), *_sides(one), *_effect(one)),
            *(wording.p_value(one.row.p_holm), str(one.row.n_blocks)),
        )
        for one in inside.findings
    ]
    caption = f"Expected {control.expected}; {remarks.control_result(control)}."
    return Section(f"{control.name}: {versus(inside)}", caption, header, rows, level=3)


def papers(comparison: Comparison) -> list[Section]:
    warning = (
        "Not evidence, and not what the verdicts rest on: the steps of one process a side, tested as if they were independent "
        "values."
    )
    caption = (
        "Steps of one process share that process’s luck, so their number says nothing about another run: in simulation "
        "(runs that vary by 3 %, steps with autocorrelation 0.5) the paired Wilcoxon test on steps calls two identical "
        "systems different in 85 % of cases where it should in 5 %. Kolmogorov-Smirnov with a mean and deviation "
        "estimated from the same values is no valid test of normality: it rejects 0 % of normal and 4 % of exponential "
        "samples of 20. Lilliefors and Shapiro stand beside it. Of normality tests the level’s p stands above its "
        "baseline’s. One block: the first that has steps of both sides."
    )
    normality = [column for name in ("KS", "Lilliefors", "Shapiro") for column in (number(f"p, {name}"), under(""))]
    header: Header = ("outcome", under(""), "pair", under(""), "block", number("steps"), *normality)
    header = (*header, number("p, Wilcoxon on steps"), "it says", "over all blocks")
    rows = [_paper_row(one) for one in comparison.papers]
    title = "The papers’ procedure, for comparison only"
    return [Section(title, caption, header, rows, warning=warning)] if rows else []


def _paper_row(one: PaperRow) -> tuple[str, ...]:
    tests = (one.procedure.ks_p, one.procedure.lilliefors_p, one.procedure.shapiro_p)
    return (
        *(one.outcome.label, one.stratum, one.b, f"against {one.a}", one.block, str(one.procedure.n_steps)),
        *(wording.p_value(p) for both in tests for p in reversed(both)),
        *(wording.p_value(one.procedure.wilcoxon_p), one.says, one.verdict),
    )


def published(rows: Sequence[Sequence[str]], source: str) -> list[Section]:
    caption = "Other hardware, other versions, often other data: compare directions and ratios, not absolute figures."
    caption = f"Source: {source}. {caption}" if source else caption
    return [Section("Published figures beside ours", caption, ("what", "published", "here"), rows)] if rows else []


def environment(comparison: Comparison) -> Section:
    by_level: Mapping[str, Mapping[str, str]] = comparison.environment
    facts = dict.fromkeys(name for values in by_level.values() for name in values)
    rows = [(fact, *(by_level[level].get(fact, NONE) for level in comparison.levels)) for fact in facts]
    return Section("Environment, side by side", "", ("", *comparison.levels), rows)


def excluded(comparison: Comparison, link: Link = nowhere) -> Section:
    header: Header = ("run", under(""), comparison.factor, "block", "metric", "reason")
    rows: list[Line] = [
        (Cell(one.name, link=link(one.run_id)), one.run_id, one.level or NONE, one.block or NONE, one.metric or "all", one.reason)
        for one in comparison.excluded
    ]
    return Section("Left out, and why", "" if rows else _none_left_out(comparison), header, rows)


def _none_left_out(comparison: Comparison) -> str:
    if any(finding.row.n_blocks for finding in comparison.findings):
        return "No run was left out."
    return "No run was left out by itself, but no pair of runs was compared: the reasons stand beside the verdicts."
