"""S1 · ResNet-18 and VGG-16 classify images: training time, inference, accuracy, learning curves.

Source: PyTorch against TensorFlow on ResNet-18 and VGG-16 (University at Albany, 2020/21), with its
published figures below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from experiments.config.settings import (
    MAX_EPOCHS,
    MAX_SIDE,
    ModelSettings,
    ProfileSettings,
    SgdSettings,
    setting,
)
from experiments.contract import Scaling, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import compared, controls


@dataclass(frozen=True)
class Settings(ProfileSettings, SgdSettings, ModelSettings):
    """Settings of the classification study."""

    model: str = setting("resnet18", "a model that takes images, by folder name", group="training")
    data: str = setting(
        "digits",
        "digits (embedded); a folder with CIFAR-10, MNIST, or CLASS/pictures",
        path=True,
        group="data",
    )
    image_size: int = setting(
        32,
        "side of the square that pictures are resized to, pixels",
        minimum=1,
        maximum=MAX_SIDE,
        group="data",
    )
    optimizer: str = setting(
        "adam",
        "adam, sgd: PyTorch's semantics; adam-stock: each framework's own",
        choices=("adam", "sgd", "adam-stock"),
        group="training",
    )
    drop_epochs: tuple[int, ...] = setting(
        (),
        "epochs after which the learning rate falls to a tenth",
        minimum=1,
        maximum=MAX_EPOCHS,
        group="training",
        advanced=True,
    )
    augmentation: str = setting(
        "none",
        "crop: out of 4 black pixels more on every side; and mirrored",
        choices=("none", "crop", "crop+mirror"),
        group="data",
        advanced=True,
    )
    input: tuple[str, ...] = setting(
        ("stream",),
        "batches made before, between the steps, or by DataLoader and tf.data from the files; "
        "several are all measured",
        choices=("memory", "stream", "native"),
        group="data",
    )
    workers: int = setting(
        2,
        "worker processes or threads of input=native",
        minimum=0,
        maximum=64,
        group="data",
        advanced=True,
    )
    thresholds: tuple[float, ...] = setting(
        (0.8, 0.9, 0.95),
        "accuracies whose time is reported",
        minimum=0.01,
        maximum=1,
        group="evaluation",
        advanced=True,
    )


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return every framework, and the controls, with every input; several inputs are groups."""
    frameworks = compared(settings)
    base = (*frameworks, *controls(settings, frameworks[0]))
    if len(settings.input) == 1:
        (kind,) = settings.input
        return tuple(replace(cell, settings={**cell.settings, "input": (kind,)}) for cell in base)
    return tuple(
        replace(
            cell,
            name=f"{cell.name} · {kind}",
            settings={**cell.settings, "input": (kind,)},
            group=kind,
        )
        for kind in settings.input
        for cell in base
    )


STUDY = Study(
    name="classification",
    title="Image classification: training and inference of one network",
    workload="classification",
    settings=Settings,
    models=lambda settings: (settings.model,),
    treatments=treatments,
    strata=lambda settings: ("input",) if len(settings.input) > 1 else (),
    scaling=Scaling("training images"),
    demo_on_gpu={"phase_seconds": 2.0},
    presets={
        "demo": {
            "epochs": 3,
            "blocks": 6,
            "thresholds": (0.8, 0.9, 0.95),
            "inference_requests": 20,
            "sensor_seconds": 0.2,
        },
        "resnet18-paper": {
            "data": "",
            "epochs": 200,
            "batch_size": 64,
            "thresholds": (0.6, 0.7, 0.8),
        },
        "vgg16-paper": {
            "model": "vgg16",
            "data": "",
            "image_size": 80,
            "epochs": 200,
            "batch_size": 32,
            "thresholds": (0.3, 0.5, 0.7),
        },
        "original": {
            "data": "",
            "epochs": 164,
            "batch_size": 128,
            "optimizer": "sgd",
            "learning_rate": 0.1,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "drop_epochs": (82, 123),
            "augmentation": "crop+mirror",
            "thresholds": (0.8, 0.9, 0.93),
        },
    },
    outcomes=(
        outcome("val/accuracy"),
        outcome("val/loss"),
        replace(outcome("train/examples_per_second"), unit="images/s"),
        outcome("train/step_seconds"),
        outcome("train/first_step_seconds"),
        outcome("train/first_epoch_seconds"),
        outcome("train/epoch_seconds"),
        outcome("train/epoch_examples_per_second"),
        outcome("train/total_seconds"),
        outcome("val/total_seconds"),
        outcome("input/seconds_mean"),
        outcome("inference/latency_seconds_p50"),
        outcome("inference/latency_seconds_p95"),
        outcome("inference/batch_64/latency_seconds_p50"),
        outcome("memory/peak_rss_bytes"),
        outcome("memory/peak_device_bytes"),
        outcome("memory/peak_device_with_warmup_bytes"),
        outcome("energy/joules_per_example"),
    ),
    primary=("train/examples_per_second", "inference/latency_seconds_p50", "val/accuracy"),
    published=(
        {
            "what": "ResNet-18 on CIFAR-10, training",
            "published": "PyTorch 18 % faster",
            "metric": "train/epoch_seconds",
            "model": "resnet18",
        },
        {
            "what": "ResNet-18, inference",
            "published": "PyTorch 58.7 % faster",
            "metric": "inference/latency_seconds_p50",
            "model": "resnet18",
        },
        {
            "what": "ResNet-18, first epoch",
            "published": "PyTorch 18.5 % faster",
            "metric": "train/first_epoch_seconds",
            "model": "resnet18",
        },
        {
            "what": "ResNet-18, best accuracy",
            "published": "83.07 % (PyTorch, Adam)",
            "metric": "val/accuracy",
            "model": "resnet18",
        },
        {
            "what": "VGG-16 at 80 px, training",
            "published": "TensorFlow 58.3 % faster",
            "metric": "",
        },
        {
            "what": "VGG-16 at 80 px, inference",
            "published": "TensorFlow 29.3 % faster",
            "metric": "",
        },
        {
            "what": "GradientTape against fit",
            "published": "72 % against 79.3 % accuracy, unexplained",
            "metric": "",
        },
    ),
    source="University at Albany, 2020/21",
)
