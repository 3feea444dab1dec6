"""Of campaigns that do not belong together the newest are taken; whatever is comparable stays together."""

from __future__ import annotations

import pandas as pd

from experiments.comparison.runs import sets
from tests.experiments.comparison.campaigns import frame


def campaigns(**batch_sizes: str) -> pd.DataFrame:
    """One after the other, each with its batch size."""
    tables = []
    for at, (name, size) in enumerate(batch_sizes.items()):
        table = frame(blocks=2, campaign=name, params={"batch_size": size})
        tables.append(table.assign(start_ms=table["start_ms"] + at * 10**9))
    return pd.concat(tables, ignore_index=True)


def test_the_newest_kind_is_all_campaigns_with_its_settings() -> None:
    table = campaigns(a="32", b="64", c="16", d="64")
    found = sets.newest(table, factor="framework")
    assert found.kind is not None
    assert (found.kind.campaigns, found.kind.differs) == (("d", "b"), "batch_size=64")
    assert [(one.campaigns, one.differs) for one in found.others] == [
        (("c",), "batch_size=16"),
        (("a",), "batch_size=32"),
    ]
    assert set(found.table["campaign"]) == {"b", "d"}
    assert len(found.table) == 8


def test_what_belongs_together_stays_whole() -> None:
    alike = campaigns(a="32", b="32")
    for table, asked in (
        (alike, {"factor": "framework"}),
        (campaigns(a="32", b="64"), {"factor": "framework", "strata": ["batch_size"]}),
        (campaigns(a="32", b="64"), {"factor": "framework", "allowed_to_differ": ["batch_size"]}),
        (campaigns(a="32", b="64"), {"factor": "campaign"}),
        (campaigns(a="32"), {"factor": "framework"}),
        (alike.drop(columns="campaign"), {"factor": "framework"}),
    ):
        found = sets.newest(table, **asked)  # type: ignore[arg-type]
        assert found.kind is None
        assert found.table is table


def test_a_campaign_with_one_side_alone_is_never_what_is_taken() -> None:
    table = campaigns(a="32", b="64", c="16")
    table = table[(table["campaign"] != "c") | (table["framework"] == "pytorch")]
    found = sets.newest(table, factor="framework")
    assert found.kind is not None
    assert found.kind.campaigns == ("b",)


def test_runs_without_a_campaign_are_not_left_out_unsaid() -> None:
    table = campaigns(a="32", b="64", c="16")
    table.loc[table["campaign"] == "c", "campaign"] = None
    assert sets.newest(table, factor="framework").kind is None
