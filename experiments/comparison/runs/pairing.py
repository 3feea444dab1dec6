"""What may be compared with what: usable runs, pairs inside blocks, and a reason for everything that is left out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from experiments.comparison.runs import names as names_
from experiments.comparison.runs import nature
from experiments.config import settings as settings_
from experiments.config import variation
from tracking.errors import WrongCall
from tracking.records import RepeatCause

CONTROL, DISTURBED = "tags.control", "tags.disturbed"
INSIDE_A_BLOCK = (
    *(("machine", "machines"), ("tags.environment", "environments"), ("tags.commit", "commits")),
    ("tags.turns", "turns"),  # cells that took turns, but not with each other
)
NAMED = 4
REPEATS, CAUSE = "tags.repeats", "tags.repeats.cause"
# The columns that `Runs` adds.
OWN = frozenset({"level", "group", "stratum", "pair", "apart", "block_label", "sequence"})


class Cause(StrEnum):
    """Why a run, or one of its values, is left out."""

    RUNNING = "running"
    NOT_EQUAL = "not_equal"
    FAILED = "failed"
    NO_LEVEL = "no_level"
    NO_BLOCK = "no_block"
    REPEATED = "repeated"
    NO_PARTNER = "no_partner"
    UNLIKE_PARTNER = "unlike_partner"
    ONE_SIDED_CAMPAIGN = "one_sided_campaign"
    NO_VALUE = "no_value"


@dataclass(frozen=True)
class Exclusion:
    """Something left out, and why. An empty `metric` means the whole run.

    code: see `RepeatCause`; empty for other reasons. cause: for code, as `detail`, which is what the run says itself.
    """

    run_id: str
    name: str
    level: str
    block: str
    metric: str
    reason: str
    code: str = ""
    cause: Cause = Cause.FAILED
    detail: str = ""


@dataclass(frozen=True)
class Runs:
    """Usable runs, a row each, and what was left out.

    The frame has, beside the table's columns: `level`, `stratum`, `pair` (block within campaign), `block_label`, and `sequence`
    (1, 2, … in the order in which the runs began). `group`: the stratum that was asked for; where several campaigns are in it,
    each of them is a stratum.
    """

    frame: pd.DataFrame
    levels: tuple[str, ...]
    excluded: tuple[Exclusion, ...]


def column_of(table: pd.DataFrame, name: str) -> str:
    """The column of a factor or stratum: as given, else among params, else among tags. Raises WrongCall naming what there is."""
    for column in (name, f"params.{name}", f"tags.{name}", name.removeprefix("tags.")):
        if column in table.columns:
            return column
    have = sorted(
        str(c) for c in table.columns if not str(c).startswith("tags.mlflow") and "/" not in str(c)
    )
    raise WrongCall(f"no column '{name}' in the runs; have {', '.join(have)}")


def control_names(table: pd.DataFrame) -> pd.Series:
    """Which control every run belongs to; empty for the runs that a verdict is asked of."""
    if CONTROL not in table.columns:
        return pd.Series("", index=table.index)
    return table[CONTROL].fillna("").astype(str)


def without_controls(table: pd.DataFrame) -> pd.DataFrame:
    """The runs that a verdict is asked of."""
    return table[control_names(table) == ""] if CONTROL in table.columns else table


def are_cells(frame: pd.DataFrame) -> pd.Series:
    """Which rows are cells; foreign runs, which do not say what they are, are taken for such."""
    if "kind" not in frame.columns:
        return pd.Series(data=True, index=frame.index)
    return frame["kind"].isna() | frame["kind"].isin(["cell", ""])


def usable(table: pd.DataFrame, *, factor: str, strata: Sequence[str]) -> Runs:
    """Finished cell runs with a level and a block; of a cell that ran twice, the later one. WrongCall without any.

    Campaigns are strata where several of them hold what is compared: what a campaign does to one side, all its blocks share.
    """
    if table.empty:
        raise WrongCall(
            "no runs to compare: the selection is empty; widen the experiment, campaign or filter"
        )
    if table.columns.has_duplicates:
        raise WrongCall(
            f"column {table.columns[table.columns.duplicated()][0]} is in the table twice"
        )
    frame = table.reset_index(drop=True)
    frame = frame[are_cells(frame)]
    if frame.empty:
        raise WrongCall("no runs to compare: none of those selected is a cell run (tag kind=cell)")
    frame = frame.assign(**_own_columns(frame, factor, strata))
    # the copy puts columns of a kind side by side, texts as well: rows are taken many times from here on
    texts = {name: object for name, kind in frame.dtypes.items() if kind == "str"}
    frame = (frame.astype(texts) if texts else frame).copy()
    causes = _causes(frame, factor)
    unusable = np.array([cause is not None for cause in causes])
    excluded = [
        _exclusion(run, *cause)
        for (_, run), cause in zip(frame[unusable].iterrows(), filter(None, causes), strict=True)
    ]
    kept, repeated = _latest(frame[~unusable])
    kept = kept.assign(group=kept["stratum"])
    if "campaign" not in map(plain_name, (factor, *strata)):
        kept = _by_campaign(kept)
    # a side whose runs all failed is told, not forgotten
    levels = sorted(set(frame["level"]) - {""}, key=natural)
    return Runs(kept, tuple(levels), tuple(sorted([*excluded, *repeated], key=_order)))


def plain_name(name: str) -> str:
    """What a column is called without its kind."""
    return name.removeprefix("params.").removeprefix("tags.")


def _by_campaign(frame: pd.DataFrame) -> pd.DataFrame:
    """Campaigns as strata, in every stratum in which several of them hold more than one level."""
    if (
        "campaign" not in frame.columns
        or frame["apart"].any()
        or frame["campaign"].nunique(dropna=False) < 2
    ):
        return frame
    campaigns = as_text(frame["campaign"])
    held = frame.groupby(["stratum", campaigns])["level"].nunique() > 1
    several = held.groupby(level=0).sum() > 1
    split = frame["stratum"].map(several)
    names = "campaign=" + names_.of_campaigns(
        frame, _shortened(campaigns).where(campaigns != "", "none")
    )
    before = frame["stratum"].where(frame["stratum"] == "", frame["stratum"] + ", ")
    return frame.assign(stratum=frame["stratum"].where(~split, before + names))


def _own_columns(frame: pd.DataFrame, factor: str, strata: Sequence[str]) -> dict[str, Any]:
    nothing = pd.Series("", index=frame.index, dtype=object)
    names = {
        name: as_text(frame[name]) if name in frame.columns else nothing + frame.index.astype(str)
        for name in ("run_id", "name")
    }
    blocks = as_text(frame["block"]) if "block" in frame.columns else nothing
    campaigns = as_text(frame["campaign"]) if "campaign" in frame.columns else nothing
    stratum = nothing
    for name in strata:
        stratum = (
            stratum
            + ("" if name == strata[0] else ", ")
            + f"{name.split('.')[-1]}="
            + _called(frame, column_of(frame, name))
        )
    level = _called(frame, column_of(frame, factor))
    pair = campaigns + "·" + blocks
    apart = nature.is_apart(factor) and _levels_have_campaigns_of_their_own(campaigns, level)
    if apart:
        pair = _in_order_of_time(frame, pair, level, stratum)
    return {
        **names,
        "level": level,
        "stratum": stratum,
        "pair": pair.where(blocks != "", ""),
        "apart": apart,
        "block_label": (
            _shortened(campaigns) + "·" + blocks if campaigns.nunique() > 1 else blocks
        ).where(blocks != "", ""),
        "sequence": _sequence(frame.assign(run_id=names["run_id"])),
    }


def _called(frame: pd.DataFrame, column: str) -> pd.Series:
    """A column as texts; campaigns by their names."""
    texts = as_text(frame[column])
    return names_.of_campaigns(frame, texts) if column == "campaign" else texts


def _shortened(names: pd.Series) -> pd.Series:
    """The first six letters of every name, or as many more as it takes to tell all of them apart."""
    different, length = set(names), 6
    while len({name[:length] for name in different}) < len(different):
        length += 1
    return names.str[:length]


def _levels_have_campaigns_of_their_own(campaigns: pd.Series, level: pd.Series) -> bool:
    """Whether no campaign holds more than one level: then no block holds both sides."""
    known = (campaigns != "") & (level != "")
    return bool(
        known.any()
        and level[known].nunique() > 1
        and (level[known].groupby(campaigns[known]).nunique() == 1).all()
    )


def _in_order_of_time(
    frame: pd.DataFrame, pair: pd.Series, level: pd.Series, stratum: pd.Series
) -> pd.Series:
    """The first block of one level with the first of the other, and so on: they share no time, but as many runs go in."""
    began = (
        pd.to_numeric(frame["start_ms"], errors="coerce")
        if "start_ms" in frame.columns
        else pd.Series(0, index=frame.index)
    )
    first = began.groupby([stratum, level, pair]).transform("min")
    ranks = pd.DataFrame(
        {"stratum": stratum, "level": level, "first": first, "pair": pair}
    ).drop_duplicates()
    ranks = ranks.sort_values(["first", "pair"])
    ranks["rank"] = ranks.groupby(["stratum", "level"]).cumcount() + 1
    numbered = ranks.set_index(["stratum", "level", "pair"])["rank"]
    keys = pd.MultiIndex.from_arrays([stratum, level, pair])
    return pd.Series(
        numbered.reindex(keys).astype(int).astype(str).to_numpy(), index=frame.index, dtype=object
    )


def _sequence(frame: pd.DataFrame) -> pd.Series:
    """1, 2, … in the order in which runs began; blocks and run ids stand in where the table has no times."""
    by = [
        c
        for c in ("start_ms", "campaign", "block", "order_in_block", "run_id")
        if c in frame.columns
    ]
    counted = {
        c: pd.to_numeric(frame[c], errors="coerce")
        for c in by
        if c in ("start_ms", "block", "order_in_block")
    }
    named = {c: as_text(frame[c]) for c in by if c not in counted}
    ordered = pd.DataFrame(counted | named, index=frame.index).sort_values(by)
    return pd.Series(range(1, len(frame) + 1), index=ordered.index).reindex(frame.index)


def _causes(frame: pd.DataFrame, factor: str) -> list[tuple[Cause, str, str] | None]:
    """Return why each run cannot be used: the code, the reason and what the run says of it; None where it can."""

    def column(name: str, otherwise: str) -> list[str]:
        return (
            [text or otherwise for text in as_text(frame[name])]
            if name in frame.columns
            else [otherwise] * len(frame)
        )

    told = (("status", "FINISHED"), ("outcome", "ok"), ("outcome_reason", ""))
    columns: list[list[str]] = [
        *(column(*one) for one in told),
        list(frame["level"]),
        list(frame["pair"]),
    ]
    return [_cause(run, factor) for run in zip(*columns, strict=True)]


def _cause(run: Sequence[str], factor: str) -> tuple[Cause, str, str] | None:
    status, outcome, told, level, pair = run
    why = f": {told}" if told else ""
    if status in ("RUNNING", "SCHEDULED"):
        return Cause.RUNNING, f"still {status.lower()}", ""
    if outcome != "ok":
        return (
            Cause.NOT_EQUAL if outcome == Cause.NOT_EQUAL else Cause.FAILED,
            f"{outcome.replace('_', ' ')}{why}",
            told,
        )
    if status != "FINISHED":
        return Cause.FAILED, f"{status.lower()}{why}", told
    if not level:
        return Cause.NO_LEVEL, f"has no {factor}", ""
    return None if pair else (Cause.NO_BLOCK, "has no block: nothing to pair it with", "")


def _latest(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Exclusion]]:
    """One run a cell: where settings, block and level are the same, the one that began last.

    Settings are all params, not their hash alone: runs of others have none, and ours is the same for all that is compared.
    """
    same = [
        "stratum",
        "pair",
        "level",
        *(c for c in ("settings_hash", "model", "dataset") if c in frame.columns),
    ]
    if not frame.duplicated(same).any():
        return frame, []
    free = _immaterial(frame)
    same += [
        c
        for c in frame.columns
        if c.startswith("params.") and c.removeprefix("params.") not in free
    ]
    repeated = (
        frame[[*same, "sequence"]]
        .sort_values("sequence")
        .duplicated(same, keep="last")
        .reindex(frame.index)
    )
    later = {
        name: _of_last_run(frame, same, name) for name in (REPEATS, CAUSE) if name in frame.columns
    }
    left_out = frame[repeated].assign(**later)
    return frame[~repeated], [_replaced(run) for _, run in left_out.iterrows()]


def _of_last_run(frame: pd.DataFrame, same: Sequence[str], column: str) -> pd.Series:
    """Return a column of the last run of the same cell, for every run."""
    ordered = frame.sort_values("sequence")
    return ordered.groupby(list(same), dropna=False)[column].transform(
        lambda values: values.iloc[-1]
    )


def _replaced(run: Any) -> Exclusion:
    """Return a run that ended well and is not used; REPEATS and CAUSE are those of the run that is."""
    cause = _as_text(run.get(CAUSE, ""))
    why = _as_text(run.get(REPEATS if cause == RepeatCause.ODD_BLOCK else DISTURBED, ""))
    reason = "; ".join(filter(None, [why, "a later run of the same cell is used instead"]))
    code = cause or (RepeatCause.BUSY_MACHINE if why else "")
    return replace(_exclusion(run, Cause.REPEATED, reason), code=code)


def incomparable(frame: pd.DataFrame, factor: str, allowed_to_differ: Sequence[str] = ()) -> str:
    """Why the runs of one stratum must not be pooled: settings or machines differ. Empty if nothing speaks against it.

    allowed_to_differ: settings that differ with the factor by its nature, or that a study calls immaterial.
    """
    plain = plain_name(factor)
    by_nature = nature.differs_by(factor, frame.columns)
    columns = settings_of(frame, factor, (), allowed_to_differ)
    if found := _varying(frame, columns):
        differing = [column for column in columns if _varying(frame, [column])]
        instead = (
            "".join(_in_one_campaign(frame, column) for column in differing)
            if nature.is_apart(factor)
            else ""
        )
        remedy = instead if len(differing) == 1 and instead else "select one, or name it in strata"
        return f"settings differ apart from {factor}: {found}; {remedy}"
    if plain == "framework" and (found := _varying(frame, ["settings_hash"])):
        return f"settings differ apart from {factor}: {found}; select one campaign"
    if "machine" not in by_nature and (found := _varying(frame, ["machine"])):
        return f"runs of several machines are not pooled: {found}; name it in strata"
    rest = [
        c
        for c in nature.versions_and_hardware(factor, frame.columns)
        if plain_name(c) not in allowed_to_differ
    ]
    if found := _varying(frame, rest) or _varying_inside(frame, by_nature & {"tags.environment"}):
        return f"versions or hardware differ apart from {factor}: {found}; select runs in which only {factor} differs"
    if frame.duplicated(["pair", "level"]).any():
        return f"a block holds several runs of one {factor}; select one kind of run, or name what differs in strata"
    return ""


def settings_of(
    frame: pd.DataFrame, factor: str, strata: Sequence[str], allowed_to_differ: Sequence[str]
) -> list[str]:
    """The columns in which runs that are pooled must be the same: model, data set, and settings apart from the factor."""
    named = {plain_name(factor), *map(plain_name, strata), *allowed_to_differ}
    free = _immaterial(frame) | named
    settings = [
        c
        for c in frame.columns
        if c.startswith("params.") and c.removeprefix("params.") not in free
    ]
    return [
        *(c for c in ("framework", "model", "dataset") if c in frame.columns and c not in named),
        *sorted(settings),
    ]


def _varying_inside(frame: pd.DataFrame, columns: Iterable[str]) -> str:
    """As `_varying`, of what differs inside a level: that is not by the factor."""
    return next(
        (found for _, runs in frame.groupby("level") if (found := _varying(runs, columns))), ""
    )


def _immaterial(frame: pd.DataFrame) -> frozenset[str]:
    """Return the names of settings in which runs may differ.

    They are those of a campaign that no cell gets, and lists of what is compared (`batch_sizes`)
    beside the value of each run (`batch_size`).
    """
    columns = {str(column) for column in frame.columns if str(column).startswith("params.")}
    lists = {
        column.removeprefix("params.")
        for column in columns
        if _lists_values_of(frame, column, column[:-1])
    }
    return settings_.immaterial(settings_.CampaignSettings) | {"framework", *lists}


def _lists_values_of(frame: pd.DataFrame, column: str, singular: str) -> bool:
    """Whether a setting names, in every run, the run's value of the setting in the singular among others."""
    if not column.endswith("s") or singular not in frame.columns:
        return False
    runs = frame[[column, singular]].dropna().astype(str)
    return len(runs) > 0 and all(
        value in text.split(",") for text, value in runs.itertuples(index=False)
    )


