"""Tables of raw values as Parquet files: the only module that imports pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length; one that is None throughout holds missing numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    missing = {
        name: pa.nulls(len(values), pa.float64())
        for name, values in columns.items()
        if all(value is None for value in values)
    }
    pq.write_table(pa.table({**columns, **missing}), path)


def read(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return the named columns that a file has. Raises OSError or ValueError for another file."""
    import pyarrow.parquet as pq

    present = set(pq.read_schema(path).names)
    selected = [name for name in columns if name in present]
    table: dict[str, list[Any]] = pq.read_table(path, columns=selected).to_pydict()
    return table
