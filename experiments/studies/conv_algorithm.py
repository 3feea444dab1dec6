"""S4, ablation 1 · How the algorithm of a convolution is chosen; on a CPU, with oneDNN and without.

Source: Comparing the training speed of PyTorch and TensorFlow on one GPU (Huazhong University of Science and Technology, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from experiments.config import devices
from experiments.config.settings import MAX_ROWS, per_cell, setting
from experiments.metrics import outcome
from experiments.planning.treatments import Treatment, check_count
from experiments.studies import training_speed
from tracking.errors import WrongCall

if TYPE_CHECKING:
    from experiments.comparison.judgement import Extra
    from experiments.comparison.verdicts.findings import Comparison
    from experiments.contract import Progress

TITLE = "How the algorithm of a convolution is chosen"
WORKLOAD = "convolutions"
MODEL = ""
FACTOR = "conv_algorithm"
STRATA = ("framework", "model", "batch_size", "lengths")
# Device -> what is compared on it, the baseline first.
ALGORITHMS = {"cuda": ("fixed", "heuristic", "profiled"), "cpu": ("plain", "onednn")}
OF_PICTURES = ("resnet50", "vgg16", "inception_v3")


@dataclass(frozen=True)
class Settings(training_speed.Settings):
    """Settings of the study of convolutions."""

    models: tuple[str, ...] = setting(
        (*OF_PICTURES, "deepspeech2", "tacotron2"), "networks with convolutions, by folder name", group="networks", material=False
    )
    batch_sizes: tuple[int, ...] = setting(
        (8, 16, 32, 64, 128), "examples a step", minimum=1, maximum=MAX_ROWS, group="training", material=False
    )
    shapes: tuple[str, ...] = setting(
        ("fixed", "varying"),
        "whether the lengths of sequences vary; the first epoch is then reported separately. Pictures are of one size",
        choices=("fixed", "varying"),
        group="training",
        material=False,
    )
    algorithms: tuple[str, ...] = setting(
        (),
        "what is compared, the baseline first; none: fixed, heuristic, profiled on a GPU, plain, onednn on a CPU",
        choices=(*ALGORITHMS["cuda"], *ALGORITHMS["cpu"]),
        group="design",
        material=False,
    )
    data: str = setting("synthetic", "drawn from the seed", choices=("synthetic",), group="data")
    batch_size: int = per_cell(0, "batch_sizes", minimum=0, maximum=MAX_ROWS)
    lengths: str = per_cell("fixed", "shapes", choices=("fixed",))
    conv_algorithm: str = per_cell("profiled", "algorithms", choices=(*ALGORITHMS["cuda"], *ALGORITHMS["cpu"]))


PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "models": ("resnet18", "deepspeech2"),
        "size": "tiny",
        "batch_sizes": (8,),
        "steps": 20,
        "warmup_steps": 3,
        "blocks": 6,
    },
    "paper": {"blocks": 6},
}

OUTCOMES = (
    outcome("train/examples_per_second"),
    outcome("train/step_seconds"),
    outcome("train/first_step_seconds"),
    outcome("train/first_epoch_seconds"),
    outcome("train/epoch_seconds"),
    outcome("memory/peak_rss_bytes"),
    outcome("memory/peak_device_bytes"),
    outcome("memory/peak_device_with_warmup_bytes"),
    outcome("energy/joules_per_example"),
)
PRIMARY = ("train/examples_per_second",)
PUBLISHED = ()
SOURCE = training_speed.SOURCE
# Of networks of pictures: throughput of profiled over fixed, the smallest and the largest that was seen; on a P100.
PICTURES = (1.19, 2.02)
# Network -> seconds of the first epoch and of a later one, lengths varying; on a P100.
EPOCHS = {
    "deepspeech2": {"heuristic": (2149, 2149), "fixed": (3082, 3082), "profiled": (2816, 1940)},
    "tacotron2": {"heuristic": (1413, 1413), "fixed": (1434, 1434), "profiled": (1520, 1332)},
}


def models(settings: Settings) -> tuple[str, ...]:
    """Networks that the parity gate has to prove equal."""
    return settings.models


def strata(_: Settings) -> tuple[str, ...]:
    """What is never pooled: every network and batch size in every framework, lengths fixed or varying."""
    return STRATA


def algorithms(settings: Settings) -> tuple[str, ...]:
    """What is compared on the device, the baseline first. Raises WrongCall for what belongs to another device."""
    device = devices.resolve(settings.device, settings)
    for name in settings.algorithms:
        if name not in ALGORITHMS[device]:
            raise WrongCall(f"algorithms={name}: there is none on {device}; have {', '.join(ALGORITHMS[device])}")
    return settings.algorithms or ALGORITHMS[device]


def baseline(settings: Settings) -> str:
    """The slowest on paper: what is repeatable to the bit on a GPU, and a CPU without oneDNN."""
    return algorithms(settings)[0]


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Every algorithm at every batch size, of each network in each framework; those of one point stand together."""
    names = algorithms(settings)
    for name in settings.frameworks:
        if name == "keras-jax" and devices.resolve(settings.device, settings) == "cpu":
            raise WrongCall(f"frameworks={name}: JAX's kernels on a CPU are not oneDNN's, and cannot be chosen; leave it out")
    check_count(settings, settings.models, settings.frameworks, settings.batch_sizes, settings.shapes, names)
    found = []
    for model, framework, rows, lengths in product(settings.models, settings.frameworks, settings.batch_sizes, settings.shapes):
        if lengths == "varying" and not _has_lengths(model):
            continue
        point = f"{framework} · {model} · batch {rows} · {lengths}"
        own = {"model": model, "batch_size": rows, "lengths": lengths}
        found += [
            Treatment(f"{name} · {point}", framework, "measure", {**own, "conv_algorithm": name}, group=point) for name in names
        ]
    if not found:
        raise WrongCall("shapes=varying: pictures are of one size; take shapes=fixed, or name networks of sequences, too")
    return tuple(found)


def _has_lengths(model: str) -> bool:
    from models import spec

    return hasattr(spec(model), "lengths")


def also(settings: Settings, comparison: Comparison, _: Progress) -> Extra:
    """Every algorithm over the baseline, the published figures beside it."""
    from experiments.comparison.analyses import ablations
    from experiments.comparison.judgement import Extra

    of_pictures = dict.fromkeys(OF_PICTURES, PICTURES)
    found = ablations.convolutions(comparison, treatments(settings), of_pictures, EPOCHS, SOURCE, size=settings.size)
    return Extra([], sections=found)
