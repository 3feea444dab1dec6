"""`compare` as a command and in a notebook: verdicts, exit codes, runs with the report."""

from __future__ import annotations

import json
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import nbformat
import pytest
from nbclient import NotebookClient

from experiments.cli.codes import CONDITION_HOLDS, DONE, NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from experiments.comparison.verdicts.findings import WITHIN_MARGIN
from experiments.run.recorder import shown_and_details
from tests.conftest import ROOT, Place
from tests.experiments.comparison.campaigns import RATE, STEP, frame, runs
from tests.tracking.fill_server import fill
from tracking import links
from tracking.errors import UsageError
from tracking.records import Metrics, Point, RunOutcome, StoredRun
from tracking.store import NOTE, Store

Call = Callable[..., int]


def as_recorded(run: StoredRun) -> StoredRun:
    """Return a run with the metrics that MLflow shows, and the others in tags."""
    points = tuple(Point(key, value, 0, 0) for key, value in run.metrics.items())
    parts = shown_and_details(Metrics(run.run_id, points))
    values = [{point.key: point.value for point in part.points} for part in parts]
    details = {f"metric.{key}": repr(value) for key, value in values[1].items()}
    return replace(run, metrics=values[0], tags={**run.tags, **details})


def store_runs(store: Store, stored: Iterable[StoredRun]) -> None:
    """Write runs into the database as a campaign would have logged them."""
    id_of = partial(uuid.uuid5, uuid.NAMESPACE_OID)
    filled = []
    for run in stored:
        tags = {
            key: id_of(text.removeprefix("run:")).hex if text.startswith("run:") else text
            for key, text in run.tags.items()
        }
        tags |= {"mlflow.runName": run.name, "origin": run.run_id}
        status = "RUNNING"
        if run.end_ms:
            outcome = RunOutcome.OK if run.status == "FINISHED" else RunOutcome.FAILED
            tags, status = tags | {"outcome": outcome}, outcome.status
        filled.append(replace(run, run_id=id_of(run.run_id).hex, status=status, tags=tags))
    store.experiment_id("captioning")
    fill(store.uri, filled, "captioning")
    store.expect([], "captioning", {run.tags["origin"]: run.run_id for run in filled})


@pytest.fixture
def store(place: Place, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    shutil.copy(empty_store, place.folder / "mlflow.db")
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.uri)
    before = mlflow.get_tracking_uri()
    yield Store(place.uri)
    mlflow.set_tracking_uri(before)


@pytest.fixture
def call(store: Store, place: Place) -> Call:
    """Return `compare` in this process, by default without figures."""

    def compare(**options: str) -> int:
        mlflow.set_tracking_uri(store.uri)
        settings = {"output": f"{place.folder}/out", "figures": "false", **options}
        return main(["compare", *(f"--{name}={value}" for name, value in settings.items())])

    return compare


