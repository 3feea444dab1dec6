"""A confusion matrix as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.images import Image, ImageDraw
from tracking import spreadsheet

CELL, MARGIN, LARGEST = 44, 96, 40
INK, PAPER, FULL = (28, 36, 48), (255, 255, 255), (47, 109, 179)


def write(folder: Path, counted: NDArray[np.int64], classes: Sequence[str]) -> None:
    """`confusion.csv`, a row a true class, and `confusion.png`: with names and numbers for up to 40 classes."""
    rows: list[Sequence[object]] = [
        ["true \\ answered", *classes],
        *([name, *map(int, line)] for name, line in zip(classes, counted, strict=True)),
    ]
    (folder / "confusion.csv").write_text(spreadsheet.as_csv(rows), encoding="utf-8")
    _drawn(counted, classes).save(folder / "confusion.png")


def _drawn(counted: NDArray[np.int64], classes: Sequence[str]) -> Image.Image:
    shares = counted / np.maximum(counted.sum(1, keepdims=True), 1)
    if len(classes) > LARGEST:
        blocks = np.kron(_colours(shares), np.ones((4, 4, 1))).astype(np.uint8)
        return Image.fromarray(blocks)
    side = MARGIN + CELL * len(classes)
    sheet = Image.new("RGB", (side + CELL // 2, side + CELL // 2), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((8, MARGIN - 40), "true ↓  answered →", INK)
    for at, name in enumerate(classes):
        middle = MARGIN + CELL * at + CELL // 2
        draw.text((8, middle - 6), name[:13], INK)
        draw.text((middle, MARGIN - 16), name[:6], INK, anchor="mm")
        for other in range(len(classes)):
            left = MARGIN + CELL * other
            colour = tuple(int(part) for part in _colours(shares[at, other]))
            draw.rectangle(
                (left, MARGIN + CELL * at, left + CELL - 2, MARGIN + CELL * (at + 1) - 2), colour
            )
            if counted[at, other]:
                ink = PAPER if shares[at, other] > 0.5 else INK
                draw.text((left + CELL // 2 - 1, middle), str(counted[at, other]), ink, anchor="mm")
    return sheet


def _colours(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Background colour of each cell: white for 0, full for all images of a class."""
    paper, full = np.array(PAPER, np.float64), np.array(FULL, np.float64)
    return paper + np.asarray(shares)[..., None] * (full - paper)
