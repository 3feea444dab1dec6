"""What is done without the garbage collector."""

from __future__ import annotations

import gc

import pytest

from experiments.cli.commands import compare
from tracking import garbage
from tracking.errors import WrongCall


def test_the_collector_works_again_afterwards_and_where_it_was_off_it_stays_off() -> None:
    with garbage.uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage.uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_comparison_leaves_the_collector_to_whoever_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        assert not gc.isenabled()
        raise WrongCall("no runs")

    monkeypatch.setattr("experiments.cli.compare.compare", refuse)
    with pytest.raises(WrongCall):
        compare.run(compare.Compare())
    assert gc.isenabled()
