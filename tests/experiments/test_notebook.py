"""`compare` in a notebook: on what MLflow returns, on run ids, on a table; and its result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
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
from tests.experiments.comparison.campaigns import STEP, frame
from tests.experiments.test_compare import campaign_of, store_runs
from tracking.errors import UsageError
from tracking.store import Store

Verdicts = dict[str, tuple[str, int, float]]


@pytest.fixture
def store(place: Place, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return a store of two campaigns: in the first one side is slower, in the second it is not."""
    shutil.copy(empty_store, place.folder / "mlflow.db")
    monkeypatch.chdir(place.folder)
    before = mlflow.get_tracking_uri()
    filled = Store(place.uri)
    for name, factor in (("c1", 1.2), ("c2", 1.0)):
        store_runs(filled, campaign_of(name, factor=factor))
    yield filled
    mlflow.set_tracking_uri(before)


def verdicts(result: Any) -> Verdicts:
    return {row.metric: (row.verdict, row.n_blocks, row.estimate) for row in result.rows}


SLOWER = verdicts(compare(frame(factors={"tensorflow": 1.2})))


def test_result_of_search_runs(store: Store) -> None:
    """As a table and as a list, with the campaign's own run in it."""
    search = partial(mlflow.search_runs, experiment_names=["captioning"])
    assert SLOWER[STEP][:2] == ("slower", 8)
    runs, campaign = search(), store.run_id("c1")
    of_first = (runs["tags.campaign"] == campaign) | (runs["tags.kind"] == "campaign")
    assert verdicts(compare(runs[of_first])) == SLOWER
    condition = f"tags.campaign = '{campaign}'"
    assert verdicts(compare(search(filter_string=condition, output_format="list"))) == SLOWER


def test_run_ids_of_a_campaign_or_of_its_cells(store: Store) -> None:
    campaign = store.run_id("c1")
    assert campaign is not None
    assert verdicts(compare(campaign)) == SLOWER
    cells = [run.run_id for run in store.children(campaign, "captioning")]
    assert verdicts(compare(cells)) == SLOWER
    both = compare([campaign, str(store.run_id("c2"))], outcomes=STEP)
    assert [row.stratum.partition("=")[0] for row in both.rows] == ["campaign", "campaign"]


def tidy(**columns: Any) -> pd.DataFrame:
    return frame(blocks=2).assign(**columns)


@pytest.mark.parametrize(
    ("runs", "options", "part"),
    [
        (pd.DataFrame(), {}, "no runs"),
        ([], {}, "no runs"),
        (7, {}, "mlflow.search_runs()"),
        ([7], {}, "7"),
        (tidy().drop(columns="block"), {}, "block"),
        (tidy(kind="campaign"), {}, "cell"),
        (tidy(status="RUNNING"), {}, "4"),
        (tidy()[["run_id", "framework", "block"]], {}, "metric"),
        (tidy(), {"factor": "colour"}, "colour"),
        (tidy(), {"outcomes": ["train/step_second"]}, f"did you mean {STEP}?"),
        (tidy(), {"outcomes": ["energy/joules"]}, "energy/joules"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_error_is_one_line(runs: Any, options: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError) as error:
        compare(runs, **options)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("store")
def test_unknown_run_id_is_refused() -> None:
    with pytest.raises(UsageError, match="0" * 32):
        compare("0" * 32)


def test_unmeasured_outcome_is_listed() -> None:
    result = compare(tidy(), outcomes=[STEP, "energy/joules"])
    assert result.unmeasured == ("energy/joules",)


def test_notebook_shows_sentences_and_verdicts() -> None:
    result = compare(frame(factors={"tensorflow": 1.2}))
    shown = result._repr_html_()
    assert result.sentences[0] in shown
    assert shown.count("<tr>") == 1 + len(result.rows)
    hostile = compare(frame(("pytorch", "<script>alert()</script>"), blocks=2))
    assert "<script" not in hostile._repr_html_()
    assert list(result.to_frame()["metric"]) == [row.metric for row in result.rows]


def test_figures_by_name() -> None:
    result = compare(frame(factors={"tensorflow": 1.2}))
    assert "blocks" in result.figures
    figure = result.figure(result.figures[0])
    assert figure.name == result.figures[0]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=result.figures[0]):
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
def test_notebook_of_the_docs_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = nbformat.read(page, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert {"text/html", "image/png"} <= kinds
