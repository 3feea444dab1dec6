"""S4, ablation 2 · One LSTM in several implementations, against a loop of cells.

Source: Comparing the training speed of PyTorch and TensorFlow on one GPU (Huazhong University of
Science and Technology, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from experiments.config.settings import parameter, setting
from experiments.contract import Comparison, Progress, ReportAddition, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import check_count
from experiments.studies import training_speed
from tracking.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    from models.parity import Side

BASELINE = "cells"
# Library -> its compiled variant, and its implementations.
COMPILED = {"pytorch": "pytorch+compile", "tensorflow": "tensorflow+xla"}
HAS = {
    "pytorch": ("cells", "block", "layer", "scan"),
    "tensorflow": ("cells", "block", "block-v2", "layer", "scan"),
}
IMPLEMENTATIONS = (
    "block",
    "block-v2",
    "layer",
    "scan",
    "scan+compiled",
    "cells+compiled",
    "layer+compiled",
)


@dataclass(frozen=True)
class LstmParameters(training_speed.SpeedParameters):
    """Parameters of a cell: an implementation of a library."""

    implementation: str = parameter("", "implementations")
    library: str = parameter("", "frameworks")
    lstm: str = parameter("", "implementations")


@dataclass(frozen=True)
class Settings(training_speed.Settings):
    """Settings of the LSTM study."""

    models: tuple[str, ...] = setting(
        ("deepspeech2", "gnmt", "tacotron2", "caption_decoder"),
        "networks that have an LSTM",
        group="networks",
        affects_measurement=False,
    )
    implementations: tuple[str, ...] = setting(
        ("block", "block-v2", "layer", "scan", "scan+compiled"),
        "what is compared with the loop of cells, where a framework has it",
        choices=IMPLEMENTATIONS,
        group="design",
        affects_measurement=False,
    )
    ctc: str = setting(
        "scan",
        "the CTC loss of Deep Speech 2: the one that XLA compiles too",
        choices=("scan",),
        group="training",
    )
    parameters = LstmParameters


# (library, network, implementation) -> throughput over that of cells, on a P100, with
# TensorFlow 1.15 and PyTorch 1.4.
TABLE = {("tensorflow", "deepspeech2", "layer"): 2.69, ("pytorch", "deepspeech2", "layer"): 4.14}


def side(treatment: Treatment) -> Side:
    """Return the side of the parity gate: float32 for an implementation that has no other."""
    from models.lstms import FLOAT32_ALONE
    from models.parity import Side

    lstm, library = treatment.settings["lstm"], treatment.settings["library"]
    lower = library == "tensorflow" and lstm in FLOAT32_ALONE
    return Side(treatment.framework, (("lstm", lstm),), "float32" if lower else "float64")


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return every implementation of a framework, in groups of a network in a framework."""
    _check(settings)
    check_count(
        settings, settings.models, settings.frameworks, (BASELINE, *settings.implementations)
    )
    cells = []
    for model, library in product(settings.models, settings.frameworks):
        point = f"{library} · {model}"
        for name in (BASELINE, *settings.implementations):
            lstm, _, compiled = name.partition("+")
            if lstm not in HAS[library]:
                continue
            parameters = {"model": model, "batch_size": settings.rows(model)[0]}
            parameters |= {"implementation": name, "library": library, "lstm": lstm}
            cells.append(
                Treatment(
                    f"{name} · {point}",
                    COMPILED[library] if compiled else library,
                    "measure",
                    parameters,
                    group=point,
                )
            )
    return tuple(cells)


def _check(settings: Settings) -> None:
    """Raise UsageError for unknown implementations, other frameworks, and other networks."""
    from experiments.config import interpreters
    from models import spec
    from models.lstms import FLOAT32_ALONE

    for name in settings.frameworks:
        if name not in HAS:
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"frameworks={name}: its LSTMs are not compared; have {', '.join(HAS)}",
            )
        if any("+" in implementation for implementation in settings.implementations) and (
            reason := interpreters.missing(COMPILED[name], settings.pythons)
        ):
            raise UsageError(ErrorCode.NOT_INSTALLED, reason)
    blocks = [name for name in settings.implementations if name in FLOAT32_ALONE]
    if settings.precision == "bfloat16" and blocks and "tensorflow" in settings.frameworks:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"precision=bfloat16: TensorFlow's {' and '.join(blocks)} take only float32; "
            "leave them out",
        )
    for name in settings.models:
        module = spec(name)
        if module.takes_images or "lstm" not in vars(module.sized("tiny")):
            raise UsageError(
                ErrorCode.UNSUPPORTED,
                f"models={name}: it has no LSTM; have {', '.join(Settings.models)}",
            )


def also(settings: Settings, comparison: Comparison, _: Progress) -> ReportAddition:
    """Return every implementation over the loop of cells, with the published figures."""
    from experiments.comparison.analyses import ablations

    section = ablations.lstm(
        comparison, treatments(settings), TABLE, training_speed.SOURCE, size=settings.size
    )
    return ReportAddition(sections=(section,))


STUDY = Study(
    name="lstm",
    title="One LSTM in several implementations, against a loop of cells",
    workload="training_speed",
    settings=Settings,
    models=lambda settings: settings.models,
    factor="implementation",
    baseline=lambda _: BASELINE,
    treatments=treatments,
    strata=lambda _: ("library", "model"),
    allowed_to_differ=("framework", "lstm"),
    side=side,
    also=also,
    presets={
        "demo": {
            "models": ("caption_decoder",),
            "size": "tiny",
            "steps": 40,
            "warmup_steps": 3,
            "blocks": 6,
        },
        "paper": {"blocks": 6},
    },
    outcomes=(
        outcome("train/examples_per_second"),
        outcome("train/step_seconds"),
        outcome("train/first_step_seconds"),
        outcome("memory/peak_rss_bytes"),
        outcome("memory/peak_device_bytes"),
        outcome("memory/peak_device_with_warmup_bytes"),
        outcome("energy/joules_per_example"),
    ),
    primary=("train/examples_per_second",),
    source=training_speed.SOURCE,
)
