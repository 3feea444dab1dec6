"""Result files of pyperf, hyperfine and JSON lists as runs, and what `compare` makes of them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from tests.conftest import ROOT
from tests.experiments.test_compare import Call, call, store, table
from tracking.store import Store

__all__ = ["call", "store", "table"]
SAMPLES = ROOT / "tests" / "experiments" / "benchmark_files"
PYPERF = [f"base={SAMPLES}/pyperf-base.json", f"head={SAMPLES}/pyperf-head.json"]
HYPERFINE = pytest.mark.debian(package="hyperfine")
LEVEL = {"experiment": "imported", "factor": "level"}


def bring(format: str, *files: object) -> int:
    return main(["import", "--format", format, *map(str, files)])


def alternating(folder: Path, times: int, factor: float = 1.5) -> list[Path]:
    """Return copies of the sample of hyperfine, in which the second command takes longer."""
    sample = json.loads((SAMPLES / "hyperfine.json").read_text())
    files = []
    for at in range(times):
        results = sample["results"][:: 1 if at % 2 else -1]
        for result in results:
            seconds = 0.1 + 0.001 * at
            seconds *= factor if result["command"] == "sleep" else 1
            result["times"] = [seconds, seconds * 1.01]
        files.append(folder / f"{at}.json")
        files[-1].write_text(json.dumps({"results": results}))
    return files


def test_processes_of_pyperf_are_runs(store: Store) -> None:
    assert bring("pyperf", *PYPERF) == DONE
    runs = sorted(store.runs("imported"), key=lambda run: run.start_ms)
    assert [run.tags["level"] for run in runs] == ["base"] * 3 + ["head"] * 3
    assert {run.params["benchmark"] for run in runs} == {"sort"}
    sample = json.loads((SAMPLES / "pyperf-base.json").read_text())
    values = [run["values"] for run in sample["benchmarks"][0]["runs"] if "values" in run]
    assert runs[0].metrics["value_seconds"] == pytest.approx(sum(values[0]) / 2)  # of two: median
    assert store.points(runs[0].run_id, "live/value_seconds")[0].value == values[0][0]
    assert all(run.start_ms < (run.end_ms or 0) for run in runs)
    assert bring("pyperf", *PYPERF) == DONE
    assert len(list(store.runs("imported"))) == 6  # a second time changes nothing


@pytest.mark.parametrize(
    ("format", "files"), [("pyperf", PYPERF), ("hyperfine", [SAMPLES / "hyperfine.json"])]
)
def test_unpaired_sequences_are_refused_with_what_is_needed(
    format: str,
    files: list[object],
    store: Store,
    call: Call,
    table: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bring(format, *files) == DONE
    assert "in turn, six times" in capsys.readouterr().out
    assert call(**LEVEL) == WRONG_CALL
    assert "--pair_by" in capsys.readouterr().err
    (row,) = table(**LEVEL, pair_by="time")["rows"]
    assert (row["verdict"], row["no_estimate"]) == ("not comparable", "not_comparable")
    assert "side by side" in row["reason"]


def test_repeated_files_are_blocks(
    store: Store,
    call: Call,
    table: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Import files of two commands, then run the printed call; its baseline is the first."""
    assert bring("hyperfine", *alternating(tmp_path, 8)) == DONE
    line = next(line for line in capsys.readouterr().out.splitlines() if "compare " in line)
    words = shlex.split(line)
    assert words[words.index("--baseline") + 1] == "sleep"
    assert main([*words[words.index("compare", 1) :], "--figures=false"]) == DONE
    (row,) = table(**LEVEL, baseline="true")["rows"]
    assert (row["b"], row["verdict"], row["n_blocks"]) == ("sleep", "slower", 8)
    assert row["estimate"] == pytest.approx(1.5, rel=0.001)


def test_files_of_one_level_are_paired_by_their_order(
    store: Store, table: Callable[..., Any], tmp_path: Path
) -> None:
    files = []
    for at in range(8):
        for level in ("base", "head")[:: 1 if at % 3 else -1]:
            path = tmp_path / f"{level}{at}.json"
            seconds = 0.1 * (1.2 if level == "head" else 1) + 0.001 * at
            path.write_text(json.dumps({"results": [{"command": "x", "times": [seconds] * 2}]}))
            files.append(f"{level}={path}")
    assert bring("hyperfine", *files) == DONE
    (row,) = table(**LEVEL, pair_by="time")["rows"]
    assert (row["verdict"], row["n_blocks"]) == ("slower", 8)


