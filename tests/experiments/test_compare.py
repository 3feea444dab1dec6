"""`compare` on a real tracking store: any finished runs, a verdict or the reason why there is none, a run with the report."""

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


def tell(store: Store, found: Iterable[StoredRun], experiment: str = "captioning") -> None:
    """Runs as a campaign would have logged them (see `log`), but straight into the database."""

    def id_of(run: str) -> str:
        return uuid.uuid5(uuid.NAMESPACE_OID, run).hex

    told = []
    for run in found:
        tags = {
            key: id_of(text.removeprefix("run:")) if text.startswith("run:") else text
            for key, text in run.tags.items()
        }
        tags |= {"mlflow.runName": run.name, "origin": run.run_id}
        ended = (
            {"FINISHED": RunOutcome.OK, "FAILED": RunOutcome.FAILED}[run.status]
            if run.end_ms
            else None
        )
        tags |= {"outcome": ended} if ended else {}
        status = ended.status if ended else "RUNNING"
        told.append(replace(run, run_id=id_of(run.run_id), status=status, tags=tags))
    store.experiment_id(experiment)
    fill(store.uri, told, experiment)
    store.expect([], experiment, {run.tags["origin"]: run.run_id for run in told})


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
    """`python -m experiments compare` in this process, without the figures, which take most of its time."""

    def compare(**given: str) -> int:
        mlflow.set_tracking_uri(store.uri)
        settings = {"output": f"{place.folder}/out", "figures": "false", **given}
        return main(["compare", *(f"--{name}={value}" for name, value in settings.items())])

    return compare


def changed(
    found: Iterable[StoredRun], change: Callable[[StoredRun], StoredRun | None]
) -> list[StoredRun]:
    return [run for one in found if (run := change(one)) is not None]


def slower(**more: object) -> Iterator[StoredRun]:
    return runs(factors={"tensorflow": 1.2}, **more)  # type: ignore[arg-type]


