"""Which cells a campaign has, and in which order: pure functions of the settings and a seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cell:
    """A treatment in a block, before it has run."""

    treatment: str
    block: int
    order_in_block: int

    @property
    def key(self) -> str:
        """A name that is unique in its campaign and serves as a folder's."""
        return f"block-{self.block:03d}-{re.sub(r'[^A-Za-z0-9+.-]+', '-', self.treatment)}"


def blocks(groups: Sequence[Sequence[str]], count: int, rng: np.random.Generator) -> list[Cell]:
    """Every treatment once a block, shuffled inside it: the machine's drift meets all treatments alike.

    groups: what is compared with what. A group stays together, its treatments shuffled, so that little time lies between them.
    """
    return [
        Cell(treatment, block, position)
        for block in range(1, count + 1)
        for position, treatment in enumerate(_shuffled(groups, rng))
    ]


def _shuffled(groups: Sequence[Sequence[str]], rng: np.random.Generator) -> list[str]:
    order = rng.permutation(len(groups)).tolist() if len(groups) > 1 else [0]
    return [groups[at][index] for at in order for index in rng.permutation(len(groups[at])).tolist()]
