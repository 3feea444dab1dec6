"""S3 · LeNet-5 and ten hypotheses on time, temperature and utilisation (Goal-Question-Metric).

Source: TensorFlow against PyTorch on LeNet and MNIST (Universidade Federal de Sergipe, 2019), with
its published p-values below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from experiments.config.settings import MAX_ROWS, MAX_SIDE, setting
from experiments.contract import Comparison, ReportAddition
from experiments.metrics import Hypothesis, outcome
from experiments.studies import classification

GOAL = (
    "Compare the frameworks, for the purpose of choosing one, "
    "with respect to time and use of the machine, as practitioners do."
)


@dataclass(frozen=True)
class Settings(classification.Settings):
    """Settings of the LeNet study."""

    not_offered = frozenset({"register"})  # its network is too small to be of use

    model: str = setting("lenet", "a model that takes images, by folder name", group="training")
    image_size: int = setting(
        28,
        "side of the square that pictures are resized to, pixels",
        minimum=1,
        maximum=MAX_SIDE,
        group="data",
    )
    batch_size: int = setting(100, "images a step", minimum=1, maximum=MAX_ROWS, group="training")
    inference_batch_sizes: tuple[int, ...] = setting(
        (100,), "images a request", minimum=1, maximum=MAX_ROWS, group="inference"
    )


_DIGITS = {"sensor_seconds": 0.1}

_QUESTIONS = {
    "Does one framework take less time?": (
        "train/total_seconds",
        "inference/latency_seconds_p50",
        "3.90e-18",
        "3.90e-18",
    ),
    "Does one keep the GPU cooler?": (
        *("gpu/temperature_celsius_mean", "inference/gpu/temperature_celsius_mean"),
        *("3.90e-18", "9.60e-16"),
    ),
    "Does one keep the CPU cooler?": (
        *("cpu/temperature_celsius_mean", "inference/cpu/temperature_celsius_mean"),
        *("3.63e-13", "4.53e-18"),
    ),
    "Does one use more of the GPU?": (
        *("gpu/utilization_percent_mean", "inference/gpu/utilization_percent_mean"),
        *("3.90e-18", "3.90e-18"),
    ),
    "Does one use more of the CPU?": (
        *("cpu/utilization_percent_mean", "inference/cpu/utilization_percent_mean"),
        *("0.485", "3.31e-18"),
    ),
}
HYPOTHESES: tuple[Hypothesis, ...] = tuple(
    Hypothesis(f"H{2 * number + position + 1}", question, phase, row[position], row[2 + position])
    for number, (question, row) in enumerate(_QUESTIONS.items())
    for position, phase in enumerate(("learning", "inference"))
)


def also(_: Settings, comparison: Comparison) -> ReportAddition:
    """Return the answers to the ten hypotheses."""
    from experiments.comparison.analyses import hypotheses

    answers = hypotheses.answered(HYPOTHESES, comparison)
    section = hypotheses.section(answers, GOAL)
    return ReportAddition(
        [hypotheses.sentence(answers)],
        sections=(section,),
        files={"hypotheses.csv": hypotheses.as_csv(answers)},
    )


STUDY = replace(
    classification.STUDY,
    name="lenet",
    title="LeNet-5: ten hypotheses on time, temperature and utilisation",
    settings=Settings,
    also=also,
    # A repetition is a process; the study repeated steps in one, which are not independent.
    presets={
        "demo": {
            **_DIGITS,
            "epochs": 8,
            "blocks": 6,
            "thresholds": (0.8, 0.9),
            "inference_requests": 200,
        },
        "sound": {
            **_DIGITS,
            "epochs": 20,
            "blocks": 12,
            "thresholds": (0.9, 0.95, 0.97),
            "inference_requests": 400,
        },
        "paper": {
            "data": "",
            "epochs": 1,
            "steps_per_epoch": 600,
            "optimizer": "sgd",
            "learning_rate": 0.01,
            "warmup_steps": 1,
            "inference_requests": 100,
            "blocks": 100,
            "thresholds": (0.8, 0.9),
            "protocol": "paper",
            "sensor_seconds": 0.1,
        },
    },
    outcomes=(
        *(outcome(hypothesis.metric) for hypothesis in HYPOTHESES),
        outcome("val/accuracy"),
        outcome("val/loss"),
        outcome("train/step_seconds"),
        outcome("train/first_step_seconds"),
        outcome("inference/latency_seconds_p95"),
        outcome("inference/first_call_seconds"),
        outcome("memory/peak_rss_bytes"),
    ),
    primary=("train/total_seconds", "inference/latency_seconds_p50", "val/accuracy"),
    published=tuple(
        {
            "what": f"{hypothesis.name}, {hypothesis.question} ({hypothesis.phase})",
            "published": f"p = {hypothesis.published_p}",
            "metric": hypothesis.metric,
        }
        for hypothesis in HYPOTHESES
    ),
    source="Universidade Federal de Sergipe, 2019 "
    "(TensorFlow first, then PyTorch; 100 values of one process each)",
)
