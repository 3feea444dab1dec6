"""What every tracking server takes, checked before it is asked: what it refuses for what it says is known here.

The bounds are MLflow's (`mlflow/utils/validation.py`) and those of its tables (`mlflow/store/tracking/dbmodels/models.py`).
Long values of tags and params are not among them: a server cuts them.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Mapping
from functools import lru_cache

from tracking.records import (
    DatasetUsed,
    Metrics,
    ModelSaved,
    Point,
    Record,
    RunClosed,
    RunOpened,
    Tags,
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
_KEY = re.compile(r"[/\w.\- :]+")
# An origin stands in a filter between quotes.
_ORIGIN = re.compile(r"[\w.\- :/|@+·]{1,250}")
# A database keeps no NUL, and no half of a character pair.
_UNKEPT = re.compile("[\0\ud800-\udfff]")


def is_origin(text: str) -> bool:
    """Whether a text can be the id of a journal's run."""
    return _ORIGIN.fullmatch(text) is not None


def is_experiment(text: str) -> bool:
    """Whether a text can be the name of an experiment."""
    return 0 < len(text) <= EXPERIMENT_NAME_CHARACTERS and not _UNKEPT.search(text)


def is_path(text: str) -> bool:
    """Whether a text can name a folder of a run's artifacts."""
    return (
        posixpath.normpath(text) == text
        and not text.startswith(("/", ".."))
        and not _UNKEPT.search(text)
    )


def taken(record: Record) -> tuple[Record | None, list[str]]:
    """What a server takes of a record, None where that is nothing; and, one line each, why the rest is left out."""
    if not is_origin(record.run):
        return None, [f"{ascii(record.run)[:60]} is no id of a run"]
    match record:
        case RunOpened():
            return _opened(record)
        case Tags():
            values, left = _pairs(record.values)
            return (dataclasses.replace(record, values=values) if values else None), left
        case Metrics():
            troubles = [_point(point) for point in record.points]
            if not any(troubles):
                return record, []
            points = tuple(
                point for point, trouble in zip(record.points, troubles, strict=True) if not trouble
            )
            return (dataclasses.replace(record, points=points) if points else None), [
                one for one in troubles if one
            ]
        case DatasetUsed():
            texts = {name: _kept(getattr(record, name)) for name in DATASET_CHARACTERS}
            long = [name for name, most in DATASET_CHARACTERS.items() if len(texts[name]) > most]
            return (
                (None, [f"{name} is too long" for name in long])
                if long
                else (dataclasses.replace(record, **texts), [])
            )
        case RunClosed():
            closed = dataclasses.replace(
                record, outcome=_kept(record.outcome), reason=_kept(record.reason)
            )
            return (
                (closed, [])
                if 0 <= record.time_ms <= LARGEST
                else (None, [f"time_ms={record.time_ms} is out of range"])
            )
        case ModelSaved():
            trouble = key_trouble(record.name) or (
                "a name of a model has no / or :" if re.search("[/:]", record.name) else ""
            )
            return (None, [trouble]) if trouble else (record, [])
    return record, []


def _opened(record: RunOpened) -> tuple[RunOpened | None, list[str]]:
    if not is_experiment(record.experiment):
        return None, [
            f"the experiment's name {ascii(record.experiment)[:60]} is empty, too long or no text"
        ]
    if not 0 <= record.time_ms <= LARGEST:
        return None, [f"time_ms={record.time_ms} is out of range"]
    (tags, wrong_tags), (params, wrong_params) = _pairs(record.tags), _pairs(record.params)
    short = _kept(record.name)[:RUN_NAME_CHARACTERS]
    return dataclasses.replace(
        record, name=short, tags=tags, params=params
    ), wrong_tags + wrong_params


def _pairs(values: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    troubles = {key: key_trouble(key) for key in values}
    return {key: _kept(text) for key, text in values.items() if not troubles[key]}, [
        one for one in troubles.values() if one
    ]


def _point(point: Point) -> str:
    if trouble := key_trouble(point.key):
        return trouble
    in_range = 0 <= point.time_ms <= LARGEST and abs(point.step) <= LARGEST
    return (
        ""
        if in_range
        else f"{point.key}: step={point.step} or time_ms={point.time_ms} is out of range"
    )


@lru_cache(4_096)
def key_trouble(key: str) -> str:
    """What is wrong with the name of a metric, a tag or a param, empty if nothing is."""
    if len(key) > KEY_CHARACTERS:
        return f"{ascii(key)[:60]}… is longer than {KEY_CHARACTERS} characters"
    if (
        not _KEY.fullmatch(key)
        or posixpath.normpath(key) != key
        or key.startswith(("/", ".."))
        or key == "."
    ):
        return f"{ascii(key)[:60]} is no name: letters, digits, / _ - . : and spaces"
    return ""


def _kept(text: str) -> str:
    return _UNKEPT.sub("\ufffd", text)
