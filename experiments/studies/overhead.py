"""Cost of measuring: each framework's own plain loop against this harness, on the same batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from experiments.config.settings import MAX_RATE, MAX_ROWS, MAX_SIDE, parameter, setting
from experiments.contract import Comparison, Progress, ReportAddition, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import check_count, require_single_steps
from experiments.studies import grid
from models import frameworks
from tracking.errors import ErrorCode, UsageError

BASELINE = "plain"


# Harness -> whether the sensors are read.
HARNESSES = {"evenhand": False, "evenhand+sensors": True}


@dataclass(frozen=True)
class OverheadParameters(grid.PointParameters):
    """Parameters of a cell: a point and its harness."""

    image_size: int = parameter(0, "image_side")
    harness: str = parameter("", "harnesses")


@dataclass(frozen=True)
class Settings(grid.PointSettings):
    """Settings of the overhead study."""

    models: tuple[str, ...] = setting(
        ("lenet", "resnet18", "mobilenet_v2"),
        "networks of images by folder name",
        group="design",
        affects_measurement=False,
    )
    batch_sizes: tuple[int, ...] = setting(
        (1, 32),
        "images a step and a request",
        minimum=1,
        maximum=MAX_ROWS,
        group="design",
        affects_measurement=False,
    )
    harnesses: tuple[str, ...] = setting(
        ("evenhand",),
        "what is compared with the plain loop",
        choices=tuple(HARNESSES),
        group="design",
        affects_measurement=False,
    )
    image_side: int = setting(
        40,
        "side of the square images, pixels, for networks that take any",
        minimum=1,
        maximum=MAX_SIDE,
        group="design",
    )
    optimizer: str = setting(
        "adam-stock",
        "each framework's own class, in the plain loop and here",
        choices=("adam-stock",),
        group="training",
    )
    learning_rate: float = setting(
        1e-6,
        "so small that one repeated batch is not memorised: "
        "vanishing gradients are slow numbers on a CPU",
        minimum=1e-9,
        maximum=MAX_RATE,
        group="training",
    )
    margin: float = setting(
        0.02,
        "what the harness may cost, as a ratio, fixed before measuring",
        minimum=0.001,
        maximum=0.5,
        group="verdict",
        affects_measurement=False,
        searchable=False,
    )
    precision: str = setting(
        "float32",
        "in full, as the tutorials' loops compute",
        choices=("float32",),
        group="training",
    )
    parameters = OverheadParameters

    def sides(self, model: str) -> tuple[int, ...]:
        return (side_of(model, self),)


PRIMARY = ("train/step_seconds", "inference/latency_seconds_p50")


def side_of(model: str, settings: Settings) -> int:
    """Return the side of the images: the only one that the network takes, or the setting."""
    from models import spec

    only: int | None = spec(model).Spec.only_side
    return only or settings.image_side


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return the plain loop and the harnesses of each framework, network and batch size."""
    require_single_steps(settings, "overhead")
    have = frameworks.having(lambda variant: variant.has_plain_loop)
    for name in settings.frameworks:
        if name not in have:
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"frameworks={name}: it has no plain loop to compare with; have {', '.join(have)}",
            )
    levels = (BASELINE, *settings.harnesses)
    check_count(settings, settings.frameworks, settings.models, settings.batch_sizes, levels)
    cells = []
    for framework, model, rows in product(
        settings.frameworks, settings.models, settings.batch_sizes
    ):
        point = f"{framework} · {model} · batch {rows}"
        parameters = {
            "model": model,
            "batch_size": rows,
            "image_size": side_of(model, settings),
            "phases": settings.phases,
        }
        cells += [
            Treatment(
                f"{name} · {point}",
                framework,
                "plain" if name == BASELINE else "measure",
                {**parameters, "harness": name},
                group=point,
                sensed=HARNESSES.get(name, False),
            )
            for name in levels
        ]
    return tuple(cells)


def also(settings: Settings, comparison: Comparison, _: Progress) -> ReportAddition:
    """Return for every point whether the harness costs at most the margin."""
    from experiments.comparison.analyses import costs

    results = costs.judged(comparison, PRIMARY, settings.margin)
    section = costs.section(results, settings.margin)
    return ReportAddition(costs.sentences(results), sections=(section,))


STUDY = Study(
    name="overhead",
    title="What measuring costs: a framework's own plain loop against this harness",
    workload="grid",
    settings=Settings,
    models=lambda settings: settings.models,
    factor="harness",
    baseline=lambda _: BASELINE,
    treatments=treatments,
    strata=lambda _: ("framework", "model", "batch_size"),
    also=also,
    presets={
        "demo": {
            "models": ("lenet",),
            "batch_sizes": (1,),
            "seconds": 0.5,
            "blocks": 6,
            "threads": 1,
            "timing": "step",
        },
        "proof": {"seconds": 0.5, "blocks": 6, "threads": 1, "timing": "step"},
    },
    outcomes=(
        outcome("train/step_seconds"),
        outcome("train/step_seconds_p95"),
        outcome("train/first_step_seconds"),
        outcome("inference/latency_seconds_p50"),
        outcome("inference/first_call_seconds"),
        outcome("memory/peak_rss_bytes"),
        outcome("train/loss"),
    ),
    primary=PRIMARY,
)
