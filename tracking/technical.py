"""Tags for programs, which share the tag `mlflow.evenhand` as JSON that the UI does not show."""

from __future__ import annotations

import json
from collections.abc import Mapping

TAG = "mlflow.evenhand"  # MLflow's pages leave out tags that begin with its name
# MLflow cuts values of tags after 8,000 characters, and hosted stores refuse more than 5,000.
CHARACTERS = 5_000
# Tags that the server searches runs by, which it cannot inside JSON.
SEPARATE = {"origin": f"{TAG}.origin"}
NAMES = frozenset(
    (
        "cell",
        "cool_down",
        "energy_of",
        "environment",
        "features",
        "host",
        "implied",
        "jit_compile.planned",
        "keras.use_cudnn",
        "looks",
        "odd_block.rule",
        "optimizer.implementation",
        "parity.device",
        "pid",
        "pid_started",
        "trial.params",
        "turns",
    )
)
# Values of metrics that MLflow does not show.
METRIC = "metric."
PREFIXES = (
    *("inherited.", "machine.", METRIC, "not_available."),
    *("pinned.", "train.", "version.", "warmup."),
)


def is_technical(name: str) -> bool:
    return name in NAMES or name.startswith(PREFIXES)


def pack_tags(values: Mapping[str, str], before: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return tags as they are written to a run.

    The shared tag continues in `mlflow.evenhand.2` and so on. A value that is too long for it stays
    a separate tag.

    Args:
        before: Tags of the run, whose shared values are preserved.
    """
    # the page of a run has this order
    tags = {
        SEPARATE.get(name, name): values[name] for name in sorted(values) if not is_technical(name)
    }
    shared = {name: text for name, text in values.items() if is_technical(name)}
    if not shared:
        return tags
    before, chunks = before or {}, [""]
    for name, text in {**_shared(before), **shared}.items():
        entry = json.dumps({name: text}, ensure_ascii=False, separators=(",", ":"))[1:-1]
        if len(entry) + 2 > CHARACTERS:
            if name in shared:
                tags[name] = text
            continue
        if chunks[-1] and len(chunks[-1]) + len(entry) + 3 > CHARACTERS:
            chunks.append("")
        chunks[-1] += f",{entry}" if chunks[-1] else entry
    tags |= dict.fromkeys(filter(_number, before), "{}")
    for number, chunk in enumerate(filter(None, chunks), start=1):
        tags[TAG if number == 1 else f"{TAG}.{number}"] = f"{{{chunk}}}"
    return tags


def unpack_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return each tag by its own name. Shared tags that a user has edited are left unchanged."""
    names = {name: short for short, name in SEPARATE.items()}
    plain = {
        names.get(name, name): text
        for name, text in tags.items()
        if not _number(name) or _parse(text) is None
    }
    return {**plain, **_shared(tags)}


def _shared(tags: Mapping[str, str]) -> dict[str, str]:
    parts = sorted((number, text) for name, text in tags.items() if (number := _number(name)))
    return {name: text for _, part in parts for name, text in (_parse(part) or {}).items()}


def _parse(part: str) -> dict[str, str] | None:
    """Return texts by name, or None if a part is anything else."""
    try:
        values = json.loads(part)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not all(isinstance(text, str) for text in values.values()):
        return None
    return values


def _number(name: str) -> int:
    if name == TAG:
        return 1
    number = name.removeprefix(f"{TAG}.")
    return int(number) if number != name and number.isdecimal() else 0
