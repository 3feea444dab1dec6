"""Commands of the how-tos, with their blanks filled in."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from experiments.cli.codes import CONDITION_HOLDS, DONE, NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from tests.conftest import ROOT, Place
from tests.documented import commands
from tests.experiments.comparison.campaigns import BLEU, LOSS, RATE, STEP, runs
from tests.experiments.test_compare import store_runs
from tracking.records import StoredRun
from tracking.store import Store

HOW_TO = ROOT / "docs" / "how-to"
DAY_MS = 86_400_000


def words(page: str, *beginning: str) -> list[str]:
    """Return the command of a page that begins so."""
    (command,) = {
        command.words
        for command in commands()
        if command.page == f"docs/how-to/{page}" and command.words[: len(beginning)] == beginning
    }
    return list(command)


def python(page: str, at: int = 0) -> str:
    """Return a block of Python of a page."""
    return re.findall(r"```python\n(.*?)```", (HOW_TO / page).read_text(), re.DOTALL)[at]


@pytest.fixture
def store(place: Place, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    shutil.copy(empty_store, place.folder / "mlflow.db")
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.uri)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(place.uri)
    yield Store(place.uri)
    mlflow.set_tracking_uri(before)


def campaign(name: str, slower: float, day: int) -> Iterator[StoredRun]:
    """Yield runs of PyTorch and TensorFlow, both slower by a factor, on a day."""
    start = day * DAY_MS
    yield StoredRun(name, name, "FINISHED", start, start + 1, {}, {}, {"kind": "campaign"})
    both = {"pytorch": slower, "tensorflow": 1.1 * slower}
    for run in runs(factors=both, campaign=name, seed=day):
        moved = replace(run, start_ms=run.start_ms + start, end_ms=(run.end_ms or 0) + start)
        yield replace(moved, tags={**run.tags, "campaign": f"run:{name}"})


def test_campaigns_of_two_weeks_are_compared(
    store: Store, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: today 1.2 times as slow, in both frameworks."""
    page = "compare-with-last-week.md"
    store_runs(store, campaign("before", 1.0, day=1))
    store_runs(store, campaign("now", 1.2, day=8))
    assert main(words(page, "evenhand", "campaigns")[1:]) == DONE
    today, last_week = re.findall(
        r"\b[0-9a-f]{32}$", capsys.readouterr().out.replace(" \n", "\n"), re.MULTILINE
    )[:2]
    command = words(
        page, "evenhand", "compare", "--experiment", "LAST_WEEK,TODAY", "--factor", "campaign"
    )[1:]
    filled = [word.replace("LAST_WEEK", last_week).replace("TODAY", today) for word in command]
    assert main([*filled, "--output", str(place.folder / "out")]) == DONE
    capsys.readouterr()
    result = json.loads(next((place.folder / "out").glob("*/comparison.json")).read_text())
    steps = {row["stratum"]: row for row in result["rows"] if row["metric"] == "train/step_seconds"}
    assert {"pytorch" in stratum or "tensorflow" in stratum for stratum in steps} == {True}
    assert [row["a"] for row in steps.values()] == ["before"] * 2
    assert all(
        row["verdict"] == "slower" and row["ci_low"] < 1.2 < row["ci_high"]
        for row in steps.values()
    )


def test_plain_runs_reach_a_verdict_in_two_calls(
    store: Store, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Log runs as scikit-learn's autologging does; the first error is the second call."""
    page = "bring-your-runs.md"
    first, second, third = (
        list(command.words[1:])
        for command in commands()
        if command.page.endswith(page)
        and command.words[1:4] == ("compare", "--experiment", "digits")
    )
    mlflow.set_experiment("digits")
    for seed in range(6):
        for name in ("ExtraTreesClassifier", "RandomForestClassifier")[:: 1 if seed % 2 else -1]:
            with mlflow.start_run():
                mlflow.set_tag("estimator_name", name)
                is_forest = name.startswith("Random")
                mlflow.log_param("random_state", seed)
                mlflow.log_metric("test_accuracy", 0.9 + 0.05 * is_forest + 0.001 * seed)
    assert main(first) == WRONG_CALL
    (error,) = capsys.readouterr().err.splitlines()
    options = " ".join(second[3:])
    assert error.replace(" (ExtraTreesClassifier, RandomForestClassifier) and", "").count(options)
    assert main([*second, "--figures=false", "--format=json"]) == DONE
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["metric"], row["verdict"], row["n_blocks"]) == ("test_accuracy", "higher", 6)
    declared = '[outcomes.test_accuracy]\nbetter = "higher"\nmargin = 0.2'
    (place.folder / "outcomes.toml").write_text(declared)
    assert main([*third, "--figures=false", "--format=json"]) == DONE
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["margin"] == 0.2


