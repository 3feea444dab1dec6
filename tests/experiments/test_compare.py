"""`compare` on a real tracking store: verdicts, or the reason for none, and a run with the report."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest

from experiments.cli.codes import DONE, FAILED, NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from tests.conftest import Place, Server
from tests.experiments.comparison.campaigns import RATE, STEP, runs
from tests.tracking.fill_server import fill
from tracking.records import RunOutcome, StoredRun
from tracking.store import NOTE, Store

Call = Callable[..., int]
Change = Callable[[StoredRun], StoredRun]


def store_runs(store: Store, stored: Iterable[StoredRun]) -> None:
    """Write runs into the database as a campaign would have logged them."""

    def id_of(origin: str) -> str:
        return uuid.uuid5(uuid.NAMESPACE_OID, origin).hex

    filled = []
    for run in stored:
        tags = {
            key: id_of(text.removeprefix("run:")) if text.startswith("run:") else text
            for key, text in run.tags.items()
        }
        tags |= {"mlflow.runName": run.name, "origin": run.run_id}
        status = "RUNNING"
        if run.end_ms:
            outcome = RunOutcome.OK if run.status == "FINISHED" else RunOutcome.FAILED
            tags, status = tags | {"outcome": outcome}, outcome.status
        filled.append(replace(run, run_id=id_of(run.run_id), status=status, tags=tags))
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
    status: str = "",
    factor: float = 1.2,
) -> Iterator[StoredRun]:
    """Yield a campaign's run and its cells, begun so many days after the first."""
    later = days * 86_400_000
    title, end_ms = f"campaign {name}", None if status else 2 + later
    tags = {"kind": "campaign"}
    yield StoredRun(name, title, status or "FINISHED", 1 + later, end_ms, {}, {}, tags)
    for run in runs(factors={"tensorflow": factor}, campaign=name, params=params):
        ended = None if run.end_ms is None else run.end_ms + later
        tags = {**run.tags, "campaign": f"run:{name}"}
        yield replace(run, start_ms=run.start_ms + later, end_ms=ended, tags=tags)


def test_comparison_is_a_run_with_the_report(store: Store, call: Call) -> None:
    store_runs(store, slower())
    assert call(figures="true") == DONE
    (comparison,) = store.runs("comparisons")
    assert comparison.status == "FINISHED"
    assert comparison.end_ms is not None
    assert comparison.end_ms - comparison.start_ms > 100  # from the call on
    assert comparison.params["factor"] == "framework"
    client = mlflow.MlflowClient(store.uri)
    files = {file.path for file in client.list_artifacts(comparison.run_id)}
    report = {"report.html", "report.md", "card.md", "figures"}
    assert report | {"comparison.csv", "comparison.json"} <= files
    experiment = client.get_experiment_by_name("comparisons")
    condition = f"metrics.`verdict/{RATE}/high` < 1 and tags.answer LIKE '%TensorFlow%'"
    (row,) = client.search_runs([experiment.experiment_id], condition)
    assert row.info.run_id == comparison.run_id
    answer = comparison.tags["answer"].partition(" Read it")[0]
    assert row.data.tags["mlflow.note.content"].startswith(f"**{answer}")
    assert row.data.metrics[f"verdict/{RATE}/low"] <= row.data.metrics[f"verdict/{RATE}/ratio"]


def description(store: Store, experiment: str) -> str:
    return str(store._client.get_experiment_by_name(experiment).tags.get(NOTE, ""))


def test_compared_experiment_links_only_to_verdicts(store: Store, call: Call) -> None:
    store.describe_experiment("captioning", "Captions")
    store_runs(store, runs(blocks=2))
    assert call() == NO_VERDICT
    assert description(store, "captioning") == "Captions"
    store_runs(store, slower(campaign="c2"))
    assert call(filter="tags.campaign = 'c2'") == DONE
    newest = max(store.runs("comparisons"), key=lambda run: run.start_ms)
    link = store.link("comparisons", newest.run_id)
    assert call(filter="tags.campaign = 'c1'") == NO_VERDICT
    for experiment in ("captioning", "comparisons"):
        assert link in description(store, experiment)
    assert {run.tags["kind"] for run in store.runs("captioning")} == {"cell"}
    assert len(list(store.runs("comparisons"))) == 3


def test_campaign_by_its_run_id(store: Store, table: Callable[..., Any]) -> None:
    for name, factor in (("c1", 1.2), ("c2", 0.8)):
        store_runs(store, campaign_of(name, factor=factor))
    rows = table(experiment=str(store.run_id("c2")))["rows"]
    assert {row["n_blocks"] for row in rows} == {8}
    assert next(row for row in rows if row["metric"] == STEP)["verdict"] == "faster"


def test_any_setting_or_tag_can_be_the_factor(store: Store, table: Callable[..., Any]) -> None:
    for seed, (size, factor) in enumerate((("32", 1.0), ("64", 1.5))):
        labels: dict[str, Any] = {"params": {"batch_size": size}, "tags": {"team": f"t{size}"}}
        stored = runs(("pytorch",), seed=seed, factors={"pytorch": factor}, **labels)
        store_runs(store, [replace(run, run_id=f"{run.run_id}-{size}") for run in stored])
    (row,) = table(factor="batch_size", baseline="32", strata="", outcomes=STEP)["rows"]
    assert (row["a"], row["b"], row["verdict"]) == ("32", "64", "slower")
    (row,) = table(factor="tags.team", outcomes=STEP)["rows"]
    assert (row["a"], row["b"]) == ("t32", "t64")
    assert "batch_size" in row["reason"]  # differs too