def test_json_list_with_blocks(store: Store, table: Callable[..., Any], tmp_path: Path) -> None:
    entries = [
        {"level": level, "block": block, "metrics": {"wall_seconds": seconds + 0.001 * block}}
        for block in range(6)
        for level, seconds in (("base", 1.0), ("head", 1.3))
    ]
    (tmp_path / "list.json").write_text(json.dumps(entries))
    assert bring("json", tmp_path / "list.json") == DONE
    (row,) = table(**LEVEL)["rows"]
    assert (row["verdict"], row["n_blocks"]) == ("slower", 6)


def test_repaired_file_has_the_same_runs(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Send nothing of a file with a bad name; other values are no runs that exist already."""
    path, metrics = tmp_path / "list.json", {"wall_seconds": 1.0}
    entries = [{"level": text, "block": "1", "metrics": metrics} for text in ("base", "head")]

    def bring_with(**metrics: float) -> tuple[int, int, list[str]]:
        entries[-1]["metrics"] = metrics
        path.write_text(json.dumps(entries))
        code = bring("json", path)
        return code, len(list(store.runs("imported"))), capsys.readouterr().err.splitlines()

    code, runs, (line,) = bring_with(**{"wall;seconds": 1.0})
    assert (code, runs) == (WRONG_CALL, 0)
    assert "head" in line
    assert "wall;seconds" in line
    for _ in range(2):
        assert bring_with(wall_seconds=1.0) == (DONE, 2, [])
    assert bring_with(wall_seconds=1.0, loss=0.5) == (DONE, 2, [])
    code, runs, (line,) = bring_with(wall_seconds=2.0)
    assert (code, runs) == (WRONG_CALL, 2)
    assert {run.metrics["wall_seconds"] for run in store.runs("imported")} == {1.0}


def test_pipe_is_refused(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert bring("json", tmp_path / "pipe.json") == WRONG_CALL


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("pyperf", "[]"),
        ("pyperf", '{"benchmarks": []}'),
        ("pyperf", '{"benchmarks": [{"runs": [{"values": [1], "metadata": {"unit": "mile"}}]}]}'),
        ("hyperfine", '{"results": [{"command": "x", "times": [NaN]}]}'),
        ("hyperfine", '{"results": 1}'),
        ("json", '{"metrics": 1}'),
        ("json", f'[{{"metrics": {{"x": 1{"0" * 400}}}}}]'),
        ("json", '[{"metrics": {"x": 1}, "start_ms": Infinity}]'),
        ("pyperf", '{"benchmarks": [{"runs": [{"values": [1.7e308, 1.7e308]}]}]}'),
        ("json", "[" * 100_000),
        ("json", "{"),
        ("pyperf", None),
    ],
)
def test_unreadable_file_is_one_line(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str, text: str | None
) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    assert bring(format, path) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert "file.json" in line
    assert bring(format) == WRONG_CALL


def run_hyperfine(folder: Path, block: int) -> list[object]:
    commands = [("short", "sleep 0.05"), ("long", "sleep 0.2")][:: 1 if block % 2 else -1]
    named = [word for name, command in commands for word in ("-n", name, command)]
    path = folder / f"{block}.json"
    call = ["hyperfine", "-N", "--runs", "2", "--export-json", path, *named]
    subprocess.run(call, check=True, capture_output=True)
    return [path]


def run_pyperf(folder: Path, block: int) -> list[object]:
    pytest.importorskip("pyperf")
    levels = ("short", "long")[:: 1 if block % 2 else -1]
    files = [(level, folder / f"{level}{block}.json") for level in levels]
    for level, path in files:
        numbers = {"short": 1_000, "long": 2_000}[level]
        setup = f"import random; x = [random.random() for _ in range({numbers})]"
        options = ["-p", "2", "-n", "2", "-w", "1", "--loops", "50", "-q", "-o", str(path)]
        call = [sys.executable, "-m", "pyperf", "timeit", *options, "-s", setup, "sorted(x)"]
        subprocess.run(call, check=True, capture_output=True)
    return [f"{level}={path}" for level, path in files]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "run", "options"),
    [
        pytest.param("hyperfine", run_hyperfine, {"baseline": "short"}, marks=HYPERFINE),
        ("pyperf", run_pyperf, {"pair_by": "time", "baseline": "short"}),
    ],
)
def test_files_of_the_installed_tool(
    format: str,
    run: Callable[[Path, int], list[object]],
    options: dict[str, str],
    table: Callable[..., Any],
    tmp_path: Path,
) -> None:
    assert bring(format, *(file for block in range(6) for file in run(tmp_path, block))) == DONE
    (row,) = table(**LEVEL, **options)["rows"]
    assert row["verdict"] in ("slower", "inconclusive")
    assert row["n_blocks"] == 6
    assert row["estimate"] > 1.2
