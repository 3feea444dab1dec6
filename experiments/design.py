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


def blocks(treatments: Sequence[str], count: int, rng: np.random.Generator) -> list[Cell]:
    """Every treatment once a block, shuffled inside it: the machine's drift meets all treatments alike."""
    return [
        Cell(treatments[index], block, position)
        for block in range(1, count + 1)
        for position, index in enumerate(rng.permutation(len(treatments)).tolist())
    ]
