"""Names of campaigns in a report: those of their runs in MLflow, and no two alike."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import pandas as pd

# Column of names; `campaign` holds run ids.
COLUMN = "campaign_name"
PARTS = " · "
ID_LETTERS = 8


def distinguish(names: Mapping[str, str], start_ms: Mapping[str, float]) -> dict[str, str]:
    """Return different names of campaigns by run id.

    A name that several campaigns have gets the time of the start, or the beginning of the run id
    where they started in the same minute.

    Args:
        names: Names in MLflow by run id.
        start_ms: Times of the start by run id.
    """

    def add(parts: Mapping[str, str], part: Callable[[str], str]) -> dict[str, str]:
        count = Counter(parts.values())
        return {
            run_id: name if count[name] == 1 else f"{name}{PARTS}{part(run_id)}"
            for run_id, name in parts.items()
        }

    def start(run_id: str) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(start_ms[run_id] / 1_000))

    return add(add(names, start), lambda run_id: run_id[:ID_LETTERS])


def add_names(table: pd.DataFrame, campaigns: Iterable[tuple[str, str, float]]) -> pd.DataFrame:
    """Return the table with the names of its campaigns, unchanged if there is no name.

    Args:
        table: Of runs.
        campaigns: Run id, name in MLflow and start in milliseconds of each campaign.
    """
    if "campaign" not in table.columns:
        return table
    ids = set(table["campaign"])
    present = [campaign for campaign in campaigns if campaign[0] in ids]
    names = distinguish(
        {run_id: name for run_id, name, _ in present},
        {run_id: start_ms for run_id, _, start_ms in present},
    )
    return table.assign(**{COLUMN: table["campaign"].map(names)}) if names else table


def names_by_run(table: pd.DataFrame) -> dict[str, str]:
    """Return the names of campaigns in the report by run id; without a name, the run id."""
    if "campaign" not in table.columns:
        return {}
    campaigns = zip(table["campaign"], campaign_names(table, table["campaign"]), strict=True)
    return {run_id: name for run_id, name in campaigns if isinstance(run_id, str) and run_id}


def campaign_names(frame: pd.DataFrame, otherwise: pd.Series) -> pd.Series:
    """Return the name of each run's campaign; the value in `otherwise` if it has none."""
    if COLUMN not in frame.columns:
        return otherwise
    return frame[COLUMN].where(frame[COLUMN].notna(), otherwise)
