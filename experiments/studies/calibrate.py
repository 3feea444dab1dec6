"""Error rates of the tool: simulated campaigns, and a framework against itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from experiments.config.settings import setting
from experiments.contract import Comparison, Progress, ReportAddition, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import compared, controls, require_single_steps
from experiments.studies import captioning
from tracking.cpus import cpus


@dataclass(frozen=True)
class Settings(captioning.Settings):
    """Settings of the calibration."""

    campaigns: int = setting(
        100,
        "simulated campaigns a scenario; 0: only the real cells",
        minimum=0,
        maximum=100_000,
        group="design",
        affects_measurement=False,
        searchable=False,
    )


DELAYED = (
    "train/step_seconds",
    "inference/latency_seconds_p50",
    "inference/batch_8/latency_seconds_p50",
)
METRICS = (
    "false_alarms",
    "false_verdicts",
    "wrong_equivalent_rows",
    "wrong_beyond_rows",
    "coverage",
    "power",
    "power_in_report",
    "primary_false_alarms",
    "exploratory_false_alarms",
    "primary_power",
)


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return the first framework, itself again, and itself slowed, all of which are compared.

    Raises:
        UsageError: Steps are not timed one by one, as a delay of each needs.
    """
    require_single_steps(settings, "calibrate")
    baseline = compared(settings)[0]
    return (baseline, *(replace(cell, control="") for cell in controls(settings, baseline)))


def also(settings: Settings, comparison: Comparison, progress: Progress) -> ReportAddition:
    """Return the results of the real cells, and the rates over simulated campaigns."""
    sentences = [_level_sentence(settings, comparison, level) for level in comparison.levels[1:]]
    if not settings.campaigns:
        return ReportAddition(sentences)
    from experiments.calibration import simulation as calibration

    rates = calibration.calibrate(
        campaigns=settings.campaigns,
        seed=settings.seed,
        workers=cpus().usable,
        progress=partial(progress, "simulated campaigns"),
    )
    for claim in calibration.meets(rates):
        holds = "holds" if claim.holds else "DOES NOT HOLD"
        rate = claim.measured
        sentences.append(
            f"{claim.claim}: {rate.value:.1%} ({rate.low:.1%}–{rate.high:.1%}), "
            f"{claim.limit}: {holds}."
        )
    metrics = {
        f"calibration/{scenario.noise.name.replace(' ', '_')}/{name}": scenario.shares[name].value
        for scenario in rates
        for name in METRICS
    }
    files = {"calibration.md": calibration.as_markdown(rates)}
    return ReportAddition(sentences, files, metrics)


def _level_sentence(settings: Settings, comparison: Comparison, level: str) -> str:
    findings = [
        finding for finding in comparison.findings if finding.row.b == level and finding.is_tested
    ]
    if not findings:
        return f"{level}: no outcome could be tested."
    if level.endswith("A/A"):
        wrong = [finding.outcome.label for finding in findings if finding.different]
        return (
            f"A/A on this machine: {len(wrong)} of {len(findings)} outcomes called different"
            f"{_names(wrong)}."
        )
    delayed = [finding for finding in findings if finding.row.metric in DELAYED]
    seen = [
        finding.outcome.label
        for finding in delayed
        if finding.different and finding.way == "slower"
    ]
    return (
        f"Injected {100 * settings.inject_delay:g} %: found in {len(seen)} of {len(delayed)} "
        f"delayed outcomes{_names(seen)}."
    )


def _names(labels: list[str]) -> str:
    return f" ({', '.join(labels)})" if labels else ""


STUDY = Study(
    name="calibrate",
    title="The tool's own error rates: simulated campaigns, "
    "and a framework against itself, unchanged and slowed",
    workload="captioning",
    settings=Settings,
    models=captioning.STUDY.models,
    factor="treatment",
    treatments=treatments,
    allowed_to_differ=("inject_delay",),
    scaling=captioning.STUDY.scaling,
    also=also,
    presets={
        "demo": {
            **captioning.STEPS_ALONE,
            "frameworks": ("pytorch",),
            "aa": True,
            "inject_delay": 0.05,
            "blocks": 12,
            "inference_batch_sizes": (1, 8),
            "inference_requests": 100,
            "timing": "step",
        },
    },
    outcomes=(
        outcome("train/examples_per_second"),
        outcome("train/step_seconds"),
        outcome("train/step_seconds_p95"),
        outcome("train/first_step_seconds"),
        outcome("train/total_seconds"),
        outcome("memory/peak_rss_bytes"),
        outcome("inference/latency_seconds_p50"),
        outcome("inference/latency_seconds_p95"),
        outcome("inference/examples_per_second"),
        outcome("inference/batch_8/latency_seconds_p50"),
        outcome("inference/batch_8/latency_seconds_p95"),
        outcome("val/loss"),
    ),
    primary=("train/step_seconds", "inference/latency_seconds_p50"),
)