@pytest.fixture
def table(call: Call, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that compares and returns the JSON."""

    def compare(**options: str) -> Any:
        capsys.readouterr()
        assert call(format="json", **options) in (DONE, NO_VERDICT)
        return json.loads(capsys.readouterr().out)

    return compare


def slower(**options: Any) -> Iterator[StoredRun]:
    return runs(factors={"tensorflow": 1.2}, **options)


def campaign_of(
    name: str,
    days: int = 0,
    *,
    params: dict[str, str] | None = None,
    status: str = "FINISHED",
    factor: float = 1.2,
) -> Iterator[StoredRun]:
    """Yield a campaign's run and its cells, begun so many days after the first."""
    later = days * 86_400_000
    end_ms = 2 + later if status == "FINISHED" else None
    yield StoredRun(name, name, status, 1 + later, end_ms, {}, {}, {"kind": "campaign"})
    for run in runs(factors={"tensorflow": factor}, campaign=f"run:{name}", params=params):
        end_ms = None if run.end_ms is None else run.end_ms + later
        yield replace(run, start_ms=run.start_ms + later, end_ms=end_ms)


def test_comparison_is_a_run_with_the_report(store: Store, call: Call) -> None:
    """It is found by its verdicts, and the compared experiment links to it."""
    links.describe_experiment(store, "captioning", "Captions")
    store_runs(store, runs(blocks=2))
    assert call() == NO_VERDICT
    assert description(store, "captioning") == "Captions"
    store_runs(store, slower(campaign="c2"))
    assert call(figures="true", filter="tags.campaign = 'c2'") == DONE
    client = mlflow.MlflowClient(store.uri)
    experiment = client.get_experiment_by_name("comparisons").experiment_id
    faster = f"verdict/{RATE}/percent_faster"
    condition = f"metrics.`{faster}_high` < 0 and tags.answer LIKE '%TensorFlow%'"
    (comparison,) = client.search_runs([experiment], condition)
    info, data, run_id = comparison.info, comparison.data, comparison.info.run_id
    assert info.status == "FINISHED"
    assert info.end_time - info.start_time > 100  # milliseconds, from the call on
    assert data.params["factor"] == "framework"
    files = {file.path for file in client.list_artifacts(run_id)}
    report = {"report.html", "report.md", "card.md", "figures", "verdicts.json"}
    assert report | {f"comparison.{kind}" for kind in ("csv", "json")} <= files
    assert data.tags["answer"].startswith("TensorFlow: training ")
    assert data.tags[NOTE].startswith("**TensorFlow trains ")
    assert data.metrics[f"{faster}_low"] <= data.metrics[faster]
    table = client.load_table(experiment, "verdicts.json", [run_id])
    assert dict(zip(table["metric"], table["verdict"], strict=True))[RATE] == "slower"
    shown = [{"path": "verdicts.json", "type": "table"}]
    assert json.loads(data.tags["mlflow.loggedArtifacts"]) == shown

    assert call(filter="tags.campaign = 'c1'") == NO_VERDICT
    for name in ("captioning", "comparisons"):
        assert links.link(store, "comparisons", run_id) in description(store, name)
    assert {run.tags["kind"] for run in store.runs("captioning")} == {"cell"}
    assert len(list(store.runs("comparisons"))) == 3


def description(store: Store, experiment: str) -> str:
    return str(store._client.get_experiment_by_name(experiment).tags.get(NOTE, ""))


def test_condition_that_holds_is_the_exit_code(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Take levels of which the slower one is first by name: the baseline has to be declared."""
    store_runs(store, runs(("z", "a"), factors={"a": 1.2}))
    assert call(baseline="z", fail_if=f"faster,slower:{STEP}") == CONDITION_HOLDS
    output = capsys.readouterr().out.splitlines()
    (line,) = [line for line in output if line.startswith("fail_if=")]
    assert line.startswith(f"fail_if=slower:{STEP} holds: ")
    assert call(baseline="z", fail_if="faster") == DONE
    for condition in ("slow", "slower:throughputs", "higher:throughput"):
        assert call(baseline="z", fail_if=condition) == WRONG_CALL
    assert call(fail_if="slower:step") == WRONG_CALL
    assert "add baseline=a or z" in capsys.readouterr().err


def test_outcomes_are_declared_in_a_file(
    store: Store, table: Callable[..., Any], place: Place
) -> None:
    """Declare a margin beyond the slowdown of 20 %: by name, or in this folder's race.toml."""
    store_runs(store, slower())
    declared = f'[outcomes]\nprimary = ["{STEP}"]\n[outcomes."{STEP}"]\nbetter = "lower"\n'
    (place.folder / "mine.toml").write_text(f"{declared}margin = 0.5")

    others = '[levels.a]\ncommand = "true"\n[outcomes.other]\nbetter = "lower"\n'

    def judged(**options: str) -> tuple[str, float, str]:
        rows = table(baseline="pytorch", **options)["rows"]
        (row,) = [row for row in rows if row["metric"] == STEP]
        return row["verdict"], row["margin"], row["family"]

    for options in ({}, {"outcomes": STEP}):
        assert judged(**options)[:2] == ("slower", 0.03)
        named = judged(**options, outcomes_file="mine.toml")
        assert named == (WITHIN_MARGIN, 0.5, "primary")
    (place.folder / "race.toml").write_text(others + declared + "margin = 0.4")
    assert judged() == (WITHIN_MARGIN, 0.4, "primary")


# ---- nothing to compare, or no verdict


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"experiment": "captionin"}, "captionin"),
        ({"experiment": "0" * 32}, "0" * 32),
        ({"filter": "tags.team = 'nobody'"}, "tags.team = 'nobody'"),
        ({"filter": "team is vision"}, "params.batch_size = '32'"),
        ({"factor": "batchsize"}, "batchsize"),
        ({"baseline": "jax"}, "pytorch, tensorflow"),
        ({"outcomes": "throughput"}, f"did you mean {RATE}?"),
        ({"strata": "colour"}, "colour"),
        ({"filter": "params.framework = 'pytorch'"}, "framework=pytorch"),
        ({"outcomes_file": "none.toml"}, "outcomes_file=none.toml cannot be read"),
        ({"outcomes_file": "typo.toml"}, f"did you mean {STEP}?"),
        ({"outcomes_file": "up.toml"}, "up.toml: outcomes.x.better"),
    ],
    ids=str,
)
def test_wrong_call_is_one_line(
    store: Store,
    call: Call,
    place: Place,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, str],
    part: str,
) -> None:
    store_runs(store, runs(blocks=2))
    (place.folder / "typo.toml").write_text('[outcomes."train/step_second"]\nbetter = "lower"')
    (place.folder / "up.toml").write_text('[outcomes.x]\nbetter = "up"')
    assert call(**options) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


