"""The only module that imports pyarrow: tables of raw values as Parquet files, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Columns of equal length, of text, numbers or truth values; what is None throughout is a number that is missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    missing = {
        name: pa.nulls(len(values), pa.float64())
        for name, values in columns.items()
        if not any(one is not None for one in values)
    }
    pq.write_table(pa.table({**columns, **missing}), path)


def read(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Those of the named columns that the file has. Raises OSError or ValueError for a file that is no Parquet."""
    import pyarrow.parquet as pq

    known = set(pq.read_schema(path).names)
    found: dict[str, list[Any]] = pq.read_table(
        path, columns=[name for name in columns if name in known]
    ).to_pydict()
    return found
