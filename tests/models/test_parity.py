"""The gate refuses what differs, and says what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models import parity
from models.contract import ModelError
from models.parity import ParityRequest
from models.testing import contract_run
from tests.models.children import run_python
from tests.models.planted_faults import FAULTS

# What each fault must change; the others of its quantities it must leave alone, or the gate could not tell where to look.
CAUGHT = {
    "epsilon": {"forward", "loss", "gradient", "step"},
    "same_padding": {"forward", "loss", "gradient", "step"},
    "transposed_kernel": {"forward", "loss", "gradient", "step"},
    "gate_order": {"forward", "loss", "gradient", "step"},
    "stock_adam": {"step"},
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    run_python("-m", "tests.models.planted_faults", str(folder))
    return folder


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_refused(fault: str, faulty: Path) -> None:
    model = FAULTS[fault][0]
    with np.load(faulty / f"{fault}.npz") as computed:
        rows = parity.judge(model, ("pytorch", contract_run("pytorch").parity(model)), (fault, dict(computed)))
    assert {row.quantity for row in rows if not row.equal} == CAUGHT[fault]


def test_compare_measures_relative_l2() -> None:
    reference = {"a": np.array([3.0, 4.0]), "b": np.zeros(2), "c": np.ones(2), "d": np.ones(2), "e": np.ones(1)}
    other = {"a": np.array([3.0, 4.5]), "b": np.zeros(2), "c": np.ones(3), "d": np.array([1, np.nan])}
    errors = parity.compare(reference, other)
    assert errors == {"a": pytest.approx(0.1), "b": 0.0, "c": np.inf, "d": np.inf, "e": np.inf}


def test_the_gate_runs_each_side_in_a_process() -> None:
    rows = parity.gate(ParityRequest("caption_decoder"), ["pytorch", "pytorch"])
    assert [row.quantity for row in rows] == list(parity.LIMITS)
    assert all(row.error == 0 for row in rows)  # the same program twice: the same bits


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ModelError, match="no model 'captions'; have caption_decoder, densenet201"):
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
        run_python("-c", script, name, str(tmp_path / f"{name}.npy"))
        outputs.append(np.load(tmp_path / f"{name}.npy"))
    assert outputs[0].shape == (2, 1920)
    assert np.linalg.norm(outputs[1] - outputs[0]) <= 1e-12 * np.linalg.norm(outputs[0])
