"""FLOPs, peak and MFU of a campaign's cells, recorded after the last one."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.cli.codes import DONE, NO_VERDICT
from models import limits
from tests.conftest import Place
from tests.experiments import small_campaigns

QUICK = {"frameworks": "toy,toy+twin", "batch_sizes": "2", "image_sizes": "28", "seconds": "0.05"}
PEAK, BANDWIDTH = 5e9, 1e9
# LeNet-5: convolutions of 6 and 16 filters of 5 × 5, then three linear layers.
FLOPS = 2 * (28**2 * 6 * 25 + 10**2 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10)


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch, local_cells: None) -> list[float]:
    """Return the peaks that the next checks find, in order; the toy multiplies no matrices."""
    peaks = [PEAK, 0.9 * PEAK, 1.02 * PEAK]

    def next_peak(*_: object) -> float:
        return peaks.pop(0) if peaks else 0.0

    monkeypatch.setattr(limits, "peak_flops", next_peak)
    monkeypatch.setattr(limits, "bandwidth", lambda *_: BANDWIDTH)
    return peaks


def _measure(place: Place, code: int = NO_VERDICT, **options: str) -> None:
    grid = {"models": "lenet", "phases": "inference,train", "classes": "10", **QUICK, **options}
    done = place.call(*small_campaigns.command(place, "grid", **grid))
    assert done.returncode == code, done.stdout + done.stderr


def test_shares_of_the_peak_are_as_the_throughputs(
    place: Place, peaks: list[float], tmp_path: Path
) -> None:
    """The twin is the same library as the toy; the peak is the higher of before and after."""
    peaks.remove(0.9 * PEAK)
    cache = str(tmp_path / "cache")
    _measure(place, cache=cache)
    assert peaks == []
    runs = small_campaigns.cells(place)
    assert len(runs) == 2
    for run in runs:
        metrics = run.data.metrics
        assert metrics["machine/peak_flops"] == 1.02 * PEAK
        assert metrics["machine/bandwidth"] == BANDWIDTH
        assert metrics["model/flops_per_example"] == FLOPS
        training = metrics["model/training_flops_per_example"]
        assert 2.5 < training / FLOPS < 3.1
        rate = metrics["train/examples_per_second"]
        assert metrics["train/mfu"] == pytest.approx(rate * training / (1.02 * PEAK))
        weights = metrics["model/trainable_parameters"]
        moved = 4 * weights + 2 * 4 * (28**2 + 10)
        assert metrics["model/inference_flops_per_byte"] == pytest.approx(2 * FLOPS / moved)
    a, b = (run.data.metrics for run in runs)
    for share, rate in (
        ("train/mfu", "train/examples_per_second"),
        ("inference/mfu", "inference/examples_per_second"),
    ):
        assert a[share] / b[share] == pytest.approx(a[rate] / b[rate])
    report = small_campaigns.report(place)
    assert "How far from the machine’s limit" in report
    # the next campaign does not count again
    (file,) = Path(cache, "flops").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"forward": 7.0}))
    peaks += [PEAK, PEAK]
    _measure(place, cache=cache)
    counted = [run.data.metrics["model/flops_per_example"] for run in small_campaigns.cells(place)]
    assert sorted(counted) == [7.0, 7.0, FLOPS, FLOPS]


@pytest.mark.parametrize("second", [[0.9 * PEAK], []])
def test_peak_that_changes_or_is_not_measured_again_is_refused(
    place: Place, peaks: list[float], second: list[float]
) -> None:
    peaks[1:] = second
    _measure(place)
    for run in small_campaigns.cells(place):
        assert "model/flops_per_example" in run.data.metrics
        assert not {"train/mfu", "machine/peak_flops"} & run.data.metrics.keys()
    assert "No share of the machine's peak on cpu" in small_campaigns.report(place)


def test_peak_is_measured_while_nothing_computes(tmp_path: Path) -> None:
    order, has_begun = list[str](), threading.Event()

    def compute() -> None:
        with limits.computing(tmp_path):
            has_begun.set()
            time.sleep(0.3)
            order.append("computed")

    other = threading.Thread(target=compute)
    other.start()
    assert has_begun.wait(10)
    with limits.computing(tmp_path) as wait:
        wait()
        order.append("measured")
    other.join()
    assert order == ["computed", "measured"]


def test_peak_that_is_not_enough_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks_of_tries = [3.0, 2.0, 9.5, 11.0]
    monkeypatch.setattr(limits, "_peak", lambda _: peaks_of_tries.pop(0))
    pytorch = SimpleNamespace(architecture="pytorch")
    assert limits.peak_flops(pytorch, enough=9.5) == 9.5  # type: ignore[arg-type]
    assert peaks_of_tries == [11.0]
    peaks_of_tries[:] = [1.0] * 9
    assert limits.peak_flops(pytorch, enough=9.5) == 1.0  # type: ignore[arg-type]
    assert len(peaks_of_tries) == 9 - limits.TRIES


def test_smoke_test_measures_no_peak(place: Place, peaks: list[float]) -> None:
    _measure(place, code=DONE, preset="smoke")
    assert len(peaks) == 3
    for run in small_campaigns.cells(place):
        assert not [name for name in run.data.metrics if "flops" in name or "mfu" in name]
