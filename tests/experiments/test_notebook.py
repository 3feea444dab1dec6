"""`compare` as a notebook calls it: on what MLflow returns, on run ids, on a table; and what can be done with the result."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import nbformat
import pandas as pd
import pytest
from mlflow.entities import Metric, Param
from nbclient import NotebookClient

from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from experiments.comparison.runs import given
from experiments.comparison.runs.query import table
from tests.conftest import ROOT, Place
from tests.experiments.comparison.campaigns import RATE, STEP, frame, runs
from tests.experiments.test_compare import tell, with_campaign
from tracking.errors import WrongCall
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


IMPORTED = """
import logging, os, warnings
import mlflow, optuna
names = ["mlflow", "alembic", "optuna"]
def state():
    filters = [row for row in warnings.filters if "optuna" in row[2].__module__]
    return dict(os.environ), [logging.getLogger(name).level for name in names], filters
before = state()
import experiments.comparison.notebook, tracking.store
print(state() == before)
before = state()
from experiments.cli.main import main
main(["--version"])
import experiments.sweep.search
print(os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"], state()[2] == before[2])
"""


def test_importing_it_leaves_the_settings_of_mlflow_and_python_alone() -> None:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=ROOT, env=kept, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "True"
    assert done.stdout.split()[-2:] == ["0", "True"], (
        "commands set what they need; the search sets no filter for good"
    )


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


def test_runs_of_an_earlier_version_are_compared_with_those_of_this_one(store: Store) -> None:
    """Half of a campaign logged with every tag alone, as before: the same verdicts, whoever reads them."""
    own = {
        "environment": "e",
        "commit": "c",
        "not_available.energy/joules": "no counter",
        "version.torch": "2.1",
    }
    place, client = store.experiment_id("halves"), store._client
    for run in runs(factors={"tensorflow": 1.2}, campaign="c3", tags=own):
        if int(run.tags["block"]) % 2:
            tell(store, [run], "halves")
            continue
        made = client.create_run(place, run.start_ms, dict(run.tags), run.name).info.run_id
        points = [Metric(key, value, run.start_ms, 0) for key, value in run.metrics.items()]
        client.log_batch(made, points, [Param(key, text) for key, text in run.params.items()])
        client.set_terminated(made, end_time=run.end_ms)
    wanted = compare(table(runs(factors={"tensorflow": 1.2}, campaign="c3", tags=own)))
    read, searched = table(store.runs("halves")), mlflow.search_runs(experiment_names=["halves"])
    for found in (read, given.table(searched)):
        for name in ("commit", "not_available.energy/joules", "version.torch", "environment"):
            assert set(found[f"tags.{name}"]) == {own[name]}
    for found in (read, searched):
        assert verdicts(compare(found)) == verdicts(wanted)
    changed = read.assign(**{"tags.environment": ["e", "f"] * 8})
    assert any("environments" in line for line in compare(changed).warnings)
    assert not any("environments" in line for line in compare(read).warnings)


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
    with pytest.raises(WrongCall) as told:
        compare(given, **named)
    assert message in str(told.value)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.usefixtures("store")
def test_a_run_id_that_there_is_not() -> None:
    with pytest.raises(WrongCall, match=f"no run {'0' * 32}"):
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
        WrongCall, match=rf"no figure 'forrest' of this comparison; have {result.figures[0]}"
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
