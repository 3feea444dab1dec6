"""Whether what a campaign compares is the same network: the parity gate before anything is measured, remembered by its code."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from experiments.config import devices, interpreters
from experiments.contract import Progress
from experiments.datasets.files import alone, replace_text
from models import frameworks, own
from models.contract import ModelError
from models.parity import QUANTITIES, ParityRequest, Row, Side, gate, side_of
from tracking import provenance
from tracking.errors import WrongCall

# What differs where the output of a layer does.
FOLLOWS = frozenset({"loss", "gradient", "step", "statistics", "place"})


def rows(
    asked: ParityRequest, asked_of: Sequence[str | Side], cache: Path, progress: Progress
) -> list[Row]:
    """Every side against the first, as `models.parity.gate` judges; what was judged by this very code is read back.

    Raises WrongCall where a side cannot compute the model at all.
    """
    sides = list(map(side_of, asked_of))
    with alone(
        cache / "parity" / f"{asked.model}.lock"
    ):  # of two campaigns side by side, one proves and the other reads
        found = {side: _read(_file(asked, sides[0], side, cache)) for side in sides[1:]}
        if missing := [side for side in sides[1:] if not found[side]]:
            found |= _judged(asked, [sides[0], *missing], cache, progress)
    return [row for side in sides[1:] for row in found[side]]


def _judged(
    asked: ParityRequest, sides: Sequence[Side], cache: Path, progress: Progress
) -> dict[Side, list[Row]]:
    """What the gate says of every side but the first, and kept for the next who asks."""
    progress("parity", 0, len(sides))
    try:
        judged = gate(
            asked,
            sides,
            progress=lambda done, of: progress("parity", done, of),
            environment=devices.environment_on(asked.device, os.environ),
        )
    except ModelError as error:
        raise WrongCall(str(error)) from None
    found = {side: [row for row in judged if row.framework == str(side)] for side in sides[1:]}
    for side, rows_of in found.items():
        replace_text(_file(asked, sides[0], side, cache), as_json(rows_of))
    return found


def differences(found: Sequence[Row]) -> list[str]:
    """What is not equal, a line a model and framework."""
    by_pair: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in found:
        where = "" if row.device == "cpu" else f" on {row.device}"
        by_pair.setdefault((row.model, row.framework, row.reference, where), []).append(row)
    return [
        f"{model} of {framework} is not equal to that of {reference}{where}: {text}"
        for (model, framework, reference, where), rows_of_pair in by_pair.items()
        if (text := difference(rows_of_pair))
    ]


def difference(found: Sequence[Row]) -> str:
    """What is not equal of one model and framework; empty where everything is.

    Where a layer is named, what follows from its output is not.
    """
    unequal = [row for row in found if not row.equal]
    follows = FOLLOWS if any(row.layer for row in unequal) else frozenset()
    return "; ".join(_difference(row) for row in unequal if row.quantity not in follows)


def _difference(row: Row) -> str:
    what = f"{row.quantity} of {row.tensor}"
    if math.isinf(row.error):
        return f"{what} is missing on one side, of another shape or not finite{_place(row)}"
    return f"{what} differs by {row.error:.0e} (limit {row.limit:.0e}){_place(row)}"


def _place(row: Row) -> str:
    """The first layer that differs, or between what the difference begins."""
    if row.behind:
        return f", first between {row.behind} and {row.layer}"
    return f", first in layer {row.layer}" if row.layer else ""


def _file(asked: ParityRequest, reference: Side, side: Side, cache: Path) -> Path:
    packages = [dict(interpreters.packages(one.framework, one.python)) for one in (reference, side)]
    known = {
        **asdict(asked),
        "sides": [asdict(reference), asdict(side)],
        "packages": packages,
        "code": _code(),
    }
    if asked.device == "cuda":
        known["gpus"] = provenance.gpus()
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    return cache / "parity" / f"{asked.model}-{digest}.json"


def _code() -> str:
    """A digest of everything that decides what a model computes."""
    total = hashlib.sha256()
    for path in _sources():
        total.update(path.read_bytes())
    return total.hexdigest()


def _sources() -> Iterator[Path]:
    for package in ("models", *frameworks.packages()):
        for folder in find_spec(package).submodule_search_locations:  # type: ignore[union-attr]
            yield from sorted(Path(folder).rglob("*.py"))
    for name in own.folders():
        yield from own.sources(name)


def _read(path: Path) -> list[Row]:
    try:
        kept = [
            Row(**{name: row[name] for name in Row.__annotations__})
            for row in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
    ):  # not there, or cut off by a power loss: judged again
        return []
    return (
        kept if [row.quantity for row in kept] == list(QUANTITIES) else []
    )  # by a gate that compared less: judged again


def as_json(found: Sequence[Row]) -> str:
    """A list of rows, an object each, and what each compared.

    An error of `Infinity` means that one side lacks the tensor, that it has another shape or that it is not finite.
    """
    return json.dumps(
        [
            {**asdict(row), "equal": row.equal, "what": QUANTITIES[row.quantity].what}
            for row in found
        ],
        indent=1,
    )


__all__ = ["as_json", "difference", "differences", "rows"]
