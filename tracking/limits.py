"""Bounds of tracking servers, checked before a record is sent.

They are MLflow's (`mlflow/utils/validation.py`) and those of its tables
(`mlflow/store/tracking/dbmodels/models.py`). Servers cut long values of tags and params.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tracking.records import (
    DatasetUsed,
    Metrics,
    ModelRegistered,
    ModelSaved,
    Point,
    Record,
    RunClosed,
    RunOpened,
)

KEY_CHARACTERS = 250
RUN_NAME_CHARACTERS = 250
EXPERIMENT_NAME_CHARACTERS = 256
DATASET_CHARACTERS = {
    "name": 500,
    "digest": 36,
    "source": 65_535,
    "schema": 1_048_575,
    "profile": 16_777_215,
    "context": 500,
}
LARGEST = 2**63 - 1
_KEY = re.compile(rf"[/\w.\- :]{{1,{KEY_CHARACTERS}}}")
# On servers with teams a dot stands behind the team.
_REGISTERED_MODEL = re.compile(r"[A-Za-z0-9][\w+=-]*(?:[. ][A-Za-z0-9][\w+=-]*)*", re.ASCII)
# A database stores no NUL, and no half of a surrogate pair.
_NOT_STORED = re.compile("[\0\ud800-\udfff]")


def is_experiment(text: str) -> bool:
    return 0 < len(text) <= EXPERIMENT_NAME_CHARACTERS and not _NOT_STORED.search(text)


def is_registered_model(text: str) -> bool:
    """Return whether a text can name a registered model, also on servers with teams."""
    return len(text) <= KEY_CHARACTERS and _REGISTERED_MODEL.fullmatch(text) is not None


def acceptable_part(record: Record) -> tuple[Record | None, list[str]]:
    """Return the part of a record that servers take, or None, and the reasons for the rest."""
    changes: dict[str, Any] = {}
    reasons: list[str] = []
    for name, value in vars(record).items():
        if isinstance(value, str):
            changes[name] = _storable(value)
        elif isinstance(value, dict):
            troubles = {key: key_trouble(key) for key in value}
            changes[name] = {
                key: _storable(text) for key, text in value.items() if not troubles[key]
            }
            reasons += filter(None, troubles.values())
    if trouble := _trouble(record):
        return None, [trouble]
    if isinstance(record, RunOpened):
        changes["name"] = changes["name"][:RUN_NAME_CHARACTERS]
    if isinstance(record, Metrics):
        troubles = {point: _point_trouble(point) for point in record.points}
        changes["points"] = tuple(point for point in record.points if not troubles[point])
        reasons += filter(None, troubles.values())
    return replace(record, **changes), reasons


def _trouble(record: Record) -> str:
    """Return why servers take no part of a record; empty if they do."""
    if isinstance(record, RunOpened | RunClosed) and not 0 <= record.time_ms <= LARGEST:
        return f"time_ms={record.time_ms} is out of range"
    match record:
        case RunOpened() if not is_experiment(record.experiment):
            name = ascii(record.experiment)[:60]
            return f"the experiment's name {name} is empty, too long or no text"
        case DatasetUsed():
            lengths = {name: len(getattr(record, name)) for name in DATASET_CHARACTERS}
            long = [name for name, most in DATASET_CHARACTERS.items() if lengths[name] > most]
            return f"{', '.join(long)}: too long" if long else ""
        case ModelSaved():
            return key_trouble(re.sub("[/:]", "()", record.name))
        case ModelRegistered() if not is_registered_model(record.name):
            return f"{ascii(record.name)[:60]} is no name of a registered model"
    return ""


def _point_trouble(point: Point) -> str:
    if trouble := key_trouble(point.key):
        return trouble
    if 0 <= point.time_ms <= LARGEST and abs(point.step) <= LARGEST:
        return ""
    return f"{point.key}: step={point.step} or time_ms={point.time_ms} is out of range"


@lru_cache(4_096)
def key_trouble(key: str) -> str:
    """Return what is wrong with the name of a metric, tag or param; empty if it is right."""
    is_plain = _KEY.fullmatch(key) and posixpath.normpath(key) == key
    if is_plain and key != "." and not key.startswith(("/", "..")):
        return ""
    return (
        f"{ascii(key)[:60]} is no name: 1 to {KEY_CHARACTERS} letters, digits, / _ - . : and spaces"
    )


def _storable(text: str) -> str:
    return _NOT_STORED.sub("\ufffd", text)
