"""What is imported without the garbage collector: here, and in the guard's own copy."""

from __future__ import annotations

import gc

from deploy import imports as of_the_guard
from tracking import imports


def test_the_collector_works_again_afterwards_and_where_it_was_off_it_stays_off() -> None:
    for one in (imports, of_the_guard):
        with one.uncollected():
            assert not gc.isenabled()
        assert gc.isenabled()
    gc.disable()
    try:
        with imports.uncollected():
            pass
        assert not gc.isenabled(), "`compare` has switched it off for its whole process"
    finally:
        gc.enable()
