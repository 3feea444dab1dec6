"""Which cells a campaign has, and in which order: pure functions of the settings and a seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
    """Every treatment once a block, in an order that is random and balanced: the machine's drift meets all treatments alike.

    groups: what is compared with what. A group stays together, so that little time lies between its treatments. With a greater
    count the first blocks stay the same.
    """
    of_groups, inside = _orders(len(groups), rng), [_orders(len(group), rng) for group in groups]
    found = []
    for block in range(1, count + 1):
        order = [groups[at][index] for at in next(of_groups) for index in next(inside[at])]
        found += [Cell(treatment, block, position) for position, treatment in enumerate(order)]
    return found


def _orders(size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Orders without end. In every `size` of them each index has every place once; in twice as many, each is as often before any
    other as after it: the rows of a random cyclic Latin square in random order, then those of its mirror image.
    """
    while True:
        names = rng.permutation(size)
        square = [np.roll(names, turn) for turn in range(size)]
        for rows in (square, [row[::-1] for row in square]):
            for at in rng.permutation(size):
                yield rows[at].tolist()
