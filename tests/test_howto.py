"""Commands of the how-tos, with their blanks filled in."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from experiments.cli.codes import CONDITION_HOLDS, DONE, NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from tests.conftest import ROOT, Place
from tests.documented import commands
from tests.experiments.comparison.campaigns import BLEU, LOSS, RATE, STEP, runs
from tests.experiments.test_compare import store_runs
from tracking.store import Store

HOW_TO = ROOT / "docs" / "how-to"


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
    table = python(page, 1).replace("captioning", "comparisons")
    as_table, count = re.subn("(?m)^rows = pd.DataFrame.*", table, script)
    assert count == 1
    assert gate(as_table, place, comparison.run_id, monkeypatch) == code
