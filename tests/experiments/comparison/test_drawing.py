"""Figures drawn in two processes: the same as in one, whatever happens to the second."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Canvas

from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import drawing, figures
from experiments.comparison.runs import raw
from experiments.comparison.verdicts import batch_sizes
from tests.conftest import ROOT, wait_for
from tests.experiments.comparison.campaigns import STEP, frame
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.comparison.test_batch_sizes import _with_inference, _workloads
from tracking.cpus import cpus

LIVES = """
import multiprocessing, time
from experiments.comparison.report import drawing

if __name__ == "__main__":
    with drawing.hands(second=True) as begin:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(600)
"""


def _paint(folder: Path, name: str, canvas: Canvas) -> None:
    """Leaves behind which process has drawn it."""
    (folder / name).write_text(str(os.getpid()))
    warnings.warn(f"{name} is odd", stacklevel=1)
    canvas.add_subplot().set_title(name)


def _noted(folder: Path, count: int) -> list[figures.Drawing]:
    return [figures.Drawing(f"f{at}", "", "", 1.0, partial(_paint, folder, f"f{at}")) for at in range(count)]


@pytest.fixture(scope="module")
def everything() -> list[figures.Drawing]:
    """Nearly every kind of figure there is."""
    table = _with_inference(_workloads(3))
    comparison = compare(table, strata=["workload"])
    steps = raw_runs(table, strata=("workload",), maximum=9)
    return figures.drawings(comparison, steps, batch_sizes.curves(comparison, 1))


def test_every_kind_of_figure_can_go_to_another_process(everything: Sequence[figures.Drawing]) -> None:
    assert len(everything) == 9
    assert [pickle.loads(pickle.dumps(one)).caption for one in everything] == [one.caption for one in everything]


def test_two_processes_draw_the_same_as_one(everything: Sequence[figures.Drawing]) -> None:
    some = [one for one in everything if one.name in ("ranks", "blocks")]
    with drawing.hands(second=True) as begin:
        assert begin(some)() == drawing.here(some)()


def test_both_processes_draw_and_warnings_come_home(tmp_path: Path) -> None:
    with drawing.hands(second=True) as begin:
        finish = begin(_noted(tmp_path, 6))
        wait_for(lambda: (tmp_path / "f0").exists(), 60)
        with pytest.warns(UserWarning, match="is odd") as told:
            found = finish()
    assert [one.name for one in found] == [f"f{at}" for at in range(6)]
    assert {str(one.message) for one in told} == {f"f{at} is odd" for at in range(6)}
    assert (tmp_path / "f0").read_text() != str(os.getpid())


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.filterwarnings("ignore:f. is odd")
def test_where_the_second_process_is_killed_the_first_draws_all(begun: bool, tmp_path: Path) -> None:
    with drawing.hands(second=True) as begin:
        finish = begin(_noted(tmp_path, 3)) if begun else None
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
        found = (finish or begin(_noted(tmp_path, 3)))()
    assert [one.name for one in found] == ["f0", "f1", "f2"]


def test_the_second_process_dies_with_the_first(tmp_path: Path) -> None:
    script = tmp_path / "lives.py"
    script.write_text(LIVES)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        second = int(first.stdout.readline())
        wait_for(lambda: Path(f"/proc/{second}/status").exists(), 60)
        first.kill()
    wait_for(lambda: not _alive(second), 60)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(("blocks", "second"), [(raw.VERY_MANY // 2, False), (raw.VERY_MANY // 2 + 1, cpus().usable > 1)])
def test_very_many_runs_take_a_second_process_and_the_report_is_the_same(blocks: int, second: bool, tmp_path: Path) -> None:
    before, children = multiprocessing.active_children(), list[int]()

    def steps(_shown: Sequence[raw.ShownRun]) -> list[raw.RawRun]:
        children.append(len(set(multiprocessing.active_children()) - set(before)))
        return []

    spec = ComparisonSpec(outcomes=[STEP])
    table = frame(blocks=blocks)
    found = answer(spec, table, tmp_path, ReportOptions("many"), steps)
    assert children == [int(second)]
    for one in figures.draw(found.comparison):
        assert (tmp_path / "figures" / f"{one.name}.png").read_bytes() == one.png


def test_a_report_without_figures_says_so(tmp_path: Path) -> None:
    spec, without = ComparisonSpec(outcomes=[STEP]), ReportOptions("", figures=False)
    found = answer(spec, frame(blocks=6), tmp_path, without, lambda _: [])
    assert found.report is not None
    assert not list((tmp_path / "figures").glob("*"))
    assert "figures=false" in found.report.read_text()
