"""Which tags the UI shows, and how those that only programs read share one that it does not: JSON in `mlflow.evenhand`."""

from __future__ import annotations

import json
from collections.abc import Mapping

TAG = "mlflow.evenhand"  # MLflow's pages leave out what begins with its name
# MLflow cuts the value of a tag after 8,000 characters, and its hosted stores refuse one of more than 5,000.
CHARACTERS = 5_000
# The server searches runs by it, which it cannot inside JSON.
ALONE = {"origin": f"{TAG}.origin"}
NAMES = frozenset(
    (
        *(
            "cell",
            "cool_down",
            "energy_of",
            "environment",
            "exported_from",
            "exported_run_id",
            "features",
            "host",
            "idle",
        ),
        *("implied", "jit_compile.planned", "keras.use_cudnn", "looks", "odd_block.rule"),
        *(
            "optimizer.implementation",
            "parity.device",
            "pid",
            "pid_started",
            "trial.params",
            "turns",
        ),
    )
)
PREFIXES = ("inherited.", "machine.", "not_available.", "pinned.", "train.", "version.", "warmup.")


def is_technical(name: str) -> bool:
    """Whether a tag has its place among those that share one."""
    return name in NAMES or name.startswith(PREFIXES)


def packed(values: Mapping[str, str], before: Mapping[str, str] | None = None) -> dict[str, str]:
    """Tags as they are written to a run. before: those that it has, to be kept where `values` say nothing else.

    What no tag can hold together with others stays alone; what fills one goes on in `mlflow.evenhand.2` and so on.
    """
    own = {
        ALONE.get(name, name): values[name] for name in sorted(values) if not is_technical(name)
    }  # a page has this order
    more = {name: text for name, text in values.items() if is_technical(name)}
    if not more:
        return own
    before = before or {}
    entries = {name: _entry(name, text) for name, text in {**_inside(before), **more}.items()}
    alone = {name: text for name, text in more.items() if len(entries[name]) + 2 > CHARACTERS}
    chunks = [""]
    for entry in (entry for name, entry in entries.items() if name not in alone):
        if chunks[-1] and len(chunks[-1]) + len(entry) + 3 > CHARACTERS:
            chunks.append("")
        chunks[-1] += f",{entry}" if chunks[-1] else entry
    parts = {_part(number): f"{{{chunk}}}" for number, chunk in enumerate(chunks, start=1) if chunk}
    return {**own, **alone, **dict.fromkeys(filter(_is_part, before), "{}"), **parts}


def unpacked(tags: Mapping[str, str]) -> dict[str, str]:
    """Every tag by its own name, however it is written. What somebody has made of the shared tag by hand is left as it is."""
    inside = _inside(tags)
    unread = {name for name in tags if _is_part(name) and _read(tags[name]) is None}
    own = {name: text for name, text in tags.items() if not _is_part(name) or name in unread}
    for name, written in ALONE.items():
        if written in own:
            own[name] = own.pop(written)
    return {**own, **inside}


def _inside(tags: Mapping[str, str]) -> dict[str, str]:
    parts = sorted((_number(name), text) for name, text in tags.items() if _is_part(name))
    return {name: text for _, part in parts for name, text in (_read(part) or {}).items()}


def _read(part: str) -> dict[str, str] | None:
    """None for what is not texts by name."""
    try:
        found = json.loads(part)
    except (ValueError, RecursionError):
        return None
    return (
        found
        if isinstance(found, dict) and all(isinstance(text, str) for text in found.values())
        else None
    )


def _entry(name: str, text: str) -> str:
    return json.dumps({name: text}, ensure_ascii=False, separators=(",", ":"))[1:-1]


def _part(number: int) -> str:
    return TAG if number == 1 else f"{TAG}.{number}"


def _is_part(name: str) -> bool:
    return name == TAG or (name.startswith(f"{TAG}.") and name.removeprefix(f"{TAG}.").isdecimal())


def _number(name: str) -> int:
    return 1 if name == TAG else int(name.removeprefix(f"{TAG}."))
