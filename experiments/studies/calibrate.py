"""Error rates of the tool: simulated campaigns, and a framework against itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from experiments.config.settings import setting
from experiments.contract import Comparison, Extra, Progress, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import compared, controls, require_single_steps
from experiments.studies import captioning
from tracking.cpus import cpus

if TYPE_CHECKING:
    from experiments.calibration.simulation import Rates


@dataclass(frozen=True)
class Settings(captioning.Settings):
    """Settings of the calibration."""

    campaigns: int = setting(
        100,
        "simulated campaigns a scenario; 0: only the real cells",
        minimum=0,
        maximum=100_000,
        group="design",
        material=False,
        searchable=False,
    )


DELAYED = (
    "train/step_seconds",
    "inference/latency_seconds_p50",
    "inference/batch_8/latency_seconds_p50",
)
METRICS = (
    *(
        "false_alarms",
        "false_verdicts",
        "wrong_equivalent_rows",
        "wrong_beyond_rows",
        "coverage",
        "power",
        "power_in_report",
    ),
    *("primary_false_alarms", "exploratory_false_alarms", "primary_power"),
)


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """The first framework, itself again, and itself slowed: here they are what is compared."""
    require_single_steps(settings, "calibrate")
    return (compared(settings)[0], *(replace(one, control="") for one in controls(settings)))


def also(settings: Settings, comparison: Comparison, progress: Progress) -> Extra:
    """What the real cells say of the tool, and the rates over simulated campaigns."""

    told = _told(settings, comparison)
    if not settings.campaigns:
        return Extra(told)
    from experiments.calibration import simulation as calibration

    rates = calibration.calibrate(
        campaigns=settings.campaigns,
        seed=settings.seed,
        workers=cpus().usable,
        progress=partial(progress, "simulated campaigns"),
    )
    for one in calibration.meets(rates):
        holds = "holds" if one.holds else "DOES NOT HOLD"
        told.append(
            f"{one.claim}: {one.measured.value:.1%} ({one.measured.low:.1%}–{one.measured.high:.1%}), {one.limit}: {holds}."
        )
    return Extra(
        told,
        (calibration.table(rates),),
        {"calibration.md": calibration.as_markdown(rates)},
        _metrics(rates),
    )


def _metrics(rates: Sequence[Rates]) -> dict[str, float]:
    return {
        f"calibration/{one.noise.name.replace(' ', '_')}/{name}": getattr(one, name).value
        for one in rates
        for name in METRICS
    }


def _told(settings: Settings, comparison: Comparison) -> list[str]:
    told = []
    for level in comparison.levels[1:]:
        here = [
            finding
            for finding in comparison.findings
            if finding.row.b == level and finding.is_tested
        ]
        if not here:
            told.append(f"{level}: no outcome could be tested.")
        elif level.endswith("A/A"):
            wrong = [finding.outcome.label for finding in here if finding.different]
            told.append(
                f"A/A on this machine: {len(wrong)} of {len(here)} outcomes called different{_named(wrong)}."
            )
        else:
            delayed = [finding for finding in here if finding.row.metric in DELAYED]
            seen = [
                finding.outcome.label
                for finding in delayed
                if finding.different and finding.way == "slower"
            ]
            share = f"{100 * settings.inject_delay:g} %"
            told.append(
                f"Injected {share}: found in {len(seen)} of {len(delayed)} delayed outcomes{_named(seen)}."
            )
    return told


def _named(labels: list[str]) -> str:
    return f" ({', '.join(labels)})" if labels else ""


STUDY = Study(
    name="calibrate",
    title="The tool's own error rates: simulated campaigns, and a framework against itself, unchanged and slowed",
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
