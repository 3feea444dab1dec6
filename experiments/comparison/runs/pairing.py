"""Usable runs, their pairs inside blocks, and a reason for each run that is left out."""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.comparison.runs import expected_differences
from experiments.comparison.runs.names import campaign_names
from experiments.comparison.runs.query import FIRST, TAG_COLUMNS
from experiments.config.settings import (
    CampaignSettings,
    names_not_affecting_measurement,
)
from tracking import plain
from tracking.errors import ErrorCode, UsageError, suggestion
from tracking.records import RepeatCause

ENVIRONMENT = expected_differences.ENVIRONMENT
CONTROL, DISTURBED = "tags.control", "tags.disturbed"
# Columns that must not differ inside a block.
INSIDE_A_BLOCK = {
    "machine": "machines",
    "tags.environment": "environments",
    "tags.commit": "commits",
    "tags.turns": "turns",  # cells that took turns, but not with each other
}
# Outcomes of cells that were not measured, though nothing failed.
NO_FAILURES = ("not_equal", "not_available", "interrupted")
NAMED = 4
TIME = "time"  # value of `pair_by`
REPEATS, CAUSE = "tags.repeats", "tags.repeats.cause"
# Columns that `Runs` adds.
DERIVED_COLUMNS = frozenset(
    {"level", "group", "stratum", "pair", "apart", "block_label", "sequence"}
)


class Mismatch(StrEnum):
    """Reason code for which the runs of two levels are not comparable."""

    NO_RUN = "no_run"
    SETTINGS = "settings"
    MACHINES = "machines"
    VERSIONS = "versions"
    SEVERAL_RUNS = "several_runs"
    NO_PAIR = "no_pair"
    ORDER = "order"
    TURNS = "turns"
    BATCH_SIZES = "batch_sizes"


@dataclass(frozen=True)
class Incomparability:
    """Reason for which two levels are not compared: a code, and a text with the values."""

    code: Mismatch
    text: str


@dataclass(frozen=True)
class Exclusion:
    """Run or value that is left out. `metric`: empty for the whole run.

    Attributes:
        code: See `RepeatCause`; empty for other reasons.
    """

    run_id: str
    name: str
    level: str
    block: str
    metric: str
    reason: str
    code: str = ""


@dataclass(frozen=True)
class FailedRuns:
    """Level of whose runs some failed; runs that were interrupted do not count.

    Attributes:
        runs: All that ended.
        reason: The most frequent one.
    """

    level: str
    failed: int
    runs: int
    reason: str


@dataclass(frozen=True)
class Runs:
    """Usable runs, a row each, and exclusions.

    Columns of the frame, in addition to the table's: `level`, `stratum`, `pair` (block within
    campaign), `block_label`, `sequence` (order in which the runs began, from 1), `group` (requested
    stratum; if it has several campaigns, each of them is a stratum).
    """

    frame: pd.DataFrame
    levels: tuple[str, ...]
    excluded: tuple[Exclusion, ...]
    failures: tuple[FailedRuns, ...]


def column_of(table: pd.DataFrame, name: str) -> str:
    """Return the column of a factor or stratum: by its name, of params, or of tags.

    The first that has a value counts: `framework` may be a tag or a param.

    Raises:
        UsageError: There is no such column.
    """
    candidates = (name, f"params.{name}", f"tags.{name}", name.removeprefix("tags."))
    columns = [column for column in candidates if column in table.columns]
    if columns:
        return next((column for column in columns if table[column].notna().any()), columns[0])
    have = sorted(
        {
            plain_name(column)
            for column in map(str, table.columns)
            if column in TAG_COLUMNS or column.startswith(("params.", "tags."))
            if not column.startswith("tags.mlflow.") and table[column].notna().any()
        }
    )
    right = suggestion(name, have, "MLflow")
    raise UsageError(
        ErrorCode.UNKNOWN_NAME, f"no run has a param or tag '{plain.short(name)}'{right}"
    )