AUTOLOG = """
import sys, time
import mlflow
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.model_selection import train_test_split

mlflow.autolog(log_models=False, silent=True)
mlflow.set_experiment("digits")
x, x_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
models = {"forest": RandomForestClassifier, "extra": ExtraTreesClassifier}
with mlflow.start_run():
    model = models[sys.argv[1]](n_estimators=20, random_state=int(sys.argv[2]))
    began = time.perf_counter()
    model.fit(x, y)
    mlflow.log_metric("fit_seconds", time.perf_counter() - began)
    mlflow.log_metric("test_accuracy", model.score(x_test, y_test))
"""


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_autologged_scripts_reach_a_verdict(store: Store, place: Place) -> None:
    """Run a plain script twelve times, six of each side, and compare as the page does."""
    script = place.folder / "script.py"
    script.write_text(AUTOLOG)
    for seed in range(6):
        for side in ("forest", "extra")[:: 1 if seed % 2 else -1]:
            call = [sys.executable, str(script), side, str(seed)]
            subprocess.run(call, check=True, capture_output=True, cwd=place.folder)
    command = ["compare", "--experiment", "digits", "--factor", "estimator_name"]
    options = ["--pair_by", "random_state", "--ignore", "bootstrap", "--figures=false"]
    output = ["--output", str(place.folder / "out")]
    assert main([*command, *options, *output]) in (DONE, NO_VERDICT)
    result = json.loads(next((place.folder / "out").glob("*/comparison.json")).read_text())
    rows = {row["metric"]: row for row in result["rows"]}
    assert {rows[name]["n_blocks"] for name in ("fit_seconds", "test_accuracy")} == {6}
    assert "not comparable" not in {rows[name]["verdict"] for name in ("fit_seconds",)}


def gate(text: str, place: Place, run_id: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of the gate's script."""
    script = place.folder / "gate.py"
    script.write_text(text)
    monkeypatch.setattr(sys, "argv", [str(script), run_id])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(script))
    return int(exit_.value.code or 0)


@pytest.mark.parametrize(
    ("factor", "spread", "blocks", "verdict", "code"),
    [
        (1.0, 0.005, 8, "equivalent", DONE),
        (1.2, 0.01, 8, "slower", CONDITION_HOLDS),
        (1.03, 0.05, 8, "inconclusive", NO_VERDICT),
        (0.95, 0.05, 8, "inconclusive", DONE),  # neither shown to be faster nor equivalent
        (0.8, 0.01, 5, "inconclusive", NO_VERDICT),  # too few blocks, whatever the interval
    ],
)
def test_gate_decides_by_the_interval(
    store: Store,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    spread: float,
    blocks: int,
    verdict: str,
    code: int,
) -> None:
    """TensorFlow's steps take `factor` times as long; loss and BLEU are equal on both sides."""
    page = "validation-gate.md"
    planted = runs(factors={"tensorflow": factor}, spread=spread, blocks=blocks)
    store_runs(store, planted)
    judged = {RATE: True, STEP: False, LOSS: False, BLEU: True}
    options = ["--figures=false", "--outcomes", ",".join(judged)]
    options += ["--output", str(place.folder / "out")]
    assert main(["compare", "--experiment", "captioning", *options]) in (DONE, NO_VERDICT)
    (comparison,) = store.runs("comparisons")
    (text,) = (place.folder / "out").glob("*/comparison.json")
    rows = {row["metric"]: row for row in json.loads(text.read_text())["rows"]}
    assert {rows[RATE]["kind"], rows[LOSS]["kind"]} == {"ratio", "difference"}
    assert rows[RATE]["verdict"] == verdict
    script = re.sub("(?m)^greater_is_better = .*", f"greater_is_better = {judged}", python(page))
    assert gate(script, place, comparison.run_id, monkeypatch) == code
    from_file = next(line for line in script.splitlines() if line.startswith("rows = pd.DataFrame"))
    from_table = python(page, 1).replace("captioning", "comparisons")
    as_table = script.replace(from_file, from_table)
    assert as_table != script
    assert gate(as_table, place, comparison.run_id, monkeypatch) == code


def shell(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")
    }
    module = {"evenhand": "experiments", "mlflow": "mlflow"}[words[0]]
    return subprocess.run(
        [sys.executable, "-m", module, *words[1:]],
        cwd=folder,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=1_800,
    )
