"""Parity gate: it refuses networks that differ, and names the difference."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

import models
from experiments.run import parity_cache
from models import parity
from models.contract import ErrorCode, ModelError
from models.errors import last_lines
from models.parity import ParityRequest, Side
from tests.conftest import ROOT
from tests.models.children import forked_processes, run_in, side
from tests.models.planted_faults import FAULTS, FRAMEWORK
from tests.models.test_contract import slow_unless

MODULE = "tests.models.planted_faults"
FUNCTION = {"forward", "loss", "gradient", "step"}
BLOCK = "encoder.layer.0"
ATTENTION = f"first in the output of {BLOCK}.attention.self.dropout, behind {BLOCK}.attention."
# Quantities that each fault changes, and the place that the gate names.
CAUGHT: dict[str, tuple[set[str], str]] = {
    "nothing": (set(), ""),
    "same_padding": (
        FUNCTION | {"statistics"},
        "first in the output of features.conv0, behind inputs",
    ),
    "epsilon": (FUNCTION | {"statistics"}, "first in the output of features.norm0"),
    "momentum": ({"statistics"}, "statistics of norm2_1.running_"),
    "dropout_rate": ({"mask", "dropout"}, "dropout of hidden_drop differs by"),
    "stochastic_depth_of_pixels": ({"mask"}, "mask of features.5.1.stochastic_depth differs by"),
    "gate_order": (FUNCTION | {"place"}, "first in the output of state_dropout"),
    "stock_adam": ({"step"}, "by adam differs by"),
    "momentum_with_the_rate_in_it": (
        {"step"},
        "by sgd, momentum 0.9, weight decay 0.01 differs by",
    ),
    "rate_that_stays": ({"step"}, "differs by"),
    "attention_mask": (FUNCTION | {"place"}, ATTENTION),
    "key_bias_at_the_values": (
        FUNCTION | {"place"},
        f"first in the output of {BLOCK}.attention.output.dense",
    ),
    "fused_activation": (FUNCTION, "first in the output of linear3, behind linear2"),
}


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays of PyTorch, by model, and of Keras with each of the faults."""
    folder = tmp_path_factory.mktemp("faults")
    with ThreadPoolExecutor() as pool:
        names = ("pytorch", FRAMEWORK)
        list(pool.map(lambda name: run_in(name, "-m", MODULE, name, str(folder)), names))
    return folder


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_refused(fault: str, computed: Path) -> None:
    model = FAULTS[fault][0]
    with np.load(computed / f"{model}.npz") as right, np.load(computed / f"{fault}.npz") as faulty:
        rows = parity.judge(model, ("pytorch", dict(right)), ("planted", dict(faulty)))
    quantities, where = CAUGHT[fault]
    assert {row.quantity for row in rows if not row.equal} == quantities
    text = "".join(parity_cache.differences(rows))
    assert where in text
    assert "first " not in where or "gradient" not in text


def test_gradients_of_rounding_are_compared_with_the_largest() -> None:
    """Larger, missing, misshapen and infinite ones are refused."""
    large, noise = np.array([3.0, 4.0]), np.array([1e-18, -2e-18])

    def judge(other: np.ndarray | None) -> parity.Row:
        right = {"gradient/weight": large, "gradient/bias": noise}
        faulty = {"gradient/weight": large} | ({} if other is None else {"gradient/bias": other})
        rows = parity.judge("bert", ("reference", right), ("other", faulty))
        return next(row for row in rows if row.quantity == "gradient")

    for zero in (-noise, np.zeros(2), np.array([4e-12, 0])):
        row = judge(zero)
        assert (row.equal, row.compared, row.vanishing) == (True, 2, 1)
        assert row.error == pytest.approx(np.linalg.norm(zero - noise) / 5)
    for other in (np.array([6e-12, 0]), np.array([np.nan, 0]), np.zeros(3), None):
        row = judge(other)
        assert (row.equal, row.vanishing, row.tensor) == (False, 0, "bias")


def test_rates_differ_beyond_chance() -> None:
    """Limits are quantiles of the beta distribution; a rate differs from half of it."""
    for pair in ([(500_000, 10**6), (250_000, 10**6)], [(1, 1000), (50, 1000)]):
        (less, size), (more, other) = sorted(pair)
        highest = beta.ppf(1 - parity.CHANCE / 2, less + 1, size - less)
        lowest = beta.ppf(parity.CHANCE / 2, more, other - more + 1)
        error, limit = parity._compare_rates(*map(np.array, pair))
        assert error == pytest.approx(more / other - less / size)
        assert limit - error == pytest.approx(highest - lowest)
    rng, drawn = np.random.default_rng(0), 2**17
    for rate in (0.00625, 0.5):  # the smallest rate of EfficientNet-B4, VGG-16's
        whole, again, half = rng.binomial(drawn, (rate, rate, rate / 2))
        for count, is_equal in ((again, True), (half, False)):
            error, limit = parity._compare_rates(np.array([whole, drawn]), np.array([count, drawn]))
            assert (error <= limit) == is_equal


