"""Reports: what is told, that nothing breaks out of it, and that it needs nothing from outside."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence
from experiments.comparison.judgement import write
from experiments.comparison.report import tables, wording, writing
from tests.experiments.comparison.campaigns import LATENCY, RATE, RSS, STEP, frame, paired
from tracking.records import BETWEEN_WARNINGS

EVIL = '<script>alert("x")</script>|*`_[a](javascript:b)'
KEYS = [
    *(
        "metric",
        "factor",
        "a",
        "b",
        "n_blocks",
        "estimate",
        "kind",
        "ci_low",
        "ci_high",
        "p",
        "p_holm",
        "effect_size",
        "margin",
    ),
    *("equivalent", "minimum_detectable", "verdict", "reason", "stratum"),
    *(
        "probability_within_blocks",
        "minimum_in_family",
        "minimum_for_verdict",
        "family",
        "no_estimate",
    ),
    *("autocorrelation", "autocorrelation_weight", "widening", "widened_by"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of two levels, one run failed, with everything that can be passed."""
    table = frame(
        factors={"tensorflow": 1.2},
        tags={
            "warnings": f"The data are synthetic.{BETWEEN_WARNINGS}RANDOM weights",
            "not_available.cpu_energy": "no RAPL",
        },
    )
    table.loc[table["run_id"] == "c1-7-pytorch", ["status", "outcome", "outcome_reason"]] = [
        "FAILED",
        "failed",
        "killed by SIGKILL",
    ]
    comparison = compare(
        table, baseline="pytorch", outcomes=[STEP, RATE, LATENCY, RSS, "val/bleu4", "energy/joules"]
    )
    folder = tmp_path_factory.mktemp("report")
    path = write(
        Evidence(
            comparison,
            table,
            published=[
                {"what": "throughput", "published": "23 images/s", "metric": RATE},
                {"what": "loss", "published": "3.1", "metric": "val/loss"},
            ],
            source="A paper, 2024",
        ),
        folder,
        "A study",
        notes=["A quiet note."],
    )
    return comparison, folder, path.read_text(encoding="utf-8")


