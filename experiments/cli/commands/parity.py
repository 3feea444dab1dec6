"""`evenhand parity`: errors between frameworks, for every model."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.commands import Command, Display
from experiments.config.settings import MAX_SEED, setting
from models import devices


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


def run(settings: Parity, display: Display) -> int:
    from experiments.cli import parity

    return parity.run(settings, display)


COMMAND = Command(
    "Prove that a model computes the same in every framework, and show the errors", Parity, run
)
