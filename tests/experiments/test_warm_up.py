"""A GPU is warmed up by time, until its clock and temperature are steady; the CPU by steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.cell.timing import PhaseValues
from experiments.cell.warm_up import BLIND_SECONDS, LIMIT_SECONDS, WarmUp, of_gpu, reason_to_end
from experiments.workloads.grid.measure import Budget, values_of
from experiments.workloads.training_speed.measure import _parts
from tests.tracking.nvml import Driver, driver, library  # noqa: F401
from tracking.sensors import Sample

CLOCK, CELSIUS = "system/gpu_0_clock_megahertz", "system/gpu_0_temperature_celsius"
IDLE = SimpleNamespace(waited_seconds=0.0)


def ended(warm_up: WarmUp, most: int = 10_000) -> WarmUp:
    """Make steps until it is over."""
    while not warm_up.is_over and warm_up.steps < most:
        warm_up.step()
    return warm_up


def warm_up_of(
    megahertz: Iterator[float], celsius: Iterator[float], *, least: int = 3, most: float = 1e9
) -> WarmUp:
    """A warm-up whose steps take an eighth of a second, and each of which reads the GPU."""
    seconds = count()

    def read() -> dict[str, float]:
        return {CLOCK: next(megahertz), CELSIUS: next(celsius)}

    return WarmUp(least, most, gpus=["gpu_0"], read=read, now=lambda: next(seconds) / 8)


def rising(start: float, by: float) -> Iterator[float]:
    return (start + by * at for at in count())


@pytest.mark.parametrize(
    ("megahertz", "celsius", "seconds", "reason"),
    [
        (lambda: repeat(1_980.0), lambda: repeat(60.0), 1.0, "steady"),
        (
            lambda: iter([345, 800, 1_200, 1_600, *[1_980] * 90]),
            lambda: repeat(60.0),
            1.5,
            "steady",
        ),
        (lambda: repeat(1_980.0), lambda: iter([*range(40, 60), *[60] * 90]), 3.375, "steady"),
        (lambda: repeat(1_980.0), lambda: rising(40.0, 0.2), LIMIT_SECONDS, "limit"),
    ],
    ids=["at once", "a clock that rises", "a temperature that rises", "never"],
)
def test_a_gpu_is_warmed_up_until_clock_and_temperature_stay_for_a_second(
    megahertz: Callable[[], Iterator[float]],
    celsius: Callable[[], Iterator[float]],
    seconds: float,
    reason: str,
) -> None:
    warm_up = ended(warm_up_of(megahertz(), celsius()))
    assert (warm_up.seconds, warm_up.ended_by) == (pytest.approx(seconds), reason)
    assert warm_up.steps == 8 * seconds + 1, "the first step is on its own account"


def test_it_has_its_least_and_its_most_steps() -> None:
    assert ended(warm_up_of(repeat(1_980.0), repeat(60.0), least=40)).steps == 40
    short = ended(warm_up_of(repeat(1_980.0), repeat(60.0), most=5))
    assert (short.steps, short.ended_by) == (5, "steps")


def test_a_gpu_whose_clock_cannot_be_read_is_warmed_up_for_a_fixed_time() -> None:
    samples = [Sample(at / 10, {CELSIUS: 60.0}, {}) for at in range(60)]
    for gpus, known in ((["gpu_0"], samples), ([], [])):
        reasons = [
            reason_to_end(9, seconds, known, gpus, least=3, most=1e9)
            for seconds in (BLIND_SECONDS - 0.1, BLIND_SECONDS)
        ]
        assert reasons == ["", "no clock"]


def test_the_gpu_is_read_ten_times_a_second_at_most() -> None:
    seconds, reads = count(), count()

    def read() -> dict[str, float]:
        next(reads)
        return {CLOCK: 1_980.0}

    warm_up = ended(WarmUp(1, gpus=["gpu_0"], read=read, now=lambda: next(seconds) / 1_000))
    assert warm_up.steps == pytest.approx(1_001, abs=10)
    assert next(reads) <= 12


def test_there_is_none_on_the_cpu() -> None:
    assert of_gpu(SimpleNamespace(device="cpu"), IDLE, 3) is None  # type: ignore[arg-type]


OF_GPU = """
import itertools, json, os
from types import SimpleNamespace
from experiments.cell.warm_up import of_gpu
seconds = itertools.count()
output = SimpleNamespace(waited_seconds=0.0)
warm_up = of_gpu(SimpleNamespace(device="cuda"), output, 2, now=lambda: next(seconds) / 10)
answers = os.environ["NVML_ANSWERS"]
text = open(answers).read()
while not warm_up.is_over:
    if RISES and warm_up.steps < 20:
        with open(answers, "w") as file:
            file.write(text + f"sm_megahertz {345 + 80 * warm_up.steps}\\n")
    warm_up.step()