class _Checker(HTMLParser):
    """Collects what a browser would fetch or run, ids, references to them, and whether tags are balanced."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.external: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            value = value or ""
            if name == "id":
                self.ids.append(value)
            if name in (
                "src",
                "href",
                "xlink:href",
                "action",
                "data",
                "srcset",
            ) and not value.startswith("data:"):
                (self.references if value.startswith("#") else self.external).append(value)
            self.references += [f"#{one}" for one in re.findall(r"url\(#([^)]+)\)", value)]
            self.external += [name] if name.startswith("on") else []

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def _checked(text: str) -> _Checker:
    checker = _Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


def test_the_page_is_whole_and_needs_nothing_from_outside(written):
    _, _, text = written
    found = _checked(text)
    assert found.external == []
    assert not {"link", "iframe", "object", "embed", "base"} & set(found.tags)
    assert found.tags.count("script") == 1, "the page's own, which fetches nothing"
    assert not re.search(r"fetch|XMLHttpRequest|import", text[text.index("<script>") :])
    assert "http" not in text
    assert "@import" not in text
    assert len(found.ids) == len(set(found.ids))
    assert {one[1:] for one in found.references} <= set(found.ids)
    assert text.count("data:image/svg+xml;base64,") == 2


def test_json_follows_the_schema(written):
    comparison, folder, _ = written
    found = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    keys = ("rows", "excluded", "environment", "summaries", "frontier", "rests_on", "controls")
    assert list(found) == ["schema_version", *keys, "primary", "looks"]
    assert found["schema_version"] == 1
    assert all(list(row) == KEYS for row in found["rows"])
    assert [row["estimate"] for row in found["rows"]] == [row.estimate for row in comparison.rows]
    assert found["environment"]["pytorch"]["machine"] == "box"


def test_csv_holds_the_rows_unrounded(written):
    comparison, folder, _ = written
    with (folder / "comparison.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["estimate"]) for row in rows] == [row.estimate for row in comparison.rows]
    assert list(rows[0]) == KEYS


def test_figures_are_files_too(written):
    _, folder, _ = written
    names = {path.name for path in (folder / "figures").iterdir()}
    drawn = ("forest", "blocks")
    assert names == {f"{name}.{kind}" for name in drawn for kind in ("svg", "png")}
    assert (folder / "figures" / "forest.png").read_bytes().startswith(b"\x89PNG")
    for path in (folder / "figures").glob("*.svg"):
        ET.fromstring(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """Every text that a run can bring in is hostile; three levels, two strata, one side not measured."""
    table = frame(
        levels=["base", EVIL, "c" * 120],
        blocks=7,
        tags={EVIL: EVIL, "team": EVIL, "warnings": EVIL},
    )
    table["name"] = EVIL
    table["stratum name"] = EVIL
    table[f"custom/{EVIL}"] = 1.5
    table.loc[table["framework"] == EVIL, LATENCY] = np.nan
    table.loc[0, ["status", "outcome", "outcome_reason"]] = ["FAILED", "failed", EVIL]
    comparison = compare(table, baseline="base", strata=["stratum name"])
    folder = tmp_path_factory.mktemp("evil")
    write(Evidence(comparison), folder, EVIL, notes=[EVIL])
    return comparison, folder


def test_nothing_that_a_run_says_breaks_out_of_the_page(evil):
    _, folder = evil
    text = (folder / "report.html").read_text(encoding="utf-8")
    found = _checked(text)
    assert found.tags.count("script") == 1, "the page's own"
    assert "alert" not in text[text.index("<script>") :]
    assert found.external == []


def test_nothing_that_a_run_says_breaks_out_of_the_markdown(evil):
    _, folder = evil
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(javascript", text)


def test_the_terminal_shows_markup_as_text(evil):
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(writing.terminal(evil[0]))
    assert "not comparable" in console.export_text()


def test_of_many_rows_the_terminal_shows_the_headlines_and_says_so():
    table = frame(blocks=7)
    parts = [
        table.assign(**{"team": f"team {at}", "run_id": table["run_id"] + str(at)})
        for at in range(30)
    ]
    comparison = compare(pd.concat(parts, ignore_index=True), strata=("team",), primary=(STEP,))
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(writing.terminal(comparison))
    text = console.export_text()
    assert len(comparison.findings) > writing.MAX_TERMINAL_ROWS
    assert f"(30 of {len(comparison.findings)} rows; all are in the report)" in text
    assert text.count("median training step") == 30


@pytest.mark.parametrize(
    ("b", "said", "style"),
    [
        (1.0, "Median training step: identical (8 blocks).", "alike"),
        (
            1.02,
            "Median training step of b is 1.02× slower than that of a, the same in all 8 blocks; "
            "that is less than the margin of ±3 %.",
            "alike",
        ),
        (
            2.0,
            "Median training step of b is 2.00× slower than that of a, the same in all 8 blocks.",
            "worse",
        ),
    ],
)
def test_what_never_varies_has_no_interval_and_the_colour_of_its_size(b, said, style):
    (found,) = compare(paired([1.0] * 8, [b] * 8)).findings
    assert (wording.sentence(found), tables.style(found)) == (said, style)
    assert wording.effect_interval(found) == ""


@pytest.mark.parametrize(
    ("model", "here"),
    [("m", "pytorch: 32.2 ms; tensorflow: 32.1 ms"), ("resnet18", "another model here")],
)
def test_a_published_figure_of_one_model_has_only_that_models_beside_it(tmp_path, model, here):
    table = frame()
    comparison = compare(table, baseline="pytorch", outcomes=[STEP])
    one = {"what": "step", "published": "9 ms", "metric": STEP, "model": model}
    write(Evidence(comparison, table, published=[one]), tmp_path, "A study", figures=False)
    (row,) = [
        line
        for line in (tmp_path / "report.md").read_text().splitlines()
        if line.startswith("| step | 9 ms")
    ]
    assert here in row
    assert ("pytorch:" in row) == (model == "m")