def without_controls(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that are compared."""
    return table[texts_of(table, CONTROL) == ""] if CONTROL in table.columns else table


def are_cells(frame: pd.DataFrame) -> pd.Series:
    """Return which rows are cells; runs of other tools, without a kind, count as cells."""
    return texts_of(frame, "kind").isin(["cell", ""])


def select_usable(
    table: pd.DataFrame, *, factor: str, strata: Sequence[str], pair_by: str = ""
) -> Runs:
    """Return the finished cells with a level and a block; of a repeated cell, the last run.

    Campaigns are strata if several of them hold both sides: a campaign's effect on one side is
    shared by all its blocks.

    Args:
        table: A row a run.
        factor, strata: Of the comparison.
        pair_by: Column whose values pair runs instead of blocks, or `time`.

    Raises:
        UsageError: There is no such run.
    """
    frame = _cells(table).copy()  # side by side, so that more columns fit in
    frame = frame.assign(**_derived_columns(frame, factor, strata, pair_by))
    # the copy puts columns of one type side by side, since rows are taken many times
    texts = {name: object for name, kind in frame.dtypes.items() if kind == "str"}
    frame = (frame.astype(texts) if texts else frame).copy()
    defaults = {"status": "FINISHED", "outcome": "ok", "outcome_reason": ""}
    columns = [as_text(frame[name]).replace("", default) for name, default in defaults.items()]
    cells = zip(*columns, frame["level"], frame["pair"], strict=True)
    causes = [_cause(cell, factor) for cell in cells]
    unusable = np.array([cause is not None for cause in causes])
    excluded = [
        exclude(run, cause.reason)
        for (_, run), cause in zip(frame[unusable].iterrows(), filter(None, causes), strict=True)
    ]
    runs, repeated = _latest(frame[~unusable])
    runs = runs.assign(group=runs["stratum"])
    if "campaign" not in map(plain_name, (factor, *strata)):
        runs = _by_campaign(runs)
    excluded = sorted(
        [*excluded, *repeated],
        key=lambda run: (run.metric, natural(run.block), run.level, run.run_id),
    )
    # a side whose runs all failed is reported too
    levels = sorted(set(frame["level"]) - {""}, key=natural)
    failures = tuple(_failures(frame.assign(cause=pd.Series(causes, frame.index, object)), levels))
    return Runs(runs, tuple(levels), tuple(excluded), failures)


def _failures(frame: pd.DataFrame, levels: Iterable[str]) -> Iterator[FailedRuns]:
    """Yield the levels with failed runs.

    A size that never fitted into memory is a limit, not a failure, if the level ran elsewhere.
    """
    for level in levels:
        runs = frame[frame["level"] == level]
        fits = set(runs["stratum"][runs["cause"].isna()])
        columns = (runs["cause"], runs["stratum"], as_text(runs["outcome"]))
        reasons = [
            cause.detail or cause.reason
            for cause, stratum, outcome in zip(*columns, strict=True)
            if cause and cause.is_failure
            if stratum in fits or not fits or outcome != "out_of_memory"
        ]
        if reasons:
            (reason, _), *_ = Counter(reasons).most_common()
            succeeded = int(runs["cause"].isna().sum())
            yield FailedRuns(level, len(reasons), len(reasons) + succeeded, reason)


def _cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a table, with all columns of the schema."""
    if table.empty:
        raise UsageError(
            ErrorCode.NO_RUNS,
            "no runs to compare: the selection is empty; widen the experiment, campaign or filter",
        )
    if table.columns.has_duplicates:
        raise UsageError(
            ErrorCode.DUPLICATE,
            f"column {table.columns[table.columns.duplicated()][0]} is in the table twice",
        )
    columns = list(dict.fromkeys([*FIRST, *table.columns]))
    frame = table.reset_index(drop=True).reindex(columns=columns)
    frame = frame[are_cells(frame)]
    if frame.empty:
        raise UsageError(
            ErrorCode.NO_RUNS,
            "no runs to compare: none of those selected is a cell run (tag kind=cell)",
        )
    return frame


def plain_name(name: str) -> str:
    """Return the name of a column without its kind."""
    return name.removeprefix("params.").removeprefix("tags.")


def _by_campaign(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with campaigns as strata, if several of them hold more than one level."""
    if frame["campaign"].nunique(dropna=False) < 2 or frame["apart"].any():
        return frame
    campaigns = as_text(frame["campaign"])
    held = frame.groupby(["stratum", campaigns])["level"].nunique() > 1
    several = held.groupby(level=0).sum() > 1
    split = frame["stratum"].map(several)
    ids = _shortened(campaigns).where(campaigns != "", "none")
    names = "campaign=" + campaign_names(frame, ids)
    before = frame["stratum"].where(frame["stratum"] == "", frame["stratum"] + ", ")
    return frame.assign(stratum=frame["stratum"].where(~split, before + names))


def _derived_columns(
    frame: pd.DataFrame, factor: str, strata: Sequence[str], pair_by: str
) -> dict[str, Any]:
    """Return the columns of `Runs`."""
    empty = pd.Series("", index=frame.index, dtype=object)

    columns = ("run_id", "name", "block", "campaign")
    run_ids, names, blocks, campaigns = (as_text(frame[name]) for name in columns)
    rows = empty + frame.index.astype(str)
    run_ids, names = (texts.where(texts != "", rows) for texts in (run_ids, names))
    stratum = empty
    for name in strata:
        separator = "" if name == strata[0] else ", "
        value = _named_values(frame, column_of(frame, name))
        stratum = stratum + separator + f"{name.split('.')[-1]}=" + value
    level = _named_values(frame, column_of(frame, factor))
    if pair_by == TIME:
        blocks = _in_order_of_time(frame, run_ids, level, stratum)
    elif pair_by:
        blocks = as_text(frame[column_of(frame, pair_by)])
    pair = campaigns + "·" + blocks
    # whether no campaign holds more than one level: then no block holds both sides
    named = (campaigns != "") & (level != "")
    per_campaign = level[named].groupby(campaigns[named]).nunique()
    separate = bool(level[named].nunique() > 1 and (per_campaign == 1).all())
    apart = expected_differences.is_apart(factor) and separate and not pair_by
    if apart:
        pair = _in_order_of_time(frame, pair, level, stratum)
    labels = _shortened(campaigns) + "·" + blocks if campaigns.nunique() > 1 else blocks
    numbers = {
        name: pd.to_numeric(frame[name], errors="coerce")
        for name in ("start_ms", "block", "order_in_block")
    }
    keys = {"campaign": campaigns, **numbers, "run_id": run_ids}
    places = ["start_ms", "campaign", "block", "order_in_block", "run_id"]
    began = pd.DataFrame(keys, index=frame.index).sort_values(places)
    return {
        "run_id": run_ids,
        "name": names,
        "level": level,
        "stratum": stratum,
        "pair": pair.where(blocks != "", ""),
        "apart": apart,
        "block_label": labels.where(blocks != "", ""),
        # from 1; without times by blocks and run ids
        "sequence": pd.Series(range(1, len(frame) + 1), began.index).reindex(frame.index),
    }


def _named_values(frame: pd.DataFrame, column: str) -> pd.Series:
    """Return a column as texts; campaigns by their names."""
    texts = as_text(frame[column])
    return campaign_names(frame, texts) if column == "campaign" else texts


def _shortened(names: pd.Series) -> pd.Series:
    """Return the first six letters of names, or as many more as keep them different."""
    different, length = set(names), 6
    while len({name[:length] for name in different}) < len(different):
        length += 1
    return names.str[:length]


def _in_order_of_time(
    frame: pd.DataFrame, pair: pd.Series, level: pd.Series, stratum: pd.Series
) -> pd.Series:
    """Pair the first block of one level with the first of the other, and so on."""
    began = pd.to_numeric(frame["start_ms"], errors="coerce")
    first = began.groupby([stratum, level, pair]).transform("min")
    columns = {"stratum": stratum, "level": level, "first": first, "pair": pair}
    ordered = pd.DataFrame(columns).sort_values(["first", "pair"]).groupby(["stratum", "level"])
    numbers = ordered["pair"].transform(lambda pairs: pd.factorize(pairs)[0] + 1)
    return numbers.reindex(frame.index).astype(int).astype(str).astype(object)


class _Cause(NamedTuple):
    """Reason for which a run is unusable, and that of its own record if it failed."""

    reason: str
    detail: str = ""
    is_failure: bool = False


def _cause(run: Sequence[str], factor: str) -> _Cause | None:
    status, outcome, detail, level, pair = run
    why = f": {detail}" if detail else ""
    if status in ("RUNNING", "SCHEDULED"):
        return _Cause(f"still {status.lower()}")
    if outcome != "ok":
        is_failure = outcome not in NO_FAILURES
        return _Cause(f"{outcome.replace('_', ' ')}{why}", detail, is_failure)
    if status != "FINISHED":
        return _Cause(f"{status.lower()}{why}", detail, is_failure=True)
    if not level:
        return _Cause(f"has no {factor}")
    return None if pair else _Cause("has no block: nothing to pair it with")


def _latest(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Exclusion]]:
    """Return one run per cell, the one that began last, and the others.

    A cell is identified by stratum, block, level and all params: runs of other tools have no hash
    of the settings, and ours is the same for all levels.
    """
    same = ["stratum", "pair", "level", "settings_hash", "model", "dataset"]
    if not frame.duplicated(same).any():
        return frame, []
    same += _settings(frame, _not_affecting(frame))
    ordered = frame.sort_values("sequence")
    repeated = ordered[same].duplicated(keep="last").reindex(frame.index)
    groups = ordered.groupby(same, dropna=False)
    of_last = {
        name: groups[name].transform(lambda values: values.iloc[-1])
        for name in (REPEATS, CAUSE)
        if name in frame.columns
    }
    excluded = []
    for _, run in frame[repeated].assign(**of_last).iterrows():
        cause = _as_text(run.get(CAUSE, ""))
        why = _as_text(run.get(REPEATS if cause == RepeatCause.ODD_BLOCK else DISTURBED, ""))
        reason = "; ".join(filter(None, [why, "a later run of the same cell is used instead"]))
        code = cause or (RepeatCause.BUSY_MACHINE if why else "")
        excluded.append(replace(exclude(run, reason), code=code))
    return frame[~repeated], excluded


def _settings(frame: pd.DataFrame, excluded: Container[str]) -> list[str]:
    params = [str(column) for column in frame.columns if str(column).startswith("params.")]
    return [column for column in params if column.removeprefix("params.") not in excluded]


def find_mismatch(
    frame: pd.DataFrame, factor: str, allowed_to_differ: Sequence[str] = ()
) -> Incomparability | None:
    """Return why the runs of one stratum must not be pooled; None if they may.

    Args:
        allowed_to_differ: Settings that differ with the factor, or that do not affect measurements;
            names or patterns of them.
    """
    by_nature = expected_differences.differs_by(factor, frame.columns)
    columns = settings_of(frame, factor, (), allowed_to_differ)
    autologged = expected_differences.autologged(frame, columns)
    if differing := varying(frame, [name for name in columns if name not in autologged]):
        return Incomparability(
            Mismatch.SETTINGS,
            f"settings differ apart from {factor}: {differing}; select one, name it in strata, or "
            "let it differ (ignore)",
        )
    if plain_name(factor) == "framework" and (differing := varying(frame, ["settings_hash"])):
        return Incomparability(
            Mismatch.SETTINGS,
            f"settings differ apart from {factor}: {differing}; select one campaign",
        )
    is_compared = "machine" in frame and "machine" not in by_nature
    recorded = frame[as_text(frame["machine"]) != ""] if is_compared else frame
    if is_compared and varying(recorded, ["machine"]):
        differing = varying(recorded, ["machine", *expected_differences.HARDWARE])
        return Incomparability(
            Mismatch.MACHINES,
            f"runs of several machines are not pooled: {differing}; name it in strata",
        )
    rest = []
    # environments that do not differ with the factor are compared as a whole inside each block
    if ENVIRONMENT in by_nature:
        versions = [name for name in frame.columns if name.startswith(expected_differences.VERSION)]
        rest = sorted({*versions, *expected_differences.HARDWARE} - by_nature)
    differing = varying(frame, [name for name in rest if plain_name(name) not in allowed_to_differ])
    for _, runs in frame.groupby("level"):  # inside a level the factor does not differ
        differing = differing or varying(runs, by_nature & {ENVIRONMENT})
    if differing:
        return Incomparability(
            Mismatch.VERSIONS,
            f"versions or hardware differ apart from {factor}: {differing}; "
            f"select runs in which only {factor} differs",
        )
    if frame.duplicated(["pair", "level"]).any():
        return Incomparability(
            Mismatch.SEVERAL_RUNS,
            f"a block holds several runs of one {factor}; "
            "select one kind of run, or name what differs in strata",
        )
    return None


def settings_of(
    frame: pd.DataFrame, factor: str, strata: Sequence[str], allowed_to_differ: Sequence[str]
) -> list[str]:
    """Return the columns in which pooled runs must agree: model, data set and settings."""
    named = {plain_name(factor), *map(plain_name, strata), *allowed_to_differ}
    fixed = [column for column in ("framework", "model", "dataset") if column not in named]
    columns = sorted(_settings(frame, _not_affecting(frame) | named))
    patterns = [name for name in allowed_to_differ if "*" in name or name.startswith("params.")]
    return [*fixed, *(column for column in columns if not matches(column, patterns))]


def matches(column: str, patterns: Sequence[str]) -> bool:
    """Return whether a column's name matches a pattern, with its kind or without."""
    names = (column, plain_name(column))
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _not_affecting(frame: pd.DataFrame) -> frozenset[str]:
    """Return the names of settings in which runs may differ.

    They are those of a campaign that no cell gets, and lists of compared values (`batch_sizes`)
    next to the value of each run (`batch_size`).
    """
    lists = set[str]()
    for column in _settings(frame, ()):
        singular = column[:-1]
        if column.endswith("s") and singular in frame.columns:
            runs = frame[[column, singular]].dropna().astype(str)
            values = runs.itertuples(index=False)
            if len(runs) and all(value in text.split(",") for text, value in values):
                lists.add(column.removeprefix("params."))
    return names_not_affecting_measurement(CampaignSettings) | {"framework", *lists}


def pair_runs(
    frame: pd.DataFrame, a: str, b: str, factor: str
) -> tuple[pd.DataFrame, pd.DataFrame, list[Exclusion], Incomparability | None]:
    """Pair runs of a and b by block.

    Machine, environment, commit and turns must be the same inside a block, unless they differ with
    the factor by its nature.

    Returns:
        The runs of a and of b, row by row, the runs without a partner, and why there is no pair,
        if there is none.
    """
    # by positions, since frames of hundreds of columns are slow to slice
    labels, levels = frame["pair"].to_numpy(), frame["level"].to_numpy()
    rows = {
        level: {str(labels[row]): row for row in np.flatnonzero(levels == level)}
        for level in (a, b)
    }
    common = sorted(rows[a].keys() & rows[b].keys(), key=natural)
    excluded = []
    for level, other in ((a, b), (b, a)):
        for label in rows[level]:
            if label not in rows[other]:
                run = frame.iloc[rows[level][label]]
                reason = f"block {run['block_label']} has no usable run of {other}"
                excluded.append(exclude(run, reason))
    first, second = (
        np.array([rows[level][label] for label in common], dtype=int) for level in (a, b)
    )
    alike, differing = np.ones(len(common), dtype=bool), dict[str, list[str]]()
    by_nature = expected_differences.differs_by(factor, frame.columns)
    for column, what in INSIDE_A_BLOCK.items():
        if column not in frame.columns or column in by_nature:
            continue
        present = frame[column].notna().to_numpy()
        values = frame[column].to_numpy(dtype=object, na_value="")
        differ = present[first] & present[second] & (values[first] != values[second])
        unlike = np.flatnonzero(alike & differ)
        for block in unlike:
            texts = _different_texts(values[first[block]], values[second[block]])
            reason = f"{what} differ inside the block ({', '.join(texts)})"
            differing.setdefault(what, []).append(f"{a} {texts[0]}, {b} {texts[1]}")
            excluded += [exclude(frame.iloc[row], reason) for row in (first[block], second[block])]
        alike[unlike] = False
    why = None if alike.any() else Incomparability(Mismatch.NO_PAIR, _unpaired(a, b, differing))
    return frame.iloc[first[alike]], frame.iloc[second[alike]], excluded, why


def _different_texts(first: Any, second: Any) -> tuple[str, str]:
    """Return two values as texts, commits shortened if that keeps them different."""
    whole = (_as_text(first), _as_text(second))
    commit = re.compile(r"^([0-9a-f]{7})[0-9a-f]{33}(?![0-9a-f])")
    short = (commit.sub(r"\1", whole[0]), commit.sub(r"\1", whole[1]))
    return short if short[0] != short[1] else whole


def _unpaired(a: str, b: str, differing: Mapping[str, Sequence[str]]) -> str:
    """Return why there is no pair. `differing`: differences by kind, one text per block."""
    if not differing:
        return f"no block holds both {a} and {b}; runs of one campaign are paired by block"
    reasons = []
    for what, blocks in differing.items():
        (example, _), *others = Counter(blocks).most_common()
        more = f" and {len(others)} more" if others else ""
        plural = "" if len(blocks) == 1 else "s"
        reasons.append(f"{what} differ inside {len(blocks)} block{plural} ({example}{more})")
    return f"no block holds both {a} and {b} under the same conditions: {'; '.join(reasons)}"


def split_strata(frame: pd.DataFrame, a: str, b: str) -> tuple[list[pd.DataFrame], list[Exclusion]]:
    """Return the runs of a group by stratum, and those of campaigns without one of the levels."""
    strata = [runs for _, runs in frame.groupby("stratum", sort=False)]
    both = [runs for runs in strata if runs["level"].nunique() == 2]
    if len(strata) == 1 or not both:
        return (strata if len(strata) == 1 else [frame]), []
    return both, [
        exclude(run, f"its campaign has no usable run of {b if run['level'] == a else a}")
        for runs in strata
        if runs["level"].nunique() < 2
        for _, run in runs.iterrows()
    ]


def varying(frame: pd.DataFrame, columns: Iterable[str]) -> str:
    """Return `batch_size (32, 64), seed (0, 1)` for the columns that differ between runs."""
    texts = []
    for column in columns:
        if column in frame.columns and frame[column].nunique(dropna=False) > 1:
            values = sorted(set(as_text(frame[column])), key=natural)
            if len(values) > 1:
                shown = ", ".join(value or "none" for value in values)
                texts.append(f"{plain_name(column)} ({shown})")
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def exclude(run: Any, reason: str, *, metric: str = "") -> Exclusion:
    """Return the exclusion of a run or, with a metric, of one of its values."""
    fields = (run["run_id"], run["name"], run["level"], run["block_label"])
    return Exclusion(*fields, metric, reason)


def natural(text: str) -> list[tuple[int, float, str]]:
    """Return a sort key that puts 8 before 32, and numbers before words."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts]


def texts_of(frame: pd.DataFrame, column: str) -> pd.Series:
    """Return a column as texts, empty where it has no value, or if there is no such column."""
    return as_text(frame.get(column, pd.Series(index=frame.index, dtype=object)))


def as_text(values: pd.Series) -> pd.Series:
    return values.map(_as_text).astype(object)


def _as_text(value: Any) -> str:
    """Return a value as text, 3.0 as 3: a column with gaps turns whole numbers into floats."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value)) if value.is_integer() else repr(value)
    return "" if value is None or value is pd.NA else repr(value)
