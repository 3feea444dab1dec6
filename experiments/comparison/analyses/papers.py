"""The published procedure, on the steps of one run a side: to be seen beside the verdict, never as the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Header, Section
from experiments.comparison.report.tables import number, under
from experiments.comparison.runs.raw import Phase, RawRun, of_inference
from experiments.comparison.statistics.significance import PaperProcedure, paper_procedure
from experiments.comparison.verdicts.decision import ALPHA
from experiments.comparison.verdicts.findings import Comparison, grouped
from experiments.metrics import Outcome, outcome

UNJUDGED = "not judged here"


@dataclass(frozen=True)
class PaperRow:
    """What the published procedure says of the steps of one run a side; `verdict`: what is said of all runs above it.

    is_significant: of its Wilcoxon test at 5 %.
    """

    metric: str
    outcome: Outcome
    stratum: str
    a: str
    b: str
    block: str
    procedure: PaperProcedure
    is_significant: bool
    verdict: str


def rows(comparison: Comparison, raw: Sequence[RawRun]) -> tuple[PaperRow, ...]:
    """A row for the training and every inference batch size of every pair of levels, from the first block that has both sides."""
    found = []
    for (stratum, a, b), group in grouped(comparison.findings).items():
        verdicts = {finding.row.metric: finding.row.verdict for finding in group}
        inside = [run for run in raw if run.stratum == stratum and run.level in (a, b)]
        for metric in dict.fromkeys(metric for run in inside for metric in _phases(run)):
            tried = next(_tried(inside, a, b, metric), None)
            if tried:
                block, procedure = tried
                significant = procedure.wilcoxon_p < ALPHA
                verdict = verdicts.get(metric, UNJUDGED)
                found.append(
                    PaperRow(
                        metric,
                        outcome(metric),
                        stratum,
                        a,
                        b,
                        block,
                        procedure,
                        significant,
                        verdict,
                    )
                )
    return tuple(found)


def _tried(
    runs: Sequence[RawRun], a: str, b: str, metric: str
) -> Iterator[tuple[str, PaperProcedure]]:
    """Block by block, what the procedure says of the steps that count."""
    for block in dict.fromkeys(run.block for run in runs):
        steps = {
            run.level: _phases(run)[metric].measured
            for run in runs
            if run.block == block and metric in _phases(run)
        }
        if (
            len(steps) == 2
            and min(map(len, steps.values()))
            and (procedure := paper_procedure(steps[a], steps[b]))
        ):
            yield block, procedure


def _phases(run: RawRun) -> dict[str, Phase]:
    """Phases by the metric that sums them up."""
    found = {"train/step_seconds": run.phases["train"]} if "train" in run.phases else {}
    for at, (size, phase) in enumerate(of_inference(run).items()):
        found[
            f"inference/batch_{size}/latency_seconds_p50" if at else "inference/latency_seconds_p50"
        ] = phase
    return found


def table(evidence: Evidence) -> list[Section]:
    if evidence.protocol != "paper":
        return []
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
    normality = [
        column
        for name in ("KS", "Lilliefors", "Shapiro")
        for column in (number(f"p, {name}"), under(""))
    ]
    header: Header = ("outcome", under(""), "pair", under(""), "block", number("steps"), *normality)
    header = (*header, number("p, Wilcoxon on steps"), "it says", "over all blocks")
    lines = [_cells(one) for one in rows(evidence.comparison, evidence.raw)]
    title = "The papers’ procedure, for comparison only"
    return [Section(title, caption, header, lines, warning=warning)] if lines else []


def _cells(one: PaperRow) -> tuple[str, ...]:
    says = "significant" if one.is_significant else "not significant"
    tests = (one.procedure.ks_p, one.procedure.lilliefors_p, one.procedure.shapiro_p)
    return (
        *(
            one.outcome.label,
            one.stratum,
            one.b,
            f"against {one.a}",
            one.block,
            str(one.procedure.n_steps),
        ),
        *(wording.p_value(p) for both in tests for p in reversed(both)),
        *(wording.p_value(one.procedure.wilcoxon_p), says, one.verdict),
    )


ANALYSIS = Analysis(tables={140: table})
