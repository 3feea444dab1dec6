"""S4 · Training speed of networks of images and of sequences, compared with a published table.

Source: Comparing the training speed of PyTorch and TensorFlow on one GPU (Huazhong University of
Science and Technology, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.config.settings import (
    MAX_RATE,
    MAX_ROWS,
    MAX_STEPS,
    ProfileSettings,
    TrainingSettings,
    parameter,
    setting,
)
from experiments.contract import Comparison, ReportAddition, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import UNCONTROLLED, check_count
from models import devices
from models.frameworks import GRAPH_OPTIMIZERS
from models.lstms import FLOAT32_ALONE, IMPLEMENTATIONS

if TYPE_CHECKING:
    from models.parity import Side

BATCH_SIZES = {
    "resnet50": 64,
    "vgg16": 64,
    "inception_v3": 64,
    "gnmt": 32,
    "deepspeech2": 20,
    "tacotron2": 32,
    "bert": 32,
}


@dataclass(frozen=True)
class Settings(ProfileSettings, TrainingSettings):
    """Settings of the training-speed study."""

    not_offered = UNCONTROLLED

    model: str = parameter("", "models")

    models: tuple[str, ...] = setting(
        tuple(BATCH_SIZES),
        "models by folder name: python -m experiments parity --help",
        group="networks",
        affects_measurement=False,
    )
    size: str = setting(
        "paper", "of the networks and of their inputs", choices=("paper", "tiny"), group="networks"
    )
    batch_size: int = setting(
        0,
        "examples a step; 0: the paper's for each network",
        minimum=0,
        maximum=MAX_ROWS,
        group="training",
    )
    lengths: str = setting(
        "fixed",
        "of the sequences; fixed: all one, the median; varying: in buckets",
        choices=("fixed", "varying"),
        group="training",
    )
    steps: int = setting(
        200,
        "timed steps; of varying lengths also the steps of the epoch before",
        minimum=2,
        maximum=MAX_STEPS,
        group="training",
    )
    warmup_steps: int = setting(
        10, "steps before the timed ones", minimum=1, maximum=MAX_STEPS, group="training"
    )
    ctc: str = setting(
        "sparse",
        "TensorFlow's and Keras' CTC loss: TensorFlow's kernel (sparse) or operators (dense), "
        "Keras' own, or the gate's (scan)",
        choices=("sparse", "dense", "keras", "scan"),
        group="training",
        advanced=True,
    )
    lstm: str = setting(
        "layer",
        "of networks with LSTMs: the framework's layer, a loop over cells (cells, scan), "
        "or its operators (block, block-v2)",
        choices=IMPLEMENTATIONS,
        group="training",
        advanced=True,
    )
    graph_off: str = setting(
        "none",
        "graph optimizer that TensorFlow leaves out; all: every one",
        choices=("none", *GRAPH_OPTIMIZERS),
        group="training",
        advanced=True,
    )
    learning_rate: float = setting(
        0.0001, "of the optimizer", minimum=1e-9, maximum=MAX_RATE, group="training"
    )

    def rows(self, model: str) -> int:
        """Return the examples of a step of a model."""
        return self.batch_size or BATCH_SIZES.get(model, 32)


SOURCE = "Huazhong University of Science and Technology, 2022"
# Throughput of TensorFlow 1.15 and PyTorch 1.4 on a P100.
TABLE = {
    "resnet50": ("images/s", 216.14, 206.15),
    "vgg16": ("images/s", 150.32, 131.54),
    "inception_v3": ("images/s", 145.18, 138.12),
    "gnmt": ("steps/s", 2.085, 2.030),
    "deepspeech2": ("steps/s", 0.696, 0.735),
    "tacotron2": ("steps/s", 0.286, 0.307),
    "bert": ("steps/s", 1.73, 1.77),
}
# Share of a step, in percent, in which the GPU of that machine ran a kernel: TensorFlow, PyTorch.
SHARES = {
    "resnet50": (96.38, 96.03),
    "vgg16": (99.64, 99.34),
    "inception_v3": (96.23, 97.02),
    "bert": (98.96, 92.59),
    "gnmt": (85.91, 96.55),
    "deepspeech2": (87.04, 92.69),
    "tacotron2": (54.31, 66.62),
}


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return every network in every framework, in groups of a network."""
    check_count(settings, settings.models, settings.frameworks)
    return tuple(
        Treatment(
            f"{name} · {model}",
            name,
            "measure",
            {"model": model, "batch_size": settings.rows(model)},
            group=model,
        )
        for model in settings.models
        for name in settings.frameworks
    )


def side(framework: str, settings: Settings) -> Side:
    """Return the side of the parity gate: float32 for an LSTM that has no other."""
    from models.parity import Side

    if settings.lstm == "layer":
        return Side(framework)
    is_lower = framework != "pytorch" and settings.lstm in FLOAT32_ALONE
    return Side(framework, (("lstm", settings.lstm),), "float32" if is_lower else "float64")


def also(settings: Settings, comparison: Comparison) -> ReportAddition:
    """Return the published tables with ours; that of shares if steps were profiled."""
    from experiments.comparison.analyses import published

    if comparison.factor != "framework":  # they compare frameworks
        return ReportAddition()
    inputs = f"random inputs of {settings.lengths} lengths"
    speeds = published.speeds(comparison, TABLE, SOURCE, size=settings.size, data=inputs)
    return ReportAddition(sections=(speeds, *published.shares(comparison, SHARES, SOURCE)))


STUDY = Study(
    name="training_speed",
    title="Training speed: images and sequences, warm-up, then timed steps, "
    "beside the published table",
    workload="training_speed",
    settings=Settings,
    models=lambda settings: settings.models,
    treatments=treatments,
    strata=lambda _: ("model",),
    side=side,
    also=also,
    demo_on_gpu={"steps": 500},
    presets={
        "demo": {
            "models": ("gnmt", "deepspeech2", "tacotron2"),
            "size": "tiny",
            "steps": 20,
            "warmup_steps": 5,
            "blocks": 6,
        },
        "paper": {"blocks": 6},
        "lstm": {
            "models": ("deepspeech2", "gnmt", "tacotron2", "caption_decoder"),
            "vary": "lstm=cells,scan,block,layer",
            "blocks": 6,
        },
        "graph": {
            "frameworks": ("tensorflow",),
            "vary": f"graph_off={','.join(('none', *GRAPH_OPTIMIZERS))}",
            "blocks": 6,
        },
        "conv_algorithm": {
            "models": ("resnet50", "vgg16", "inception_v3"),
            "device": devices.CUDA,
            "vary": "conv_algorithm=fixed,heuristic,profiled",
            "blocks": 6,
        },
    },
    outcomes=(
        outcome("train/examples_per_second"),
        outcome("train/step_seconds"),
        outcome("train/step_seconds_p95"),
        outcome("train/first_step_seconds"),
        outcome("train/first_epoch_seconds"),
        outcome("train/epoch_seconds"),
        outcome("memory/peak_rss_bytes"),
        outcome("memory/peak_device_bytes"),
        outcome("memory/peak_device_with_warmup_bytes"),
        outcome("energy/joules_per_example"),
    ),
    primary=("train/examples_per_second",),
    source=SOURCE,
)
