"""`compare` as a notebook calls it: on what MLflow returns, on run ids, on a table; and what can be done with the result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from tests.conftest import ROOT, Place
from tests.experiments.comparison.campaigns import RATE, STEP, frame
from tests.experiments.test_compare import tell, with_campaign
from tracking.errors import UsageError
from tracking.store import Store

Verdicts = dict[str, tuple[str, int, float]]


@pytest.fixture
def store(place: Place, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Two campaigns: in the first one side is slower, in the second it is not."""
    shutil.copy(empty_store, place.folder / "mlflow.db")
    monkeypatch.chdir(place.folder)
    before = mlflow.get_tracking_uri()
    found = Store(place.uri)
    for name, factor in (("c1", 1.2), ("c2", 1.0)):
        of_campaign = with_campaign(name, factor)
        tell(
            found,
            [replace(run, tags={**run.tags, "campaign": f"run:{name}"}) for run in of_campaign],
        )
    yield found
    mlflow.set_tracking_uri(before)


def verdicts(result: Any) -> Verdicts:
    return {row.metric: (row.verdict, row.n_blocks, row.estimate) for row in result.rows}


SLOWER = verdicts(compare(frame(factors={"tensorflow": 1.2})))


def test_what_search_runs_returns(store: Store) -> None:
    """As a table and as a list, with the campaign's own run in it: the same verdicts as of the runs that we read."""
    search = partial(mlflow.search_runs, experiment_names=["captioning"])
    assert SLOWER[STEP][:2] == ("slower", 8)
    found = search()
    of_first = found[
        (found["tags.campaign"] == store.run_id("c1")) | (found["tags.kind"] == "campaign")
    ]
    assert verdicts(compare(of_first)) == SLOWER
    condition = f"tags.campaign = '{store.run_id('c1')}'"
    assert verdicts(compare(search(filter_string=condition, output_format="list"))) == SLOWER


def test_run_ids_of_a_campaign_or_of_its_cells(store: Store) -> None:
    campaign = store.run_id("c1")
    assert campaign is not None
    assert verdicts(compare(campaign)) == SLOWER
    cells = [run.run_id for run in store.children(campaign, "captioning")]
    assert verdicts(compare(cells)) == SLOWER
    both = compare([campaign, str(store.run_id("c2"))], outcomes=STEP)
    assert [row.stratum.partition("=")[0] for row in both.rows] == ["campaign", "campaign"]


def tidy(**changed: Any) -> pd.DataFrame:
    return frame(blocks=2).assign(**changed)


@pytest.mark.parametrize(
    ("given", "named", "message"),
    [
        (pd.DataFrame(), {}, "no runs to compare: the selection is empty"),
        ([], {}, "no runs to compare: the selection is empty"),
        (7, {}, "int holds no runs; give what mlflow.search_runs() returns, run ids, or a table"),
        ([7], {}, "7 is no run; give what"),
        (tidy().drop(columns="block"), {}, "no run says its block"),
        (tidy(kind="campaign"), {}, "none of those selected is a cell run"),
        (tidy(status="RUNNING"), {}, "none of the 4 runs can be used: still running (4)"),
        (
            tidy()[["run_id", "framework", "block"]],
            {},
            "have no metric to compare; metrics are columns of numbers",
        ),
        (tidy(), {"factor": "colour"}, "no column 'colour' in the runs"),
        (
            tidy(),
            {"outcomes": "throughput"},
            f"no run has a metric 'throughput'; did you mean {RATE}?",
        ),
        (
            tidy(),
            {"outcomes": ["train/step_second"]},
            f"no run has a metric 'train/step_second'; did you mean {STEP}?",
        ),
        (
            tidy(),
            {"outcomes": ["energy/joules"]},
            "have no metric to compare: none has energy/joules",
        ),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_what_cannot_be_compared_is_one_line(
    given: Any, named: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as told:
        compare(given, **named)
    assert message in str(told.value)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.usefixtures("store")
def test_a_run_id_that_there_is_not() -> None:
    with pytest.raises(UsageError, match=f"no run {'0' * 32}"):
        compare("0" * 32)


def test_an_outcome_that_could_have_been_measured_is_told_as_missing() -> None:
    result = compare(tidy(), outcomes=[STEP, "energy/joules"])
    assert result.unmeasured == ("energy/joules",)


def test_a_notebook_shows_sentences_and_verdicts() -> None:
    result = compare(frame(factors={"tensorflow": 1.2}))
    assert any("slower than pytorch" in one for one in result.sentences)
    shown = result._repr_html_()
    assert result.sentences[0] in shown
    assert shown.count("<tr>") == 1 + len(result.rows)
    assert (
        "<script"
        not in compare(frame(("pytorch", "<script>alert()</script>"), blocks=2))._repr_html_()
    )
    assert list(result.to_frame()["metric"]) == [row.metric for row in result.rows]


def test_figures_by_name() -> None:
    result = compare(frame(factors={"tensorflow": 1.2}))
    assert "blocks" in result.figures
    figure = result.figure(result.figures[0])
    assert figure.name == result.figures[0]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(
        UsageError, match=rf"no figure 'forrest' of this comparison; have {result.figures[0]}"
    ):
        result.figure("forrest")


def test_saved_files_are_those_of_the_command(tmp_path: Path) -> None:
    table = frame(factors={"tensorflow": 1.2})
    spec, options = (
        ComparisonSpec(baseline="tensorflow"),
        ReportOptions("Comparison", figures=False),
    )
    answer(spec, table, tmp_path / "command", options, lambda _: [])
    path = compare(table, baseline="tensorflow").save(tmp_path / "notebook", figures=False)
    assert path == tmp_path / "notebook" / "report.html"
    for name in ("report.html", "report.md", "comparison.csv", "comparison.json"):
        assert (path.parent / name).read_text() == (tmp_path / "command" / name).read_text()


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").glob("*.ipynb")), ids=lambda page: page.name
)
def test_a_notebook_of_the_docs_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = nbformat.read(page, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    told = [
        kind
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        for kind in output.get("data", ())
    ]
    assert {"text/html", "image/png"} <= set(told)
