"""Results of the parity gate, cached by the code that decides what a model computes."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import models
from experiments.config import devices, interpreters
from experiments.contract import Progress
from experiments.datasets.files import hold_lock, replace_text
from models.devices import CPU
from models.parity import INFERENCE, QUANTITIES, ParityRequest, Row, Side, gate, side_of
from tracking import provenance

# Quantities that differ wherever the output of a layer differs.
FOLLOWS = frozenset({"loss", "gradient", "step", "statistics", "place"})


def rows(
    requests: Sequence[ParityRequest],
    sides: Sequence[str | Side],
    cache: Path,
    progress: Progress,
) -> list[Row]:
    """Return every side compared with the first, as `models.parity.gate` judges.

    Results of the same code are read from the cache; one process of each side computes the others.

    Args:
        requests: Of different models, on one device.
        sides: The reference, then the others.
        cache: Folder of the results.
        progress: Called while sides compute.

    Raises:
        UsageError: If a side cannot compute a model at all.
    """
    reference, *others = map(side_of, sides)
    with ExitStack() as locks:
        # of two campaigns at once, one proves and the other reads
        for name in sorted(request.model for request in requests):
            locks.enter_context(hold_lock(cache / "parity" / f"{name}.lock"))
        files = {
            (request.model, str(side)): _file(request, reference, side, cache)
            for request in requests
            for side in others
        }
        results = {pair: _read(file) for pair, file in files.items()}
        unknown = [pair for pair, cached in results.items() if not cached]
        if unknown:
            unproven, names = map(set, zip(*unknown, strict=True))
            to_prove = [request for request in requests if request.model in unproven]
            proven = gate(
                to_prove,
                [reference, *(side for side in others if str(side) in names)],
                progress=lambda done, of: progress("parity", done, of),
                environment=devices.environment_on(requests[0].device, os.environ),
            )
        for model, name in unknown:
            of_pair = [row for row in proven if (row.model, row.framework) == (model, name)]
            results[model, name] = of_pair
            replace_text(files[model, name], as_json(of_pair))
    return [row for of_pair in results.values() for row in of_pair]


def differences(rows: Sequence[Row]) -> list[str]:
    """Return what is not equal, a line for each model and framework."""
    by_pair: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        device = "" if row.device == CPU else f" on {row.device}"
        pair = (row.model, row.framework, row.reference, device)
        by_pair.setdefault(pair, []).append(row)
    return [
        f"{model} of {framework} is not equal to that of {reference}{device}: {text}"
        for (model, framework, reference, device), rows_of_pair in by_pair.items()
        if (text := difference(rows_of_pair))
    ]


def difference(rows: Sequence[Row]) -> str:
    """Return what is not equal of one model and framework; empty if everything is.

    If a layer is named, quantities that follow from its output are left out.
    """
    unequal = [row for row in rows if not row.equal]
    follows = FOLLOWS if any(row.layer for row in unequal) else frozenset()
    return "; ".join(_described(row) for row in unequal if row.quantity not in follows)


def _described(row: Row) -> str:
    place = f", first in the output of {row.layer}, behind {row.behind}" if row.layer else ""
    name = f"{row.quantity} of {row.tensor}"
    if math.isinf(row.error):
        return f"{name} is missing on one side, of another shape or not finite{place}"
    return f"{name} differs by {row.error:.0e} (limit {row.limit:.0e}){place}"


def _file(request: ParityRequest, reference: Side, side: Side, cache: Path) -> Path:
    sides = (reference, side)
    key = {
        **asdict(request),
        "sides": [asdict(each) for each in sides],
        "packages": [dict(interpreters.packages(each.framework, each.python)) for each in sides],
        "code": models.code_digest(),
    }
    if request.device != CPU:
        key["gpus"] = provenance.gpus()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache / "parity" / f"{request.model}-{digest}.json"


def _read(path: Path) -> list[Row]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row(**{name: row[name] for name in Row.__annotations__}) for row in values]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    quantities = tuple(row.quantity for row in rows)
    return rows if quantities in (tuple(QUANTITIES), INFERENCE) else []


def as_json(rows: Sequence[Row]) -> str:
    """Return a list of rows as JSON objects, with what each compared.

    An error of `Infinity` means that one side lacks the tensor, that it has another shape or
    that it is not finite.
    """
    values = [
        {**asdict(row), "equal": row.equal, "what": QUANTITIES[row.quantity].what} for row in rows
    ]
    return json.dumps(values, indent=1)
