"""The published procedure, on the steps of one run a side: to be seen beside the verdict, never as the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.comparison.runs.raw import Phase, RawRun, of_inference
from experiments.comparison.statistics.significance import PaperProcedure, paper_procedure
from experiments.comparison.verdicts.decision import ALPHA
from experiments.comparison.verdicts.findings import Comparison, PaperRow, grouped
from experiments.config.outcomes import outcome

UNJUDGED = "not judged here"


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
                says = "significant" if procedure.wilcoxon_p < ALPHA else "not significant"
                verdict = verdicts.get(metric, UNJUDGED)
                found.append(PaperRow(metric, outcome(metric), stratum, a, b, block, procedure, says, verdict))
    return tuple(found)


def _tried(runs: Sequence[RawRun], a: str, b: str, metric: str) -> Iterator[tuple[str, PaperProcedure]]:
    """Block by block, what the procedure says of the steps that count."""
    for block in dict.fromkeys(run.block for run in runs):
        steps = {run.level: _phases(run)[metric].measured for run in runs if run.block == block and metric in _phases(run)}
        if len(steps) == 2 and min(map(len, steps.values())) and (procedure := paper_procedure(steps[a], steps[b])):
            yield block, procedure


def _phases(run: RawRun) -> dict[str, Phase]:
    """Phases by the metric that sums them up."""
    found = {"train/step_seconds": run.phases["train"]} if "train" in run.phases else {}
    for at, (size, phase) in enumerate(of_inference(run).items()):
        found[f"inference/batch_{size}/latency_seconds_p50" if at else "inference/latency_seconds_p50"] = phase
    return found