def test_newest_kind_of_campaigns_is_compared(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that its campaigns are strata, and that the command for the older kind works."""
    params = {"batch_size": "64", "epochs": "1"}
    store_runs(store, campaign_of("smoke", 0, params=params, factor=0.8))
    for days, name in ((1, "monday"), (2, "tuesday")):
        store_runs(store, campaign_of(name, days))
    assert call(outcomes=STEP, format="json") == DONE
    output = capsys.readouterr()
    rows = json.loads(output.out)["rows"]
    assert {row["stratum"].partition("=")[0] for row in rows} == {"campaign"}
    assert [(row["n_blocks"], row["verdict"]) for row in rows] == [(8, "slower"), (8, "slower")]
    line = next(line for line in output.err.splitlines() if "batch_size=64, epochs=1" in line)
    words = shlex.split(line.partition("): ")[2])
    assert main(words[words.index("compare") :]) == DONE
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["n_blocks"], row["verdict"]) == (8, "faster")


def test_running_campaign_is_left_out_unless_it_is_named(
    store: Store, call: Call, table: Callable[..., Any]
) -> None:
    store_runs(store, campaign_of("done", 0))
    store_runs(store, campaign_of("now", 1, status="RUNNING", factor=0.5))
    running = str(store.run_id("now"))
    store.beat(running)
    (row,) = table(outcomes=STEP)["rows"]
    assert (row["n_blocks"], row["verdict"]) == (8, "slower")
    (row,) = table(experiment=running, outcomes=STEP)["rows"]
    assert row["verdict"] == "faster"
    assert call(filter=f"tags.campaign = '{running}'") == WRONG_CALL


def verdicts(result: Any) -> dict[str, tuple[str, int, float]]:
    return {row.metric: (row.verdict, row.n_blocks, row.estimate) for row in result.rows}


def test_runs_of_a_campaign_have_its_verdicts_however_they_are_named(store: Store) -> None:
    """Name them by a table or list of search_runs, with the campaign's own run in it, or by ids."""
    for name, factor in (("c1", 1.2), ("c2", 1.0)):
        opened, *cells = campaign_of(name, factor=factor)
        store_runs(store, [opened, *map(as_recorded, cells)])
    slower = verdicts(compare(frame(factors={"tensorflow": 1.2})))
    search = partial(mlflow.search_runs, experiment_names=["captioning"])
    table, campaign = search(), store.run_id("c1") or ""
    of_first = (table["tags.campaign"] == campaign) | (table["tags.kind"] == "campaign")
    listed = search(filter_string=f"tags.campaign = '{campaign}'", output_format="list")
    below = store.runs("captioning", f"tags.campaign = '{campaign}'")
    ids = [run.run_id for run in below]
    for named in (table[of_first], listed, campaign, ids):
        assert verdicts(compare(named)) == slower
    both = compare([campaign, str(store.run_id("c2"))], outcomes=STEP)
    assert [row.stratum.partition("=")[0] for row in both.rows] == ["campaign", "campaign"]


def test_notebook_shows_sentences_verdicts_and_figures() -> None:
    result = compare(frame(factors={"tensorflow": 1.2}))
    shown = result._repr_html_()
    assert result.sentences[0] in shown
    assert shown.count("<tr>") == 1 + len(result.rows)
    hostile = compare(frame(("pytorch", "<script>alert()</script>"), blocks=2))
    assert "<script" not in hostile._repr_html_()
    assert "blocks" in result.figures
    figure = result.figure(result.figures[0])
    assert figure.name == result.figures[0]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=result.figures[0]):
        result.figure("forrest")


def test_saved_files_are_those_of_the_command(tmp_path: Path) -> None:
    table, spec = frame(factors={"tensorflow": 1.2}), ComparisonSpec(baseline="tensorflow")
    options = ReportOptions("Comparison", figures=False)
    answer(spec, table, tmp_path / "command", options, lambda _: [])
    path = compare(table, baseline="tensorflow").save(tmp_path / "notebook", figures=False)
    assert path == tmp_path / "notebook" / "report.html"
    for name in ("report.html", "report.md", "comparison.csv", "comparison.json"):
        assert (path.parent / name).read_text() == (tmp_path / "command" / name).read_text()


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").glob("*.ipynb")), ids=lambda page: page.name
)
def test_notebook_of_the_docs_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Run a notebook; `--screenshots=docs` writes it there with its outputs."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = nbformat.read(page, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert {"text/html", "image/png"} <= kinds
    if folder := request.config.getoption("screenshots"):
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of the start and end
            if "outputs" in cell:  # notes of libraries name paths of this machine
                cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        nbformat.write(notebook, folder / page.name)