def pairs(
    frame: pd.DataFrame, a: str, b: str, factor: str
) -> tuple[pd.DataFrame, pd.DataFrame, list[Exclusion], str]:
    """Runs of a and of b, row by row from the same block, what found no partner, and why no pair is left, where none is.

    Machine, environment, commit and turns are those of the block, unless they differ by the factor's nature.
    """
    # by positions: frames of hundreds of columns are taken apart once, not with every step
    labels, levels = frame["pair"].to_numpy(), frame["level"].to_numpy()
    at = {
        level: {str(labels[row]): row for row in np.flatnonzero(levels == level)}
        for level in (a, b)
    }
    common = sorted(at[a].keys() & at[b].keys(), key=natural)
    excluded = []
    for level, other in ((a, b), (b, a)):
        alone = [frame.iloc[row] for label, row in at[level].items() if label not in at[other]]
        excluded += [
            _exclusion(
                run, Cause.NO_PARTNER, f"block {run['block_label']} has no usable run of {other}"
            )
            for run in alone
        ]
    first, second = (
        np.array([at[level][label] for label in common], dtype=int) for level in (a, b)
    )
    alike, differing = np.ones(len(common), dtype=bool), dict[str, list[str]]()
    by_nature = nature.differs_by(factor, frame.columns)
    for column, what in INSIDE_A_BLOCK:
        if column not in frame.columns or column in by_nature:
            continue
        known, values = frame[column].notna().to_numpy(), frame[column].to_numpy(dtype=object)
        unlike = [
            block
            for block, (one, two) in enumerate(zip(first, second, strict=True))
            if alike[block] and known[one] and known[two] and values[one] != values[two]
        ]
        for block in unlike:
            one, two = _told_apart(values[first[block]], values[second[block]])
            reason = f"{what} differ inside the block ({one}, {two})"
            differing.setdefault(what, []).append(f"{a} {one}, {b} {two}")
            excluded += [
                _exclusion(frame.iloc[side[block]], Cause.UNLIKE_PARTNER, reason)
                for side in (first, second)
            ]
        alike[unlike] = False
    instead = _in_one_campaign(frame, column_of(frame, factor), (a, b))
    why = "" if alike.any() else _unpaired(a, b, differing, instead)
    return frame.iloc[first[alike]], frame.iloc[second[alike]], excluded, why


