"""`evenhand parity`: errors between frameworks, for every model."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.campaign import print_findings
from experiments.cli.codes import DONE, FAILED
from experiments.cli.commands import Command
from experiments.config.settings import MAX_SEED, setting


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
        choices=("auto", "cpu", "cuda"),
        group="networks",
    )


def run(settings: Parity) -> int:
    from experiments.cli import parity
    from experiments.config.console import Display

    with Display() as display:
        result, page = parity.parity(settings, display.step)
        display.rest()
        display.console.print(parity.table(result.rows))
        print_findings([], result.troubles, display)
        display.say(f"MLflow UI  {page}")
    return FAILED if result.troubles else DONE


COMMAND = Command(
    "Prove that a model computes the same in every framework, and show the errors", Parity, run
)
