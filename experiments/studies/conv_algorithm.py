"""S4, ablation 1 · Choice of the algorithm of a convolution; on a CPU, with oneDNN and without.

Source: Comparing the training speed of PyTorch and TensorFlow on one GPU (Huazhong University of
Science and Technology, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from experiments.config import devices
from experiments.config.settings import MAX_ROWS, parameter, setting
from experiments.contract import Comparison, Progress, ReportAddition, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import check_count
from experiments.studies import training_speed
from tracking.errors import ErrorCode, UsageError

# Device -> what is compared on it, the baseline first.
ALGORITHMS = {"cuda": ("fixed", "heuristic", "profiled"), "cpu": ("plain", "onednn")}
OF_PICTURES = ("resnet50", "vgg16", "inception_v3")


@dataclass(frozen=True)
class ConvolutionParameters(training_speed.SpeedParameters):
    """Parameters of a cell."""

    batch_size: int = parameter(0, "batch_sizes")
    lengths: str = parameter("fixed", "shapes")
    conv_algorithm: str = parameter("profiled", "algorithms")


@dataclass(frozen=True)
class Settings(training_speed.Settings):
    """Settings of the study of convolutions."""

    models: tuple[str, ...] = setting(
        (*OF_PICTURES, "deepspeech2", "tacotron2"),
        "networks with convolutions, by folder name",
        group="networks",
        affects_measurement=False,
    )
    batch_sizes: tuple[int, ...] = setting(
        (8, 16, 32, 64, 128),
        "examples a step",
        minimum=1,
        maximum=MAX_ROWS,
        group="training",
        affects_measurement=False,
    )
    shapes: tuple[str, ...] = setting(
        ("fixed", "varying"),
        "whether the lengths of sequences vary; the first epoch is then reported separately. "
        "Pictures are of one size",
        choices=("fixed", "varying"),
        group="training",
        affects_measurement=False,
    )
    algorithms: tuple[str, ...] = setting(
        (),
        "what is compared, the baseline first; "
        "none: fixed, heuristic, profiled on a GPU, plain, onednn on a CPU",
        choices=(*ALGORITHMS["cuda"], *ALGORITHMS["cpu"]),
        group="design",
        affects_measurement=False,
    )
    data: str = setting("synthetic", "drawn from the seed", choices=("synthetic",), group="data")
    parameters = ConvolutionParameters

    @property
    def length_kinds(self) -> tuple[str, ...]:
        return self.shapes

    def rows(self, model: str) -> tuple[int, ...]:  # noqa: ARG002
        return self.batch_sizes


# Networks of pictures: smallest and largest throughput of profiled over fixed, on a P100.
PICTURES = (1.19, 2.02)
# Network -> seconds of the first epoch and of a later one, lengths varying; on a P100.
EPOCHS = {
    "deepspeech2": {"heuristic": (2149, 2149), "fixed": (3082, 3082), "profiled": (2816, 1940)},
    "tacotron2": {"heuristic": (1413, 1413), "fixed": (1434, 1434), "profiled": (1520, 1332)},
}


def algorithms(settings: Settings) -> tuple[str, ...]:
    """Return the algorithms of the device, the baseline first, or raise UsageError for others."""
    device = devices.resolve(settings.device, settings)
    for name in settings.algorithms:
        if name not in ALGORITHMS[device]:
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"algorithms={name}: not available on {device}; "
                f"have {', '.join(ALGORITHMS[device])}",
            )
    return settings.algorithms or ALGORITHMS[device]


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return every algorithm at every batch size, in groups of a network in a framework."""
    from models import spec

    names = algorithms(settings)
    for name in settings.frameworks:
        if name == "keras-jax" and devices.resolve(settings.device, settings) == "cpu":
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"frameworks={name}: the kernels of JAX on a CPU cannot be chosen; leave it out",
            )
    check_count(
        settings, settings.models, settings.frameworks, settings.batch_sizes, settings.shapes, names
    )
    cells = []
    for model, framework, rows, lengths in product(
        settings.models, settings.frameworks, settings.batch_sizes, settings.shapes
    ):
        if lengths == "varying" and not spec(model).has_lengths:
            continue
        point = f"{framework} · {model} · batch {rows} · {lengths}"
        parameters = {"model": model, "batch_size": rows, "lengths": lengths}
        cells += [
            Treatment(
                f"{name} · {point}",
                framework,
                "measure",
                {**parameters, "conv_algorithm": name},
                group=point,
            )
            for name in names
        ]
    if not cells:
        raise UsageError(
            ErrorCode.CONFLICT,
            "shapes=varying: pictures have one size; take shapes=fixed, or name networks of "
            "sequences, too",
        )
    return tuple(cells)


def also(settings: Settings, comparison: Comparison, _: Progress) -> ReportAddition:
    """Return every algorithm over the baseline, with the published figures."""
    from experiments.comparison.analyses import ablations

    sections = ablations.convolutions(
        comparison,
        treatments(settings),
        dict.fromkeys(OF_PICTURES, PICTURES),
        EPOCHS,
        training_speed.SOURCE,
        size=settings.size,
    )
    return ReportAddition(sections=sections)


STUDY = Study(
    name="conv_algorithm",
    title="How the algorithm of a convolution is chosen",
    workload="training_speed",
    settings=Settings,
    models=lambda settings: settings.models,
    factor="conv_algorithm",
    # The slowest on paper: repeatable to the bit on a GPU, without oneDNN on a CPU.
    baseline=lambda settings: algorithms(settings)[0],
    treatments=treatments,
    strata=lambda _: ("framework", "model", "batch_size", "lengths"),
    also=also,
    presets={
        "demo": {
            "models": ("resnet18", "deepspeech2"),
            "size": "tiny",
            "batch_sizes": (8,),
            "steps": 20,
            "warmup_steps": 3,
            "blocks": 6,
        },
        "paper": {"blocks": 6},
    },
    outcomes=(
        outcome("train/examples_per_second"),
        outcome("train/step_seconds"),
        outcome("train/first_step_seconds"),
        outcome("train/first_epoch_seconds"),
        outcome("train/epoch_seconds"),
        outcome("memory/peak_rss_bytes"),
        outcome("memory/peak_device_bytes"),
        outcome("memory/peak_device_with_warmup_bytes"),
        outcome("energy/joules_per_example"),
    ),
    primary=("train/examples_per_second",),
    source=training_speed.SOURCE,
)
