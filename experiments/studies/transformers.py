"""Networks of Hugging Face by name on random tokens: batch sizes, lengths, training, inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.config.settings import MAX_ROWS, parameter, setting
from experiments.contract import Study
from experiments.metrics import outcome
from experiments.studies import grid

if TYPE_CHECKING:
    from models.parity import Side


@dataclass(frozen=True)
class Settings(grid.PointSettings):
    """Settings of networks by name, and the point of a cell."""

    length: int = parameter(0, "lengths")

    models: tuple[str, ...] = setting(
        ("bert",),
        "bert, hf:NAME of an architecture or published network, hf:FOLDER of a checkpoint",
        group="grid",
        affects_measurement=False,
    )
    size: str = setting(
        "paper",
        "paper: as the configuration says; tiny: two layers of width 32",
        choices=("paper", "tiny"),
        group="grid",
    )
    lengths: tuple[int, ...] = setting(
        (64,),
        "tokens of an example, no padding",
        minimum=2,
        maximum=MAX_ROWS,
        group="grid",
        affects_measurement=False,
    )
    weights: str = setting(
        "random",
        "random: drawn from the seed; pretrained: of the checkpoint in hf:FOLDER",
        choices=("random", "pretrained"),
        group="grid",
    )
    attention: str = setting(
        "sdpa",
        "PyTorch's implementation of attention; Keras has its own",
        choices=("sdpa", "eager"),
        group="grid",
    )
    trained: str = setting(
        "all",
        "parameters that training changes; head: those of the classifier, on a frozen network",
        choices=("all", "head"),
        group="grid",
    )
    new_tokens: int = setting(
        16,
        "that a language model answers, each the most likely one",
        minimum=2,
        maximum=MAX_ROWS,
        group="grid",
    )
    kv_cache: bool = setting(
        True,
        "keep keys and values of earlier tokens; false: PyTorch computes them for each token anew",
        group="grid",
    )
    classes: int = setting(
        2, "outputs of a classifier", minimum=1, maximum=1_000_000, group="grid", advanced=True
    )


def side(framework: str, settings: Settings) -> Side:
    """Return the side of the parity gate, with the implementation of attention."""
    from models.parity import Side

    return Side(framework, (("attention", settings.attention), ("trained", settings.trained)))


STUDY = Study(
    name="transformers",
    title="Networks of Hugging Face by name: batch sizes, lengths, training and inference",
    workload="grid",
    settings=Settings,
    models=lambda settings: settings.models,
    treatments=lambda settings: grid.points(settings, "length", settings.lengths, "tokens"),
    strata=lambda _: ("model", "length", "batch_size"),
    side=side,
    grows_with="batch_size",
    takes_runtimes=True,
    demo_on_gpu={"seconds": 2.0},
    presets={
        "demo": {"size": "tiny", "batch_sizes": (8,), "lengths": (16,), "blocks": 6},
        "paper": {"batch_sizes": (1, 8, 32), "lengths": (32, 128, 512), "blocks": 6},
    },
    outcomes=(
        *grid.OUTCOMES,
        outcome("inference/seconds_per_token"),
        outcome("inference/first_token_seconds"),
    ),
    primary=("train/examples_per_second", "inference/examples_per_second"),
)
