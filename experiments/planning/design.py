"""Design of a campaign: its cells and their order, pure functions of a seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cell:
    """Treatment in a block, before it has run."""

    treatment: str
    block: int
    order_in_block: int

    @property
    def key(self) -> str:
        """Unique name in the campaign, which serves as a folder's name."""
        return f"block-{self.block:03d}-{re.sub(r'[^A-Za-z0-9+.-]+', '-', self.treatment)}"


def blocks(groups: Sequence[Sequence[str]], count: int, rng: np.random.Generator) -> list[Cell]:
    """Return every treatment once per block, in a balanced random order.

    The machine's drift then affects all treatments alike. Groups of treatments that are compared
    with each other stay together, so that little time lies between them. With a greater count the
    first blocks stay the same.
    """
    group_orders, inner_orders = _orders(len(groups), rng), [_orders(len(g), rng) for g in groups]
    cells = []
    for block in range(1, count + 1):
        order = [groups[at][index] for at in next(group_orders) for index in next(inner_orders[at])]
        cells += [Cell(treatment, block, position) for position, treatment in enumerate(order)]
    return cells


def _orders(size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield orders without end.

    In every `size` of them each index has every place once; in twice that many, each is as often
    before any other as after it: the rows of a random cyclic Latin square in random order, then
    those of its mirror image.
    """
    while True:
        names = rng.permutation(size)
        square = [np.roll(names, turn) for turn in range(size)]
        for rows in (square, [row[::-1] for row in square]):
            for at in rng.permutation(size):
                yield rows[at].tolist()