print(json.dumps([warm_up.ended_by, round(warm_up.seconds, 6)]))
"""


@pytest.mark.parametrize(
    ("answers", "variables", "expected"),
    [
        ({}, {}, ["steady", 1.05]),
        ({"rises": True}, {}, ["steady", 2.9]),
        ({"sm_megahertz": None}, {}, ["no clock", BLIND_SECONDS]),
        ({}, {"CUDA_VISIBLE_DEVICES": "7"}, ["no clock", BLIND_SECONDS]),
    ],
)
def test_the_drivers_clock_decides(
    answers: dict[str, float | None],
    variables: dict[str, str],
    expected: list[object],
    driver: Driver,
) -> None:
    rises = answers.pop("rises", False)
    driver.answers(**answers)
    found = json.loads(driver.python(f"RISES = {rises}\n" + OF_GPU, **variables))
    assert found == [expected[0], pytest.approx(expected[1], abs=0.11)]


# ---- what the loops make of it


def test_a_budget_begins_when_the_gpu_is_warm() -> None:
    """The steps of the warm-up count neither as the least, nor as time, nor in the summary."""
    warm_up = warm_up_of(repeat(1_980.0), repeat(60.0))
    budget = Budget(IDLE, seconds=0.0, least=4, most=99, warm_up=warm_up)  # type: ignore[arg-type]
    ends = []
    while budget.step():
        ends.append(budget.stepped(SimpleNamespace(end_warmup=lambda: None)))  # type: ignore[arg-type]
    assert (warm_up.steps, len(ends), ends.index(True)) == (9, 9 + 4, 8)
    values = values_of("train", [1.0] * 13, 8, budget)
    assert values.steady[0] == [1.0] * 3, "the first of those that count, too, as on the CPU"


@pytest.mark.parametrize(("timed", "parts"), [(False, [5, 20]), (True, [5, 4, 20])])
def test_a_training_of_so_many_steps_has_them_after_the_warm_up(
    timed: bool, parts: list[int]
) -> None:
    warm_up = warm_up_of(repeat(1_980.0), repeat(60.0)) if timed else None
    settings = {"steps": 20, "warmup_steps": 5, "lengths": "fixed"}
    found = []
    for part in _parts([object()] * 3, settings, warm_up):  # type: ignore[list-item]
        found.append(0)
        for _ in part:
            found[-1] += 1
            if warm_up:
                warm_up.step()
    assert found == parts


def test_each_process_of_a_training_has_its_own_warm_up() -> None:
    values = PhaseValues("train", (1.0,) * 10, (4,) * 10, 2, starts=(0, 6), warmups=(3, 1))
    assert [step for step, warm in enumerate(values.is_warmup) if warm] == [0, 1, 2, 6]


CELL = """
import json, sys
from pathlib import Path
from experiments.selftest import cells
folder, study, given = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
result = cells.run(folder, study, "toy", "cuda", **given)
(records,) = folder.glob("cells/*/records.jsonl")
tags = {}
for line in records.read_text().splitlines():
    record = json.loads(line)
    tags |= record["values"] if record["record"] == "Tags" else {}
print(json.dumps([result.outcome, result.reason, dict(result.metrics), tags]))
"""


@pytest.mark.usefixtures("toy_installed")
@pytest.mark.parametrize(
    ("study", "given"),
    [
        ("lenet", {"epochs": 30, "warmup_steps": 2, "inference_requests": 6, "warmup_requests": 1}),
        pytest.param(
            *(
                "grid",
                {"models": ["lenet"], "image_sizes": [28], "batch_sizes": [4], "seconds": 0.05},
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(
                "training_speed",
                {"models": ["lenet"], "size": "tiny", "steps": 20, "warmup_steps": 2},
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_steps_run_freely_on_a_gpu_that_is_warm(
    study: str,
    given: dict[str, object],
    driver: Driver,
    tmp_path: Path,
) -> None:
    given |= {"timing": "free"}
    head = f"import sys\nsys.argv = ['', {str(tmp_path)!r}, {study!r}, {json.dumps(given)!r}]\n"
    variables = {"EVENHAND_TOY_GPU": "1", "EVENHAND_TOY_COSTS": '{"toy": {"step": 0.01}}'}
    outcome, reason, metrics, tags = json.loads(driver.python(head + CELL, **variables))
    assert (outcome, reason) == ("ok", "")
    assert tags["warmup.train"] == "steady"
    assert 1.0 <= metrics["check/train_warmup_seconds"] < LIMIT_SECONDS
    assert metrics["check/train_warmup_steps"] > 2
    assert metrics["train/examples_per_second"] > 0
    assert "train/step_seconds" not in metrics, "every single step belongs to the warm-up"
