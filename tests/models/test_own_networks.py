"""Networks of users, in folders as in docs/own-model.md, and the parity gate."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf

from experiments.run import parity_cache
from models import own
from models.contract import ModelError
from models.frameworks import missing
from models.parity import ParityRequest, gate
from models.testing import check_equality, check_initial_weights, check_sizes
from tests.models.children import run_in
from tests.models.test_contract import slow_unless

FOLDERS = Path(__file__).parent / "own"
PARAMETERS = {"vision_transformer": 53_354, "convnext": 71_002}
GELU = 'gelu(linear(y, 4 * width, f"{path}.linear1"))'
BLOCK = "stages.0.blocks.0"


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own.FOLDERS, "")


@pytest.mark.slow  # test_own_model.py takes a network from the gate to a campaign
@pytest.mark.parametrize("name", ["convnext", "vision_transformer"])
def test_networks_keep_the_contract(name: str) -> None:
    assert own.add(FOLDERS / name) == name
    check_sizes(name, (PARAMETERS[name], 0))
    check_initial_weights(name)
    check_equality(name, ("pytorch", "tensorflow", "keras-torch"))


def faulty(folder: Path, right: str, wrong: str) -> ParityRequest:
    """Return a request for the ConvNeXt with another text in its keras.py."""
    shutil.copytree(FOLDERS / "convnext", folder)
    file = folder / "keras.py"
    assert right in file.read_text()
    file.write_text(file.read_text().replace(right, wrong))
    return ParityRequest(own.add(folder))


@pytest.mark.parametrize(
    ("framework", "right", "wrong", "layer", "behind"),
    [
        # TensorFlow's exact GELU is off by 1.6e-9
        pytest.param(
            *("tensorflow", GELU, f"keras.activations.{GELU}", f"{BLOCK}.linear2"),
            f"{BLOCK}.linear1",
            marks=pytest.mark.slow,
        ),
        ("keras-torch", "path, epsilon=1e-6", "path", "stages.0.norm", "stages.0.reduction"),
    ],
    ids=["kernel of TensorFlow", "epsilon"],
)
def test_the_first_different_layer_is_named(
    framework: str, right: str, wrong: str, layer: str, behind: str, tmp_path: Path
) -> None:
    rows = gate(faulty(tmp_path / "convnext", right, wrong), ["pytorch", framework])
    (forward,) = (row for row in rows if row.quantity == "forward")
    assert (forward.equal, forward.layer, forward.behind) == (False, layer, behind)
    assert "gradient" not in parity_cache.difference(rows)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("x + scale(", "x + scales(", "keras.py, line 40: NameError: name 'scales' is not defined"),
        ("    return network(", "    raise SystemExit(0)\n    return network(", "exited with 0: "),
    ],
    ids=["error", "exit"],
)
def test_networks_that_cannot_run_are_one_line(
    right: str, wrong: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as refused:
        gate(faulty(tmp_path / "convnext", right, wrong), ["keras-torch"])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


HELPERS = """
import sys
import numpy as np
from models.frameworks import open_framework
name, out = sys.argv[1:]
open_framework(name, device="cpu", threads=1, precision="float64", seed=0)
x = np.load(out)
if name == "pytorch":
    import torch
    from models.layers.pytorch import attend, gelu
    x = torch.from_numpy(x)
    tensors = [gelu(x), torch.nn.LayerNorm(6).double()(x), attend(x, x + 1, 2 * x, 2)]
    arrays = [tensor.detach().numpy() for tensor in tensors]
else:
    from keras import ops
    from models.layers.keras import attend, gelu, layer_norm
    x = ops.convert_to_tensor(x)
    tensors = [gelu(x), layer_norm(x, "norm"), attend(x, x + 1, 2 * x, 2)]
    arrays = [ops.convert_to_numpy(tensor) for tensor in tensors]
np.save(out, np.stack(arrays))
"""


@pytest.mark.parametrize(
    "framework", slow_unless(("pytorch",), ("pytorch", "tensorflow", "keras-jax"))
)
def test_helpers_are_exact_in_float64(framework: str, tmp_path: Path) -> None:
    """Against their formulas in NumPy."""
    if reason := missing(framework):
        pytest.skip(reason)
    x = np.random.default_rng(0).standard_normal((3, 5, 6)) * 3
    np.save(tmp_path / "x.npy", x)
    run_in(framework, "-c", HELPERS, framework, str(tmp_path / "x.npy"))
    gelu, norm, attended = np.load(tmp_path / "x.npy")
    np.testing.assert_allclose(gelu, x * (1 + erf(x / np.sqrt(2))) / 2, rtol=1e-14, atol=1e-15)
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm, centred / deviation, rtol=1e-13)
    for row, outputs in zip(x, attended, strict=True):
        for head in (slice(3), slice(3, None)):
            shares = np.exp(row[:, head] @ (row[:, head] + 1).T / np.sqrt(3))
            expected = shares / shares.sum(1, keepdims=True) @ (2 * row[:, head])
            np.testing.assert_allclose(outputs[:, head], expected, rtol=1e-12)
