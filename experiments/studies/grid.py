"""S2 · A grid on synthetic tensors: models × batch sizes × image sizes, training and inference.

Source: PyTorch against TensorFlow on a grid of networks (Arizona State University, 2023), with its
published findings below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from experiments.config.settings import (
    MAX_ROWS,
    MAX_SIDE,
    MAX_STEPS,
    TrainingSettings,
    parameter,
    setting,
)
from experiments.contract import Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import UNCONTROLLED, check_count


@dataclass(frozen=True)
class PointSettings(TrainingSettings):
    """Settings of a grid, and the point of a cell."""

    not_offered = UNCONTROLLED

    model: str = parameter("", "models")
    batch_size: int = parameter(0, "batch_sizes")

    models: tuple[str, ...] = setting(
        ("resnet18", "mobilenet_v2"),
        "models by folder name: python -m experiments parity --help",
        group="grid",
        affects_measurement=False,
    )
    batch_sizes: tuple[int, ...] = setting(
        (1, 8, 32),
        "examples a step and a request",
        minimum=1,
        maximum=MAX_ROWS,
        group="grid",
        affects_measurement=False,
    )
    phases: tuple[str, ...] = setting(
        ("inference", "train"),
        "what is timed, in this order, in one process a cell",
        choices=("inference", "train"),
        group="grid",
        affects_measurement=False,
    )
    seconds: float = setting(
        1.0,
        "time budget of a phase, after its first call",
        minimum=0.01,
        maximum=3_600,
        group="time budget",
    )
    least_steps: int = setting(
        12,
        "steps or requests of a phase whatever they take, the first not counted",
        minimum=12,
        maximum=MAX_STEPS,
        group="time budget",
        advanced=True,
    )
    classes: int = setting(
        1_000,
        "outputs of the classifier",
        minimum=1,
        maximum=1_000_000,
        group="grid",
        advanced=True,
    )


@dataclass(frozen=True)
class Settings(PointSettings):
    """Settings of the grid of images."""

    image_size: int = parameter(0, "image_sizes")

    image_sizes: tuple[int, ...] = setting(
        (64,),
        "sides of the square images, pixels",
        minimum=1,
        maximum=MAX_SIDE,
        group="grid",
        affects_measurement=False,
    )
    weights: str = setting(
        "random",
        "random: drawn from the seed; imagenet; a .safetensors or .pth file of PyTorch's names",
        path=True,
        group="grid",
    )
    data: str = setting(
        "",
        "pictures as of classification, whose validation accuracy is measured after the requests; "
        "empty: none",
        path=True,
        group="grid",
    )


def network_label(model: str, size: int, unit: str = "px") -> str:
    """Return the beginning of the labels of a network's points."""
    return f"{model} · {size} {unit} · "


def points(
    settings: PointSettings, name: str, sizes: Sequence[int], unit: str
) -> tuple[Treatment, ...]:
    """Return every point in every framework, in groups of a point.

    Args:
        settings: With models, batch sizes and frameworks.
        name: Parameter of the size of an example.
        sizes: Its values.
        unit: Their unit.
    """
    cells = []
    check_count(settings, settings.models, sizes, settings.batch_sizes, settings.frameworks)
    for model, size, rows in product(settings.models, sizes, settings.batch_sizes):
        point = f"{network_label(model, size, unit)}batch {rows}"
        parameters = {"model": model, name: size, "batch_size": rows, "phases": settings.phases}
        cells += [
            Treatment(f"{framework} · {point}", framework, "measure", parameters, group=point)
            for framework in settings.frameworks
        ]
    return tuple(cells)


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return every point of the grid of images in every framework."""
    return points(settings, "image_size", settings.image_sizes, "px")


OUTCOMES = (
    outcome("train/examples_per_second"),
    outcome("train/step_seconds"),
    outcome("train/step_seconds_p95"),
    outcome("train/first_step_seconds"),
    outcome("inference/examples_per_second"),
    outcome("inference/latency_seconds_p50"),
    outcome("inference/latency_seconds_p95"),
    outcome("inference/latency_seconds_p99"),
    outcome("inference/first_call_seconds"),
    outcome("inference/load_seconds"),
    outcome("inference/file_bytes"),
    outcome("inference/same_class_share"),
    outcome("val/accuracy"),
    outcome("memory/peak_rss_bytes"),
    outcome("memory/peak_device_bytes"),
    outcome("memory/peak_device_with_warmup_bytes"),
    outcome("energy/joules_per_example"),
    outcome("inference/energy/joules_per_example"),
)
STUDY = Study(
    name="grid",
    title="A grid on synthetic tensors: models, batch sizes, image sizes, training and inference",
    workload="grid",
    settings=Settings,
    models=lambda settings: settings.models,
    treatments=treatments,
    strata=lambda _: ("model", "image_size", "batch_size"),
    grows_with="batch_size",
    takes_runtimes=True,
    demo_on_gpu={"seconds": 2.0},
    presets={
        "demo": {"batch_sizes": (1, 32), "blocks": 6},
        "runtimes": {
            "frameworks": ("pytorch", "onnxruntime", "openvino", "litert"),
            "phases": ("inference",),
            "batch_sizes": (1, 8),
            "seconds": 0.3,
            "blocks": 6,
        },
        "paper": {
            "models": ("resnet18", "resnet152", "vgg16", "mobilenet_v2", "efficientnet_b4"),
            "batch_sizes": (1, 2, 4, 8, 16, 32, 64, 128, 256),
            "image_sizes": (32, 64, 128, 224),
            "seconds": 10.0,
            "least_steps": 100,
            "blocks": 6,
        },
    },
    outcomes=OUTCOMES,
    primary=("train/examples_per_second", "inference/examples_per_second"),
    published=(
        {
            "what": "training, ResNet-18, ResNet-152, MobileNetV2, RTX 2080 Ti",
            "published": "PyTorch ahead",
            "metric": "",
        },
        {
            "what": "training, VGG-16, EfficientNet-B4, RTX 2080 Ti",
            "published": "TensorFlow ahead",
            "metric": "",
        },
        {
            "what": "inference on the GPU",
            "published": "PyTorch ahead on all but VGG-16",
            "metric": "",
        },
        {
            "what": "inference on the CPU",
            "published": "TensorFlow ahead with few exceptions",
            "metric": "",
        },
    ),
    source="Arizona State University, 2023",
)
