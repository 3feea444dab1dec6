"""What campaigns are called in a report: as in MLflow, short where all share it, and no two alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

# A column beside `campaign`, which holds run ids.
COLUMN = "campaign_name"
PARTS = " · "
ID_LETTERS = 8


def told(names: Mapping[str, str]) -> dict[str, str]:
    """Run id → what the campaign is called. names: run id → its name in MLflow.

    What every name begins with, the study and its preset, is left out. A name that several have gets the beginning of its id.
    """
    parts = {run_id: name.replace(", ", PARTS).split(PARTS) for run_id, name in names.items()}
    if (
        len({one[0] for one in parts.values()}) == 1
        and len(parts) > 1
        and all(len(one) > 1 for one in parts.values())
    ):
        parts = {run_id: one[1:] for run_id, one in parts.items()}
    found = {run_id: PARTS.join(one) for run_id, one in parts.items()}
    count = Counter(found.values())
    return {
        run_id: name if count[name] == 1 else f"{name}{PARTS}{run_id[:ID_LETTERS]}"
        for run_id, name in found.items()
    }


def added(table: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """The table with what its campaigns are called; as it is where none of them has a name."""
    if "campaign" not in table.columns or not (
        mine := {one: names[one] for one in set(table["campaign"]) if one in names}
    ):
        return table
    return table.assign(**{COLUMN: table["campaign"].map(told(mine))})


def in_table(table: pd.DataFrame) -> dict[str, str]:
    """Run id → what the campaign is called in the report: its id where it has no name."""
    if "campaign" not in table.columns:
        return {}
    shown = of_campaigns(table, table["campaign"])
    return {
        run_id: name
        for run_id, name in zip(table["campaign"], shown, strict=True)
        if isinstance(run_id, str) and run_id
    }


def of_campaigns(frame: pd.DataFrame, otherwise: pd.Series) -> pd.Series:
    """What the campaign of every run is called; what stands in `otherwise` where it has no name."""
    if COLUMN not in frame.columns:
        return otherwise
    return frame[COLUMN].where(frame[COLUMN].notna(), otherwise)
