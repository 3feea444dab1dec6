"""Names of campaigns in a report: as in MLflow, shortened, and no two alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

# Column of names; `campaign` holds run ids.
COLUMN = "campaign_name"
PARTS = " · "
ID_LETTERS = 8


def distinguish(names: Mapping[str, str]) -> dict[str, str]:
    """Return short names of campaigns by run id.

    The first part, study and preset, is left out if it is the same in all. A name that several
    campaigns have gets the beginning of the run id.

    Args:
        names: Names in MLflow by run id.
    """
    parts = {run_id: name.replace(", ", PARTS).split(PARTS) for run_id, name in names.items()}
    is_same = len({first for first, *_ in parts.values()}) == 1
    if is_same and len(parts) > 1 and all(len(name) > 1 for name in parts.values()):
        parts = {run_id: name[1:] for run_id, name in parts.items()}
    short = {run_id: PARTS.join(name) for run_id, name in parts.items()}
    count = Counter(short.values())
    return {
        run_id: name if count[name] == 1 else f"{name}{PARTS}{run_id[:ID_LETTERS]}"
        for run_id, name in short.items()
    }


def add_names(table: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the table with the names of its campaigns, unchanged if there is no name."""
    if "campaign" not in table.columns:
        return table
    present = {run_id: names[run_id] for run_id in set(table["campaign"]) if run_id in names}
    return (
        table.assign(**{COLUMN: table["campaign"].map(distinguish(present))}) if present else table
    )


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