HOSTILE = "=tensor\x1b[2J\x1b]0;owned\x07\u202eflow[/]"
UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_hostile_names_are_escaped_in_every_format(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Framework, warnings and names of runs come from the server."""
    levels, tags = ("pytorch", HOSTILE), {"warnings": HOSTILE, "machine": HOSTILE}
    stored = enumerate(runs(levels, 6, factors={HOSTILE: 1.2}, tags=tags))
    store_runs(store, (replace(run, run_id=f"c1-{at}", name=HOSTILE) for at, run in stored))
    printed = {}
    for form in ("table", "markdown", "csv", "json"):
        assert call(format=form, baseline="pytorch") == DONE
        output = capsys.readouterr()
        printed[form] = output.out
        assert not UNSEEN.search(output.out + output.err)
    assert "tensor\\x1b" in printed["table"]
    assert {row["b"] for row in json.loads(printed["json"])["rows"]} == {HOSTILE}
    rows = csv.DictReader(io.StringIO(printed["csv"]))
    assert all(row["b"].startswith("'=tensor\\x1b[2J") for row in rows)


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
    ],
    ids=str,
)
def test_wrong_call_is_one_line(
    store: Store,
    call: Call,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, str],
    part: str,
) -> None:
    store_runs(store, runs(blocks=2))
    assert call(**options) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


def of_tensorflow(change: Change) -> Change:
    """Return a change that leaves PyTorch's runs as they are."""
    return lambda run: run if run.tags["framework"] == "pytorch" else change(run)


def two_machines_in_a_block(run: StoredRun) -> StoredRun:
    return replace(run, tags={**run.tags, "machine": run.tags["framework"]})


def failed(run: StoredRun) -> StoredRun:
    tags = {**run.tags, "outcome": "failed", "outcome_reason": "it broke"}
    return replace(run, status="FAILED", tags=tags)


def still_running(run: StoredRun) -> StoredRun:
    tags = {key: text for key, text in run.tags.items() if key != "outcome"}
    return replace(run, end_ms=None, tags=tags)


def other_seed(run: StoredRun) -> StoredRun:
    return replace(run, params={**run.params, "seed": "1"})


@pytest.mark.parametrize(
    ("blocks", "change"),
    [
        (1, replace),
        (8, two_machines_in_a_block),
        (8, of_tensorflow(failed)),
        (8, of_tensorflow(still_running)),
        (8, of_tensorflow(other_seed)),
    ],
    ids=["one block", "machines", "failed", "running", "seed"],
)
def test_no_verdict_has_a_separate_exit_code(
    store: Store, call: Call, blocks: int, change: Change
) -> None:
    store_runs(store, map(change, runs(blocks=blocks)))
    assert call(outcomes=STEP) == NO_VERDICT


def test_newest_kind_of_campaigns_is_compared(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its campaigns are strata; the older kind has a command, which works as printed."""
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
    assert words[words.index("--experiment") + 1] == store.run_id("smoke")
    assert main(words[words.index("compare") :]) == DONE
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["n_blocks"], row["verdict"]) == (8, "faster")


def test_running_campaign_is_left_out_unless_it_is_named(
    store: Store, table: Callable[..., Any]
) -> None:
    store_runs(store, campaign_of("done", 0))
    store_runs(store, campaign_of("now", 1, status="RUNNING", factor=0.5))
    running = str(store.run_id("now"))
    store.beat(running)
    (row,) = table(outcomes=STEP)["rows"]
    assert (row["n_blocks"], row["verdict"]) == (8, "slower")
    (row,) = table(experiment=running, outcomes=STEP)["rows"]
    assert row["verdict"] == "faster"


def test_running_campaign_alone_is_refused(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store_runs(store, campaign_of("now", status="RUNNING"))
    running = str(store.run_id("now"))
    store.beat(running)
    assert call() == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert running in line


def test_excluded_runs_are_listed(store: Store, table: Callable[..., Any]) -> None:
    changes: dict[str, Change] = {
        "1": failed,
        "2": still_running,
        "3": lambda run: replace(run, metrics={**run.metrics, STEP: math.inf}),
    }

    def spoil(run: StoredRun) -> StoredRun:
        return changes.get(run.tags["block"], replace)(run)

    store_runs(store, map(of_tensorflow(spoil), slower(blocks=12)))
    comparison = table(outcomes=STEP)
    assert comparison["rows"][0]["n_blocks"] == 9
    excluded = {(row["block"], row["level"]): row["reason"] for row in comparison["excluded"]}
    assert "it broke" in excluded["1", "tensorflow"]
    for key in (("2", "tensorflow"), ("1", "pytorch"), ("3", "tensorflow")):
        assert excluded[key]


@pytest.mark.slow
def test_server_with_accounts_needs_a_password(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "guarded"
    folder.mkdir()
    server = Server(folder, options=("--app-name", "basic-auth"))
    try:
        done = replace(place, uri=server.uri).call(sys.executable, "-m", "experiments", "compare")
    finally:
        server.kill()
    assert (done.returncode, done.stderr.count("\n")) == (WRONG_CALL, 1), done.stderr
    assert "MLFLOW_TRACKING_USERNAME" in done.stderr


def test_unwritable_report_folder(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store_runs(store, runs(blocks=2))
    assert call(output="/proc/nowhere") == FAILED
    assert "output=DIR" in capsys.readouterr().err