def test_weights_are_moved_in_proportion() -> None:
    """The same shift for all would saturate the attention of whole BERT."""
    module, rng = models.spec("bert"), np.random.default_rng(0)
    weights = module.initial_weights(module.Spec(layers=1, vocabulary=99), rng)
    moved = parity._perturbed(weights, rng)
    constant = {name for name, array in weights.items() if np.ptp(array) == 0}
    assert 0 < len(constant) < len(weights)
    for name, array in weights.items():
        if name in constant:  # biases, scales
            assert np.ptp(moved[name]) > 0
        else:  # a factor of 0.5 to 1.5 widens by sqrt(1 + 1 / 12), the shift by little more
            widened = pytest.approx(np.sqrt(1 + 1 / 12 + 0.01), rel=0.05)
            assert moved[name].std() / array.std() == widened


@pytest.mark.usefixtures("toy_installed")
def test_gate_computes_each_side_in_a_process() -> None:
    rows = parity.gate([ParityRequest("caption_decoder")], ["toy", "toy+twin"])
    assert [row.quantity for row in rows] == list(parity.QUANTITIES)
    assert all(row.error == 0 for row in rows)  # the same program: the same bits


@pytest.mark.usefixtures("toy_installed")
def test_one_process_of_a_side_computes_all_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, seen = list[str](), list[tuple[int, int]]()
    run = subprocess.run

    def counted(command: list[str], **options: Any) -> Any:
        ran.append(command[3])
        return run(command, **options)

    monkeypatch.setattr(parity, "subprocess", SimpleNamespace(run=counted))
    monkeypatch.setattr(parity, "PROGRESS_SECONDS", 0.01)  # a toy is computed in less than default
    names = ["caption_decoder", "lenet"]
    requests = [ParityRequest(name) for name in names]
    rows = parity.gate(requests, ["toy", "toy+twin"], progress=lambda *at: seen.append(at))
    assert sorted(ran) == ["toy", "toy+twin"]
    assert [row.model for row in rows[:: len(parity.QUANTITIES)]] == names
    assert all(row.error == 0 for row in rows)
    assert {of for _, of in seen} == {4}


@pytest.mark.parametrize(
    "framework", slow_unless(("pytorch",), ("pytorch", "tensorflow", "keras-torch"))
)
def test_networks_of_one_process_are_those_of_several(framework: str, tmp_path: Path) -> None:
    names = ("caption_decoder", "gnmt", "lenet")
    requests = [ParityRequest(name) for name in names]
    with forked_processes():
        together = parity.compute_in_process(requests, Side(framework), tmp_path / "computed")
    for name, arrays in zip(names, together, strict=True):
        reference, other = (framework, side(framework, name)), (framework, arrays)
        rows = parity.judge(name, reference, other)
        assert all(row.error <= 1e-3 * row.limit for row in rows if row.quantity != "dropout")


@pytest.mark.parametrize(
    ("model", "framework"), [("captions", "pytorch"), ("caption_decoder", "pytorhc")]
)
def test_unknown_names_are_refused(model: str, framework: str) -> None:
    with pytest.raises(ModelError, match="did you mean") as refused:
        parity.gate([ParityRequest(model)], [framework])
    assert refused.value.code is ErrorCode.UNKNOWN_NAME


PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
ECHO = f"""#!{sys.executable}
import os, sys
names = "CUDA_VISIBLE_DEVICES", {PREALLOCATE!r}
sys.exit(",".join(os.environ.get(name, "-") for name in names))
"""


def test_processes_have_the_variables_of_their_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(ECHO)
    program.chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    monkeypatch.delenv(PREALLOCATE, raising=False)
    side = Side("pytorch", python=str(program))

    def variables(device: str, environment: dict[str, str] | None = None) -> str:
        with pytest.raises(ModelError) as error:
            parity.gate([ParityRequest("lenet", device=device)], [side], environment=environment)
        return str(error.value).split()[-1]

    assert [variables("cpu"), variables("cuda")] == ["2,1,-", "2,1,false"]
    assert variables("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-a"}) == "GPU-a,-"


def test_process_that_fails_after_its_results_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport sys, numpy\n"
        "numpy.savez(sys.argv[4] + '/1.npz', x=1)\nsys.exit(3)\n"
    )
    program.chmod(0o755)
    side = Side("pytorch", python=str(program))
    with pytest.raises(ModelError, match="exited with 3"):
        parity.compute_in_process([ParityRequest("lenet")], side, tmp_path / "computed")


def test_last_lines_of_a_process_name_its_innermost_frames() -> None:
    script = "import json; from models import own; own.digest(json)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    text = last_lines(done.stderr)
    last = done.stderr.splitlines()[-1]
    assert text.startswith(f"{last} (models/own.py:")
    assert str(ROOT) not in text
    assert last_lines("") == "no message"