def _told_apart(one: Any, two: Any) -> tuple[str, ...]:
    """Two texts that differ; commits as short as Git shows them, as long as that tells them apart."""
    whole = (_as_text(one), _as_text(two))
    short = tuple(re.sub(r"^([0-9a-f]{7})[0-9a-f]{33}(?![0-9a-f])", r"\1", text) for text in whole)
    return short if short[0] != short[1] else whole


def _in_one_campaign(frame: pd.DataFrame, column: str, values: Sequence[str] = ()) -> str:
    """Return how two values of a setting are measured in the same blocks; empty for a column that is no cell's setting."""
    name = column.removeprefix("params.")
    if name == column or name in _immaterial(frame):
        return ""
    texts = values or sorted(set(as_text(frame[column])), key=natural)
    return f"measure both in one campaign: {variation.arguments(name, texts)}"


def _unpaired(a: str, b: str, differing: Mapping[str, Sequence[str]], instead: str) -> str:
    """differing: what differs inside blocks -> how, a text a block. instead: how both are measured in the same blocks."""
    if not differing:
        return "; ".join(
            filter(
                None,
                (
                    f"no block holds both {a} and {b}",
                    instead or "runs of one campaign are paired by block",
                ),
            )
        )
    told = []
    for what, blocks in differing.items():
        how = Counter(blocks).most_common()
        more = f" and {len(how) - 1} more" if len(how) > 1 else ""
        told.append(
            f"{what} differ inside {len(blocks)} block{'' if len(blocks) == 1 else 's'} ({how[0][0]}{more})"
        )
    return f"no block holds both {a} and {b} under the same conditions: {'; '.join(told)}"


