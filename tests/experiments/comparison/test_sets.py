"""Kinds of campaigns in a selection: the newest is compared."""

from __future__ import annotations

import pandas as pd

from experiments.comparison.runs import sets
from tests.experiments.comparison.campaigns import frame


def campaigns(**batch_sizes: str) -> pd.DataFrame:
    """Return campaigns one after the other, each with its batch size."""
    tables = []
    for at, (name, size) in enumerate(batch_sizes.items()):
        table = frame(blocks=2, campaign=name, params={"batch_size": size})
        tables.append(table.assign(start_ms=table["start_ms"] + at * 10**9))
    return pd.concat(tables, ignore_index=True)


def test_newest_kind_has_all_campaigns_of_its_settings() -> None:
    choice = sets.choose_newest(campaigns(a="32", b="64", c="16", d="64"), factor="framework")
    assert choice.kind is not None
    kinds = [(kind.campaigns, kind.differs) for kind in (choice.kind, *choice.others)]
    newest, *others = kinds
    assert newest == (("d", "b"), "batch_size=64")
    assert others == [(("c",), "batch_size=16"), (("a",), "batch_size=32")]
    assert sorted(choice.table["campaign"].unique()) == ["b", "d"]


def test_comparable_runs_stay_together() -> None:
    alike, different = campaigns(a="32", b="32"), campaigns(a="32", b="64")
    without_campaign = campaigns(a="32", b="64", c="16")
    without_campaign.loc[without_campaign["campaign"] == "c", "campaign"] = None
    for table, options in (
        (alike, {}),
        (different, {"strata": ["batch_size"]}),
        (different, {"allowed_to_differ": ["batch_size"]}),
        (different, {"factor": "campaign"}),
        (campaigns(a="32"), {}),
        (alike.drop(columns="campaign"), {}),
        (without_campaign, {}),
    ):
        choice = sets.choose_newest(table, **{"factor": "framework", **options})  # type: ignore[arg-type]
        assert choice.kind is None
        assert choice.table is table


def test_campaign_of_one_side_is_no_kind() -> None:
    table = campaigns(a="32", b="64", c="16")
    table = table[(table["campaign"] != "c") | (table["framework"] == "pytorch")]
    choice = sets.choose_newest(table, factor="framework")
    assert choice.kind is not None
    assert choice.kind.campaigns == ("b",)
