"""S4, ablation 3 · TensorFlow's graph optimizers one by one, with eager and compiled programs.

Source: Comparing the training speed of PyTorch and TensorFlow on one GPU (Huazhong University of
Science and Technology, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.config.settings import parameter, setting
from experiments.contract import Comparison, Progress, ReportAddition, Study, Treatment
from experiments.metrics import outcome
from experiments.planning.treatments import check_count
from experiments.studies import training_speed
from models.frameworks import GRAPH_OPTIMIZERS, OTHER_GRAPH_OPTIMIZERS
from tracking.errors import ErrorCode, UsageError

BASELINE = "tensorflow"
SINGLE = tuple(name for name in GRAPH_OPTIMIZERS if name != "all")
# Eager program -> compiled programs, whose compilation has to be paid back by faster steps.
EAGER = {"tensorflow+eager": ("tensorflow", "tensorflow+xla"), "pytorch": ("pytorch+compile",)}


@dataclass(frozen=True)
class GraphParameters(training_speed.SpeedParameters):
    """Parameters of a cell: a program, and the graph optimizers that are off in it."""

    program: str = parameter("", "frameworks")
    graph_off: tuple[str, ...] = parameter((), "without", "only")


@dataclass(frozen=True)
class Settings(training_speed.Settings):
    """Settings of the graph study."""

    frameworks: tuple[str, ...] = setting(
        ("tensorflow", "tensorflow+eager", "tensorflow+xla", "pytorch", "pytorch+compile"),
        "whose programs are compared; tensorflow, with all of its optimizers, is the baseline",
        group="design",
        affects_measurement=False,
    )
    without: tuple[str, ...] = setting(
        GRAPH_OPTIMIZERS,
        "graph optimizers of tensorflow that are switched off, one at a time; "
        "all: every one at once",
        choices=(*GRAPH_OPTIMIZERS, "none"),
        group="design",
        affects_measurement=False,
    )
    only: tuple[str, ...] = setting(
        (),
        "graph optimizers of tensorflow that are on while all others with a switch are off, "
        "one at a time",
        choices=SINGLE,
        group="design",
        affects_measurement=False,
    )
    ctc: str = setting(
        "scan",
        "the CTC loss of Deep Speech 2: the one that XLA compiles too",
        choices=("scan",),
        group="training",
    )
    parameters = GraphParameters


# Published cost of switching off all four, of TensorFlow 1.15 on a P100.
TABLE = {
    "resnet50": "< 0.6 %",
    "vgg16": "< 0.6 %",
    "inception_v3": "< 0.6 %",
    "gnmt": "< 2 %",
    "deepspeech2": "< 2 %",
    "bert": "2.5 %",
    "tacotron2": "about 15 %",
}


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """Return every framework's program and TensorFlow's with optimizers off, by network."""
    if BASELINE not in settings.frameworks:
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"frameworks: the baseline is {BASELINE}, whose optimizers are switched off; "
            "name it, too",
        )
    without = [name for name in settings.without if name != "none"]
    check_count(settings, settings.models, (*settings.frameworks, *without, *settings.only))
    programs: list[tuple[str, str, tuple[str, ...]]] = [
        (name, name, ()) for name in settings.frameworks
    ]
    programs += [(f"without {name}", BASELINE, (name,)) for name in without]
    switches = (*SINGLE, *OTHER_GRAPH_OPTIMIZERS)
    programs += [
        (f"only {name}", BASELINE, tuple(switch for switch in switches if switch != name))
        for name in settings.only
    ]
    return tuple(
        Treatment(
            f"{program} · {model}",
            framework,
            "measure",
            {
                "model": model,
                "batch_size": settings.rows(model)[0],
                "program": program,
                "graph_off": off,
            },
            group=model,
        )
        for model in settings.models
        for program, framework, off in programs
    )


def also(settings: Settings, comparison: Comparison, _: Progress) -> ReportAddition:
    """Return every program over TensorFlow's, and the steps after which compiling has paid."""
    from experiments.comparison.analyses import ablations

    levels = tuple(dict.fromkeys(str(cell.settings["program"]) for cell in treatments(settings)))
    speeds = ablations.graphs(
        comparison, settings.models, levels, TABLE, training_speed.SOURCE, size=settings.size
    )
    return ReportAddition(sections=(speeds, *ablations.break_even(comparison, EAGER)))


STUDY = Study(
    name="graph",
    title="TensorFlow's graph optimizers one by one, beside eager and compiled programs",
    workload="training_speed",
    settings=Settings,
    models=lambda settings: settings.models,
    factor="program",
    baseline=lambda _: BASELINE,
    treatments=treatments,
    strata=lambda _: ("model",),
    allowed_to_differ=("framework", "graph_off"),
    also=also,
    presets={
        "demo": {
            "models": ("bert",),
            "size": "tiny",
            "batch_size": 8,
            "steps": 40,
            "warmup_steps": 3,
            "blocks": 6,
        },
        "paper": {"blocks": 6, "only": SINGLE},
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
