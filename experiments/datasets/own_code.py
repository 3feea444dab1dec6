"""A data set that is code of the user's own: a file of Python that is named, and never one that lies beside data."""

from __future__ import annotations

import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from experiments.datasets.labelled.raw import Pictures
from models import own
from tracking.errors import WrongCall


def read(path: Path) -> Pictures:
    """What its `read(folder)` returns. Raises WrongCall, with the line, for a file that fails or returns something else."""
    described = spec_from_file_location(f"evenhand_data_{path.stem}", path)
    if described is None or described.loader is None or not path.is_file():
        raise WrongCall(
            f"data={path}: there is no such file; `evenhand new dataset NAME` writes one to begin with"
        )
    module = module_from_spec(described)
    try:
        with own.time_limit(own.IMPORT_SECONDS):  # read() may well take longer
            described.loader.exec_module(module)
        found = module.read(path.parent)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        where = f", line {lines[-1]}" if lines else ""
        raise WrongCall(f"data={path}{where}: {own.reason(error)}") from error
    if not isinstance(found, Pictures):
        raise WrongCall(f"data={path}: read() returned {type(found).__name__}; it returns Pictures")
    return found


__all__ = ["read"]
