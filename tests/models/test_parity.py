"""The gate refuses what differs, and says what."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

import models
from experiments.run import parity_cache
from models import parity
from models.contract import ModelError
from models.parity import ParityRequest, Side
from models.testing import contract_run
from tests.models.children import run_in
from tests.models.planted_faults import FAULTS, FRAMEWORK

FUNCTION = {"forward", "loss", "gradient", "step"}
BLOCK = "encoder.layer.0"
ATTENTION = f"first between {BLOCK}.attention.self.value and {BLOCK}.attention.self.dropout"
# What each fault must change, and where the gate must say that it is; what it leaves alone the gate must not blame.
CAUGHT: dict[str, tuple[set[str], str]] = {
    "nothing": (set(), ""),
    "same_padding": (FUNCTION | {"statistics"}, "first in layer features.conv0"),
    "epsilon": (FUNCTION | {"statistics"}, "first in layer features.norm0"),
    "momentum": ({"statistics"}, "statistics of norm2_1.running_"),
    "dropout_rate": ({"mask", "dropout"}, "dropout of hidden_drop differs by 2e-01"),
    "no_dropout": (
        {"place", "mask", "dropout"},
        "dropout of classifier_drop is missing on one side",
    ),
    "hidden_dropout": ({"place", "step"}, "place of state_dropout"),
    "dropout_place": ({"place"}, "place of state_dropout"),
    "stochastic_depth_of_pixels": ({"mask"}, "mask of features.5.1.stochastic_depth differs by"),
    "gate_order": (FUNCTION | {"place"}, "first in layer lstm"),
    "flatten_order": (FUNCTION, "first between conv2 and linear1"),
    "activation": (FUNCTION, "first between conv1 and conv2"),
    "stock_adam": ({"step"}, "by adam differs by"),
    "momentum_with_the_rate_in_it": (
        {"step"},
        "by sgd, momentum 0.9, weight decay 0.01 differs by",
    ),
    "decay_apart_from_the_gradient": (
        {"step"},
        "by sgd, momentum 0.9, weight decay 0.01 differs by",
    ),
    "rate_that_stays": ({"step"}, "differs by"),
    "pooled_padding": (FUNCTION | {"statistics", "place"}, " and Mixed_5b.branch_pool.conv"),
    "label_shift": ({"loss", "gradient", "step"}, "loss of mean differs by"),
    "transposed_kernel": (FUNCTION | {"statistics"}, "first in layer features.conv0"),
    "layer_norm_epsilon": (FUNCTION | {"place"}, f"first in layer {BLOCK}.output.LayerNorm"),
    "attention_mask": (FUNCTION | {"place"}, ATTENTION),
    "key_bias_at_the_values": (FUNCTION | {"place"}, f" and {BLOCK}.attention.output.dense"),
    "fused_activation": (FUNCTION, "first between linear2 and linear3"),
}
ENDED = {
    "one_bias_more": "weights: 'conv1_1.bias' is missing",
}


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What PyTorch computes, by model, and Keras with each of the faults."""
    folder = tmp_path_factory.mktemp("faults")
    with ThreadPoolExecutor() as pool:
        list(
            pool.map(
                lambda name: run_in(name, "-m", "tests.models.planted_faults", name, str(folder)),
                ("pytorch", FRAMEWORK),
            )
        )
    return folder


@pytest.mark.parametrize("fault", CAUGHT)
def test_planted_faults_are_refused(fault: str, computed: Path) -> None:
    model = FAULTS[fault][0]
    with np.load(computed / f"{model}.npz") as right, np.load(computed / f"{fault}.npz") as faulty:
        rows = parity.judge(model, ("pytorch", dict(right)), ("planted", dict(faulty)))
    quantities, where = CAUGHT[fault]
    assert {row.quantity for row in rows if not row.equal} == quantities
    told = "".join(parity_cache.differences(rows))
    assert told.startswith(f"{model} of planted is not equal to that of pytorch: ") == bool(
        quantities
    )
    assert where in told
    if "first " in where:
        assert "gradient" not in told


@pytest.mark.parametrize("fault", ENDED)
def test_planted_faults_that_no_weights_fit_are_named(fault: str, computed: Path) -> None:
    assert ENDED[fault] in (computed / f"{fault}.txt").read_text()


def test_every_fault_has_its_expectation() -> None:
    assert FAULTS.keys() == CAUGHT.keys() | ENDED.keys()


def test_compare_measures_relative_l2() -> None:
    reference = {
        "a": np.array([3.0, 4.0]),
        "b": np.zeros(2),
        "c": np.ones(2),
        "d": np.ones(2),
        "e": np.ones(1),
    }
    other = {
        "a": np.array([3.0, 4.5]),
        "b": np.zeros(2),
        "c": np.ones(3),
        "d": np.array([1, np.nan]),
    }
    errors = parity.compare(reference, other)
    assert errors == {"a": pytest.approx(0.1), "b": 0.0, "c": np.inf, "d": np.inf, "e": np.inf}


def test_gradients_that_are_zero_but_for_rounding_are_compared_with_the_largest() -> None:
    """Those of noise on both sides alone: whatever is larger on one side, missing, misshapen or not finite is refused."""
    large, noise = np.array([3.0, 4.0]), np.array([1e-18, -2e-18])

    def judged(other: np.ndarray | None) -> parity.Row:
        sides = [
            {"gradient/weight": large, **({} if bias is None else {"gradient/bias": bias})}
            for bias in (noise, other)
        ]
        rows = parity.judge("bert", ("reference", sides[0]), ("other", sides[1]))
        return next(row for row in rows if row.quantity == "gradient")

    for zero in (-noise, np.zeros(2), np.array([4e-12, 0])):
        row = judged(zero)
        assert (row.equal, row.compared, row.vanishing) == (True, 2, 1)
        assert row.error == pytest.approx(np.linalg.norm(zero - noise) / 5)
    for other in (np.array([6e-12, 0]), np.array([np.nan, 0]), np.zeros(3), None):
        row = judged(other)
        assert (row.equal, row.vanishing, row.tensor) == (False, 0, "bias")


