"""The published procedure, on the steps of one run a side: shown with the verdict, not as it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.comparison.analyses.evidence import Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import number
from experiments.comparison.runs.raw import Phase, RawRun, of_inference
from experiments.comparison.statistics.significance import PaperProcedure, paper_procedure
from experiments.comparison.verdicts.decision import ALPHA
from experiments.comparison.verdicts.findings import Comparison, grouped
from experiments.metrics import outcome

UNJUDGED = "not judged here"
CAPTION = (
    "Not evidence: the verdicts do not use it. The steps of one process per side are tested as if "
    "they were independent. Whatever slows a process slows all of its steps, so their number says "
    "nothing about another run. In simulation (runs that vary by 3 %, steps with autocorrelation "
    "0.5) the paired Wilcoxon test on steps calls two identical systems different in 85 % of cases "
    "instead of 5 %. Kolmogorov-Smirnov with a mean and deviation estimated from the same values "
    "is no valid test of normality: it rejects 0 % of normal and 4 % of exponential samples of 20. "
    "Normality tests have the level’s p, then its baseline’s. The block is the first that has "
    "steps of both sides."
)


@dataclass(frozen=True)
class PaperRow:
    """Result of the published procedure for one pair of levels, from the steps of one block.

    Attributes:
        verdict: that of all blocks.
    """

    metric: str
    stratum: str
    a: str
    b: str
    block: str
    procedure: PaperProcedure
    verdict: str


def rows(comparison: Comparison, raw: Sequence[RawRun]) -> tuple[PaperRow, ...]:
    """Return training and every inference batch size of every pair, from the first whole block."""
    results = []
    for (stratum, a, b), group in grouped(comparison.findings).items():
        verdicts = {finding.row.metric: finding.row.verdict for finding in group}
        steps: dict[str, dict[str, dict[str, Phase]]] = {}
        for run in raw:
            if run.stratum == stratum and run.level in (a, b):
                for metric, phase in _phases(run):
                    steps.setdefault(metric, {}).setdefault(run.block, {})[run.level] = phase
        for metric, blocks in steps.items():
            for block, sides in blocks.items():
                if len(sides) == 2 and all(len(side.measured) for side in sides.values()):
                    procedure = paper_procedure(sides[a].measured, sides[b].measured)
                    if procedure:
                        verdict = verdicts.get(metric, UNJUDGED)
                        results.append(PaperRow(metric, stratum, a, b, block, procedure, verdict))
                        break
    return tuple(results)


def _phases(run: RawRun) -> Iterator[tuple[str, Phase]]:
    if "train" in run.phases:
        yield "train/step_seconds", run.phases["train"]
    for at, (size, phase) in enumerate(of_inference(run).items()):
        yield f"inference/{f'batch_{size}/' if at else ''}latency_seconds_p50", phase


def table(evidence: Evidence) -> list[Section]:
    """Return a line for each pair, if the protocol is that of the papers."""
    if evidence.protocol != "paper":
        return []
    numbers = map(number, ("steps", "p, KS", "p, Lilliefors", "p, Shapiro"))
    header: Header = (
        *("outcome", "stratum", "pair", "block"),
        *numbers,
        *(number("p, Wilcoxon on steps"), "it says", "over all blocks"),
    )
    lines: list[Line] = []
    for row in rows(evidence.comparison, evidence.raw):
        tests = row.procedure
        normality = (tests.ks_p, tests.lilliefors_p, tests.shapiro_p)
        pair = f"{row.b} against {row.a}"
        lines.append(
            (
                *(outcome(row.metric).label, row.stratum, pair, row.block, str(tests.n_steps)),
                *("; ".join(map(wording.p_value, reversed(both))) for both in normality),
                wording.p_value(tests.wilcoxon_p),
                "significant" if tests.wilcoxon_p < ALPHA else "not significant",
                row.verdict,
            )
        )
    title = "The papers’ procedure, for comparison only"
    hint = "not what the verdicts rest on"
    return [Section(title, CAPTION, header, lines, True, hint)] if lines else []