def inside_strata(
    frame: pd.DataFrame, a: str, b: str
) -> tuple[list[pd.DataFrame], list[Exclusion]]:
    """The runs of one group stratum by stratum; and those of campaigns with only one of two levels, where others have both."""
    parts = [runs for _, runs in frame.groupby("stratum", sort=False)]
    if len(parts) == 1:
        return parts, []
    both = [runs for runs in parts if runs["level"].nunique() == 2]
    other = {a: b, b: a}
    alone = [
        run for runs in parts if both and runs["level"].nunique() < 2 for _, run in runs.iterrows()
    ]
    why = "its campaign has no usable run of "
    return both or [frame], [
        _exclusion(run, Cause.ONE_SIDED_CAMPAIGN, why + other[run["level"]]) for run in alone
    ]


def _varying(frame: pd.DataFrame, columns: Iterable[str]) -> str:
    """`batch_size (32, 64), seed (0, 1)` for columns that are not the same in all runs."""
    found = []
    for column in columns:
        if column in frame.columns and frame[column].nunique(dropna=False) > 1:
            values = sorted(set(as_text(frame[column])), key=natural)
            if len(values) > 1:
                found.append(
                    f"{plain_name(column)} ({', '.join(value or 'none' for value in values)})"
                )
    return ", ".join(found[:NAMED]) + (
        f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    )


def without_value(run: Any, metric: str, reason: str) -> Exclusion:
    """One value of a run that is otherwise used."""
    return _exclusion(run, Cause.NO_VALUE, reason, metric=metric)


def _exclusion(
    run: Any, cause: Cause, reason: str, detail: str = "", *, metric: str = ""
) -> Exclusion:
    return Exclusion(
        run["run_id"],
        run["name"],
        run["level"],
        run["block_label"],
        metric,
        reason,
        cause=cause,
        detail=detail,
    )


def _order(exclusion: Exclusion) -> tuple[Any, ...]:
    return exclusion.metric, natural(exclusion.block), exclusion.level, exclusion.run_id


def natural(text: str) -> list[tuple[int, float, str]]:
    """A sort key that puts 8 before 32, and numbers before words."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts]


def as_text(values: pd.Series) -> pd.Series:
    """A column as texts."""
    return values.map(_as_text).astype(object)


def _as_text(value: Any) -> str:
    """Text of a value; 3.0 reads 3, since a column with gaps turns whole numbers into floats."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return "" if math.isnan(value) else str(int(value)) if value.is_integer() else repr(value)
    return "" if value is None or value is pd.NA else repr(value)