def test_rates_are_judged_by_what_chance_explains() -> None:
    """Against the intervals as quantiles of the beta distribution, and against pairs drawn at one rate and at half of it."""
    for pair in (
        [(500_000, 10**6), (250_000, 10**6)],
        [(1, 1000), (50, 1000)],
        [(40, 100), (60, 150)],
    ):
        (less, size), (more, other) = sorted(pair, key=lambda one: one[0] / one[1])
        highest = beta.ppf(1 - parity.CHANCE / 2, less + 1, size - less)
        lowest = beta.ppf(parity.CHANCE / 2, more, other - more + 1)
        error, limit = parity._rates(*map(np.array, pair))
        assert error == pytest.approx(more / other - less / size)
        assert limit - error == pytest.approx(highest - lowest)
    rng, drawn = np.random.default_rng(0), 2**17
    for rate in (
        0.00625,
        0.2,
        0.5,
    ):  # the smallest rate of EfficientNet-B4, MobileNetV2's, VGG-16's
        for _ in range(20):
            whole, again, half = rng.binomial(drawn, (rate, rate, rate / 2))
            for count, explained in ((again, True), (half, False)):
                error, limit = parity._rates(np.array([whole, drawn]), np.array([count, drawn]))
                assert (error <= limit) == explained


def test_weights_are_moved_in_the_models_own_proportions() -> None:
    """One shift for all would be five times the weights of whole BERT, and saturate its attention."""
    module, rng = models.spec("bert"), np.random.default_rng(0)
    weights = module.initial_weights(module.Spec(layers=1, vocabulary=99), rng)
    moved = parity._perturbed(weights, rng)
    alike = {name for name, array in weights.items() if len(np.unique(array)) == 1}
    assert 0 < len(alike) < len(weights)
    for name, array in weights.items():
        if name in alike:  # biases, scales
            assert len(np.unique(moved[name])) > 1
        else:  # a factor of 0.5 to 1.5 alone widens by sqrt(1 + 1 / 12), the shift by little more
            assert moved[name].std() / array.std() == pytest.approx(
                np.sqrt(1 + 1 / 12 + 0.01), rel=0.05
            )


def test_the_gate_runs_each_side_in_a_process() -> None:
    rows = parity.gate(ParityRequest("caption_decoder"), ["pytorch", "pytorch"])
    assert [row.quantity for row in rows] == list(parity.QUANTITIES)
    assert all(row.error == 0 for row in rows)  # the same program twice: the same bits


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(
        ModelError,
        match=r"no model 'captions'; did you mean caption_decoder.*\? have bert, .*densenet201",
    ):
        parity.gate(ParityRequest("captions"), ["pytorch"])
    with pytest.raises(ModelError, match="no framework 'pytorhc'; did you mean pytorch"):
        parity.gate(ParityRequest("caption_decoder"), ["pytorhc"])


@pytest.mark.slow
def test_densenet_at_full_depth_agrees(tmp_path: Path) -> None:
    """The probe is shallow; here all 201 layers, forward, in float64."""
    script = """
import sys
import numpy as np
from models import spec
from models.frameworks import open_framework
module, rng = spec("densenet201"), np.random.default_rng(0)
framework = open_framework(sys.argv[1], device="cpu", threads=1, precision="float64", seed=0)
sizes = module.Spec(classes=None)
network = framework.build("densenet201", sizes)
framework.load_weights(network, module.initial_weights(sizes, rng))
np.save(sys.argv[2], framework.infer(network, (rng.standard_normal((2, 96, 96, 3)).astype(np.float32),)))
"""
    outputs = []
    for name in ("pytorch", "tensorflow"):
        run_in(name, "-c", script, name, str(tmp_path / f"{name}.npy"))
        outputs.append(np.load(tmp_path / f"{name}.npy"))
    assert outputs[0].shape == (2, 1920)
    assert np.linalg.norm(outputs[1] - outputs[0]) <= 1e-12 * np.linalg.norm(outputs[0])


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_the_device_reaches_the_processes_that_compute() -> None:
    with pytest.raises(ModelError, match="torch sees no GPU"):
        parity.gate(ParityRequest("lenet", device="cuda"), ["pytorch", "keras-torch"])
    with pytest.raises(AssertionError, match="torch sees no GPU"):
        contract_run("pytorch", device="cuda")


PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
ECHO = f"""#!{sys.executable}
import os, sys
names = "CUDA_VISIBLE_DEVICES", {PREALLOCATE!r}
sys.exit(",".join(os.environ.get(name, "-") for name in names))
"""


def test_processes_that_compute_have_the_variables_of_their_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(ECHO)
    program.chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    monkeypatch.delenv(PREALLOCATE, raising=False)
    side = Side("pytorch", python=str(program))

    def seen(device: str, environment: dict[str, str] | None = None) -> str:
        with pytest.raises(ModelError) as error:
            parity.gate(ParityRequest("lenet", device=device), [side], environment=environment)
        return str(error.value).split()[-1]

    assert [seen("cpu"), seen("cuda")] == ["2,1,-", "2,1,false"]
    assert seen("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-a"}) == "GPU-a,-"
    monkeypatch.setattr(sys, "executable", str(program))
    for device, expected in (("cpu", "2,1,-"), ("cuda", "2,1,false")):
        with pytest.raises(AssertionError, match=f"^{expected}\n"):
            contract_run.__wrapped__(
                "pytorch", device=device
            )  # not what an earlier test has cached
