"""Settings of the commands whose work is a module of its own."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.config.settings import FAIL_IF, MAX_SEED, setting
from models import devices


@dataclass(frozen=True)
class Compare:
    """Runs of a comparison, and the question about them."""

    experiment: tuple[str, ...] = setting(
        ("captioning",),
        "experiments by name, campaigns by run id; several with commas",
        group="runs",
    )
    factor: str = setting(
        "framework",
        "what is compared: any setting or tag (batch_size, tags.team, version.torch)",
        group="verdict",
    )
    baseline: str = setting(
        "",
        "the level that the others are judged against; none: the first in order",
        group="verdict",
    )
    outcomes: tuple[str, ...] = setting(
        (), "metrics; none: all that both sides have", group="verdict"
    )
    outcomes_file: str = setting(
        "",
        "TOML with [outcomes.NAME]: direction, kind, margin and unit of your metrics; "
        "none: race.toml, if this folder has one",
        path=True,
        group="verdict",
    )
    primary: tuple[str, ...] = setting(
        (),
        "one to three metrics, chosen before measuring, that are tested first; none: all alike",
        group="verdict",
    )
    filter: str = setting(
        "",
        "which runs, in MLflow's filter language: "
        "tags.team = 'vision' and params.batch_size = '32'",
        group="runs",
    )
    margin: float = setting(
        0.03,
        "the smallest ratio that matters, fixed before measuring",
        minimum=0.001,
        maximum=0.5,
        group="verdict",
    )
    strata: tuple[str, ...] = setting(
        (),
        "columns whose values are judged separately, then summarised: machine,model,batch_size",
        group="verdict",
    )
    pair_by: str = setting(
        "",
        "what pairs runs that have no block: a setting or tag, such as a seed, or time",
        group="runs",
    )
    ignore: tuple[str, ...] = setting(
        (), "patterns of params that may differ, such as opt_*; the report lists them", group="runs"
    )
    all_pairs: bool = setting(
        False, "judge every pair of levels, not only against the baseline", group="verdict"
    )
    protocol: str = setting(
        "sound",
        "paper: the published procedure is shown beside the verdicts",
        choices=("sound", "paper"),
        group="verdict",
    )
    fail_if: tuple[str, ...] = setting((), FAIL_IF, group="verdict")
    format: str = setting(
        "table",
        "what is printed; the report has all of them",
        choices=("table", "markdown", "csv", "json"),
        group="output",
    )
    figures: bool = setting(
        True, "draw the report's figures; without them the report is ready sooner", group="output"
    )
    team: str = setting("", "whose comparison this is (tag team)", group="output")
    output: str = setting(
        ".evenhand/comparisons",
        "folder that gets the report, in addition to MLflow",
        path=True,
        group="output",
    )


@dataclass(frozen=True)
class Parity:
    """Networks and frameworks of a parity check."""

    models: tuple[str, ...] = setting(
        (), "models by folder name, several with commas; none, or all: every one", group="networks"
    )
    frameworks: tuple[str, ...] = setting(
        ("pytorch", "tensorflow"),
        "the reference first, then those judged against it",
        group="networks",
    )
    optimizer: tuple[str, ...] = setting(
        ("adam", "sgd"),
        "adam, sgd (also with momentum and decay): PyTorch's semantics; "
        "adam-stock: each framework's own",
        choices=("adam", "sgd", "adam-stock"),
        group="training",
    )
    full: bool = setting(
        False,
        "whole networks instead of small versions with every kind of layer: minutes and gigabytes",
        group="networks",
    )
    pythons: tuple[str, ...] = setting(
        (),
        "interpreters of frameworks with separate environments: tensorflow=/PATH/bin/python,…",
        group="networks",
    )
    seed: int = setting(0, "of weights and batches", minimum=0, maximum=MAX_SEED, group="training")
    device: str = setting(
        "auto",
        "where both sides compute; auto: the GPU if there is one",
        choices=devices.CHOICES,
        group="networks",
    )


@dataclass(frozen=True)
class Setup:
    """Frameworks that get environments."""

    frameworks: tuple[str, ...] = setting(
        ("keras-torch", "tensorflow", "keras-jax"),
        "an environment each, which also serves other variants of its packages, as that of "
        "keras-torch serves pytorch",
        group="environments",
    )
    device: str = setting(
        "auto",
        "what they compute on; auto: the GPU if there is one",
        choices=devices.CHOICES,
        group="environments",
    )
    cache: str = setting(
        ".evenhand/cache",
        "folder that gets the environments: gigabytes, most of them on a GPU",
        path=True,
        group="environments",
    )
