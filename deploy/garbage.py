"""As tracking/garbage.py, for what runs where `tracking` is not (deploy/compose/Dockerfile)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Imports without the garbage collector."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