def test_a_verdict_and_a_run_that_holds_the_report(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(store, slower())
    assert call(figures="true") == DONE
    said = capsys.readouterr().out
    assert "tensorflow trains" in said
    assert "slower than pytorch" in said
    comparison = next(iter(store.runs("comparisons")))
    assert comparison.status == "FINISHED"
    assert comparison.end_ms is not None
    assert (
        comparison.end_ms - comparison.start_ms > 100
    )  # from the call on, not from the logging of its result
    assert comparison.params["factor"] == "framework"
    assert "slower" in comparison.tags["verdict"]
    logged = {
        file.path for file in mlflow.MlflowClient(store.uri).list_artifacts(comparison.run_id)
    }
    assert {
        "report.html",
        "report.md",
        "card.md",
        "comparison.csv",
        "comparison.json",
        "figures",
    } <= logged
    answer = comparison.tags["answer"]
    assert answer.startswith("In this campaign TensorFlow trains ")
    (row,) = mlflow.MlflowClient(store.uri).search_runs(
        [mlflow.MlflowClient(store.uri).get_experiment_by_name("comparisons").experiment_id],
        f"metrics.`verdict/{RATE}/high` < 1 and tags.answer LIKE '%TensorFlow trains%'",
    )
    assert row.info.run_id == comparison.run_id
    assert row.data.tags["mlflow.note.content"].startswith(f"**{answer.partition(' Read it')[0]}")
    assert row.data.metrics[f"verdict/{RATE}/low"] <= row.data.metrics[f"verdict/{RATE}/ratio"]


def description(store: Store, experiment: str) -> str:
    return str(store._client.get_experiment_by_name(experiment).tags.get(NOTE, ""))


def test_comparisons_lie_beside_what_they_compare_and_only_a_verdict_is_news_there(
    store: Store, call: Call
) -> None:
    store.describe_experiment("captioning", "Captions")
    tell(store, runs(blocks=2))
    assert call() == NO_VERDICT
    assert description(store, "captioning") == "Captions"
    assert "One run per comparison" in description(store, "comparisons")
    tell(store, slower(campaign="c2"))
    assert call(filter="tags.campaign = 'c2'") == DONE
    newest = next(run for run in store.runs("comparisons") if "slower" in run.tags["verdict"])
    assert store.link("comparisons", newest.run_id) in description(store, "captioning")
    assert store.link("comparisons", newest.run_id) in description(store, "comparisons")
    assert call(filter="tags.campaign = 'c1'") == NO_VERDICT
    for place in ("captioning", "comparisons"):
        assert store.link("comparisons", newest.run_id) in description(store, place)
    assert {run.tags["kind"] for run in store.runs("captioning")} == {"cell"}
    assert len(list(store.runs("comparisons"))) == 3


def test_a_campaign_by_its_run_id(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, factor in (("c1", 1.2), ("c2", 0.8)):
        tell(
            store,
            [
                replace(run, tags={**run.tags, "campaign": f"run:{name}"})
                for run in with_campaign(name, factor)
            ],
        )
    run_id = store.run_id("c2")
    assert run_id is not None
    assert call(experiment=run_id, format="json") == DONE
    told = json.loads(capsys.readouterr().out)
    assert {row["n_blocks"] for row in told["rows"]} == {8}
    assert next(row for row in told["rows"] if row["metric"] == STEP)["verdict"] == "faster"


def with_campaign(name: str, factor: float) -> Iterator[StoredRun]:
    yield StoredRun(name, name, "FINISHED", 1, 2, {}, {}, {"kind": "campaign"})
    yield from runs(factors={"tensorflow": factor}, campaign=name)


def test_any_setting_or_tag_can_be_the_factor(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, (size, factor) in enumerate((("32", 1.0), ("64", 1.5))):
        found = runs(
            ("pytorch",),
            seed=seed,
            factors={"pytorch": factor},
            params={"batch_size": size},
            tags={"team": f"t{size}"},
        )
        tell(store, [replace(run, run_id=f"{run.run_id}-{size}") for run in found])
    assert call(factor="batch_size", baseline="32", strata="", outcomes=STEP, format="json") == DONE
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["a"], row["b"], row["verdict"]) == ("32", "64", "slower")
    assert call(factor="tags.team", outcomes=STEP, format="json") in (DONE, NO_VERDICT)
    assert "settings differ apart from tags.team: batch_size (32, 64)" in capsys.readouterr().out


HOSTILE = "=tensor\x1b[2J\x1b]0;owned\x07\u202eflow[/]"
UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def hostile(store: Store) -> None:
    """Framework, warnings and names of runs come from the server, where everyone writes."""
    levels, tags = ("pytorch", HOSTILE), {"warnings": HOSTILE, "machine": HOSTILE}
    theirs = enumerate(runs(levels, 6, factors={HOSTILE: 1.2}, tags=tags))
    tell(store, (replace(run, run_id=f"c1-{number}", name=HOSTILE) for number, run in theirs))


@pytest.mark.usefixtures("hostile")
def test_what_others_named_their_runs_is_shown_in_every_form(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for form in ("table", "markdown", "csv", "json"):
        assert call(format=form, baseline="pytorch") == DONE
        output = capsys.readouterr()
        said[form] = output.out
        assert not UNSEEN.search(output.out + output.err)
    assert "tensor\\x1b" in said["table"]
    assert {row["b"] for row in json.loads(said["json"])["rows"]} == {HOSTILE}
    assert all(
        row["b"].startswith("'=tensor\\x1b[2J") for row in csv.DictReader(io.StringIO(said["csv"]))
    )


# ---- nothing to compare, or no verdict


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"experiment": "captionin"}, "no experiment 'captionin'"),
        ({"experiment": "0" * 32}, f"no run {'0' * 32}"),
        ({"filter": "tags.team = 'nobody'"}, "matches tags.team = 'nobody'; nothing to compare"),
        ({"filter": "team is vision"}, "write it in MLflow's language"),
        ({"factor": "batchsize"}, "no column 'batchsize' in the runs; have"),
        ({"baseline": "jax"}, "no run has framework=jax, the baseline; have pytorch, tensorflow"),
        ({"outcomes": "throughput"}, f"no run has a metric 'throughput'; did you mean {RATE}?"),
        ({"strata": "colour"}, "no column 'colour' in the runs"),
        (
            {"filter": "params.framework = 'pytorch'"},
            "only one side: all runs have framework=pytorch",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_call_is_one_line(
    store: Store,
    call: Call,
    capsys: pytest.CaptureFixture[str],
    given: dict[str, str],
    message: str,
) -> None:
    tell(store, runs(blocks=2))
    assert call(**given) == WRONG_CALL
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def one_block(run: StoredRun) -> StoredRun | None:
    return run if run.tags["block"] == "0" else None


def two_machines_in_a_block(run: StoredRun) -> StoredRun:
    return replace(run, tags={**run.tags, "machine": run.tags["framework"]})


def failed_side(run: StoredRun) -> StoredRun:
    if run.tags["framework"] == "pytorch":
        return run
    return replace(
        run, status="FAILED", tags={**run.tags, "outcome": "failed", "outcome_reason": "it broke"}
    )


def still_running(run: StoredRun) -> StoredRun:
    if run.tags["framework"] == "pytorch":
        return run
    return replace(
        run, end_ms=None, tags={key: text for key, text in run.tags.items() if key != "outcome"}
    )


def other_seed_on_one_side(run: StoredRun) -> StoredRun:
    return replace(
        run, params={**run.params, "seed": "0" if run.tags["framework"] == "pytorch" else "1"}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_block, "1 block: no comparison; a verdict needs 6"),
        (two_machines_in_a_block, "runs of several machines are not pooled"),
        (failed_side, "no usable run of tensorflow"),
        (still_running, "no usable run of tensorflow"),
        (other_seed_on_one_side, "settings differ apart from framework: seed (0, 1)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_no_verdict_has_its_reason_and_an_exit_code_of_its_own(
    store: Store,
    call: Call,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[StoredRun], StoredRun | None],
    message: str,
) -> None:
    tell(store, changed(runs(), change))
    assert call(outcomes=STEP) == NO_VERDICT
    assert message in " ".join(capsys.readouterr().out.split())


def campaign_of(
    name: str,
    days: int = 0,
    *,
    params: dict[str, str] | None = None,
    status: str = "",
    factor: float = 1.2,
) -> Iterator[StoredRun]:
    """A campaign with its own run and its cells, begun so many days after the first."""
    later = days * 86_400_000
    own = StoredRun(
        name,
        f"campaign {name}",
        status or "FINISHED",
        1 + later,
        None if status else 2 + later,
        {},
        {},
        {},
    )
    for run in (own, *runs(factors={"tensorflow": factor}, campaign=name, params=params)):
        ended = None if run.end_ms is None else run.end_ms + later
        tags = {"kind": "campaign"} if run is own else {**run.tags, "campaign": f"run:{name}"}
        yield replace(run, start_ms=run.start_ms + later, end_ms=ended, tags=tags)


def test_of_campaigns_with_other_settings_the_newest_are_compared(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both of the newest settings as strata; the older ones by a command of their own, which works as it is printed."""
    tell(store, campaign_of("smoke", 0, params={"batch_size": "64", "epochs": "1"}, factor=0.8))
    for days, name in ((1, "monday"), (2, "tuesday")):
        tell(store, campaign_of(name, days))
    assert call(outcomes=STEP, format="json") == DONE
    told = capsys.readouterr()
    rows = json.loads(told.out)["rows"]
    assert {row["stratum"].partition("=")[0] for row in rows} == {"campaign"}
    assert [(row["n_blocks"], row["verdict"]) for row in rows] == [(8, "slower"), (8, "slower")]
    said = " ".join(told.err.split())
    assert "Compared: the newest 2 campaigns (batch_size=32, epochs=none; 2025-10-11" in said
    line = next(line for line in told.err.splitlines() if "batch_size=64, epochs=1" in line)
    words = shlex.split(line.partition("): ")[2])
    assert words[words.index("--experiment") + 1] == store.run_id("smoke")
    assert main(words[words.index("compare") :]) == DONE
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["n_blocks"], row["verdict"]) == (8, "faster")


def test_a_running_campaign_is_left_out_unless_it_is_named(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of its blocks are measured; who names it by its id gets them, and is told."""
    tell(store, campaign_of("done", 0))
    tell(store, campaign_of("now", 1, status="RUNNING", factor=0.5))
    running = str(store.run_id("now"))
    store.beat(running)
    assert call(outcomes=STEP, format="json") == DONE
    told = capsys.readouterr()
    assert [(row["n_blocks"], row["verdict"]) for row in json.loads(told.out)["rows"]] == [
        (8, "slower")
    ]
    assert f"Left out, since still running: campaign now ({running})" in " ".join(told.err.split())
    assert call(experiment=running, outcomes=STEP, format="json") == DONE
    told = capsys.readouterr()
    assert json.loads(told.out)["rows"][0]["verdict"] == "faster"
    assert (
        f"Still running: campaign now ({running}). Only the cells that have ended are compared."
        in told.err
    )


def test_nothing_but_a_running_campaign(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(store, campaign_of("now", 0, status="RUNNING"))
    store.beat(str(store.run_id("now")))
    assert call() == WRONG_CALL
    assert "nothing but campaigns that are still running: campaign now" in capsys.readouterr().err


def test_what_is_left_out_is_listed(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed run, one still running, and an infinite value: each is told, the rest is judged."""

    def spoil(run: StoredRun) -> StoredRun:
        if run.tags["framework"] == "pytorch":
            return run
        if run.tags["block"] == "1":
            return failed_side(run)
        if run.tags["block"] == "2":
            return still_running(run)
        return (
            replace(run, metrics={**run.metrics, STEP: math.inf})
            if run.tags["block"] == "3"
            else run
        )

    tell(store, changed(slower(blocks=12), spoil))
    assert call(outcomes=STEP, format="json") == DONE
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][0]["n_blocks"] == 9
    reasons = {(one["block"], one["level"]): one["reason"] for one in told["excluded"]}
    assert reasons["1", "tensorflow"] == "failed: it broke"
    assert reasons["2", "tensorflow"] == "still running"
    assert reasons["1", "pytorch"] == "block 1 has no usable run of tensorflow"
    assert reasons["3", "tensorflow"].startswith("infinite")


@pytest.mark.slow
def test_a_server_that_asks_for_a_password(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "guarded"
    folder.mkdir()
    server = Server(folder, options=("--app-name", "basic-auth"))
    try:
        done = replace(place, uri=server.uri).call(sys.executable, "-m", "experiments", "compare")
    finally:
        server.kill()
    assert done.returncode == WRONG_CALL, done.stderr
    assert "asks for a name and a password" in done.stderr
    assert "MLFLOW_TRACKING_USERNAME" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_report_folder_that_cannot_be_written(
    store: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(store, runs(blocks=2))
    assert call(output="/proc/nowhere") == FAILED
    assert "No report" in capsys.readouterr().err
