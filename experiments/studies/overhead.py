"""What measuring costs: each framework's own plain loop against this harness and the usual trackers, on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

from experiments.config.settings import MAX_RATE, MAX_ROWS, MAX_SIDE, parameter, setting
from experiments.contract import Progress, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import check_count, require_single_steps
from experiments.studies import grid
from models import frameworks
from tracking.errors import WrongCall

if TYPE_CHECKING:
    from experiments.comparison.judgement import Extra
    from experiments.comparison.verdicts.findings import Comparison

BASELINE = "plain"


@dataclass(frozen=True)
class Harness:
    """What drives a network. serves: the frameworks that it is for; sensed: whether the sensors are read meanwhile."""

    stage: str = "measure"
    settings: Mapping[str, Any] = field(default_factory=dict)
    sensed: bool = False
    serves: Callable[[str], bool] = lambda _: True


HARNESSES = {
    "evenhand": Harness(),
    "evenhand+sensors": Harness(sensed=True),
    "fit+autolog": Harness(
        settings={"autolog": "mlflow"}, serves=lambda name: frameworks.described(name).fits
    ),
    "lightning+autolog": Harness(
        "lightning",
        {"autolog": "mlflow", "phases": ("train",)},
        serves=lambda name: name == "pytorch" and _has_lightning(),
    ),
}


@dataclass(frozen=True)
class OverheadParameters(grid.PointParameters):
    """What a cell measures, and what drives its network."""

    image_size: int = parameter(0, "image_side")
    harness: str = parameter("", "harnesses")
    autolog: str = parameter("", "harnesses")


@dataclass(frozen=True)
class Settings(grid.PointSettings):
    """Settings of the overhead study."""

    models: tuple[str, ...] = setting(
        ("lenet", "resnet18", "mobilenet_v2"),
        "networks of images by folder name",
        group="design",
        material=False,
    )
    batch_sizes: tuple[int, ...] = setting(
        (1, 32),
        "images a step and a request",
        minimum=1,
        maximum=MAX_ROWS,
        group="design",
        material=False,
    )
    harnesses: tuple[str, ...] = setting(
        ("evenhand",),
        "what is compared with the plain loop: " + ", ".join(HARNESSES) + " (if installed)",
        group="design",
        material=False,
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
        "so small that one repeated batch is not memorised: vanishing gradients are slow numbers on a CPU",
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
        material=False,
        searchable=False,
    )
    precision: str = setting(
        "float32",
        "in full, as the tutorials' loops compute",
        choices=("float32",),
        group="training",
    )
    parameters = OverheadParameters


PRIMARY = ("train/step_seconds", "inference/latency_seconds_p50")


def side_of(model: str, settings: Settings) -> int:
    """Pixels a side: those that the network takes alone, or as the settings say. Raises ModelError for no such network."""
    from models import spec

    only: int | None = spec(model).Spec.only_side
    return only or settings.image_side


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """The plain loop and the harnesses asked for, of each framework, network and batch size side by side."""
    require_single_steps(settings, "overhead")
    for name in settings.harnesses:
        if name not in HARNESSES:
            raise WrongCall(f"harnesses: there is no '{name}'; have {', '.join(HARNESSES)}")
    check_count(
        settings,
        settings.frameworks,
        settings.models,
        settings.batch_sizes,
        (BASELINE, *settings.harnesses),
    )
    asked = {BASELINE: Harness("plain"), **{name: HARNESSES[name] for name in settings.harnesses}}
    found = []
    for framework, model, rows in product(
        settings.frameworks, settings.models, settings.batch_sizes
    ):
        point = f"{framework} · {model} · batch {rows}"
        own = {
            "model": model,
            "batch_size": rows,
            "image_size": side_of(model, settings),
            "phases": settings.phases,
        }
        found += [
            Treatment(
                f"{name} · {point}",
                framework,
                one.stage,
                {**own, "harness": name, "autolog": "", **one.settings},
                group=point,
                sensed=one.sensed,
            )
            for name, one in asked.items()
            if one.serves(framework)
        ]
    return tuple(found)


def warnings(settings: Settings) -> tuple[str, ...]:
    if "lightning+autolog" in settings.harnesses and not _has_lightning():
        return (
            "lightning+autolog is left out: lightning is not installed (pip install -c constraints.txt -e '.[lightning]')",
        )
    return ()


def also(settings: Settings, comparison: Comparison, _: Progress) -> Extra:
    """Of every point whether the harness is shown to cost no more than the margin."""
    from experiments.comparison.analyses import costs
    from experiments.comparison.judgement import Extra

    found = costs.judged(comparison, PRIMARY, settings.margin)
    return Extra(costs.sentences(found), sections=(costs.section(found, settings.margin),))


def _has_lightning() -> bool:
    return find_spec("lightning") is not None


STUDY = Study(
    name="overhead",
    title="What measuring costs: a framework's own plain loop against this harness",
    workload="overhead",
    settings=Settings,
    models=lambda settings: settings.models,
    factor="harness",
    baseline=lambda _: BASELINE,
    treatments=treatments,
    strata=lambda _: ("framework", "model", "batch_size"),
    allowed_to_differ=("autolog", "phases"),
    warnings=warnings,
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
