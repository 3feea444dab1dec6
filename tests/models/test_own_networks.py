"""Networks of other people's, in folders as docs/own-model.md has them, through the gate."""

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

FOLDERS = Path(__file__).parent / "own"
PARAMETERS = {"vision_transformer": 53_354, "convnext": 71_002}
GELU = 'gelu(linear(y, 4 * width, f"{path}.linear1"))'
BLOCK = "stages.0.blocks.0"
BETWEEN = (f"{BLOCK}.linear2", f"{BLOCK}.linear1")


@pytest.fixture(autouse=True)
def _unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own.FOLDERS, "")


@pytest.mark.slow  # tests/experiments/test_own_model.py takes a network of one's own from the gate to a campaign
@pytest.mark.parametrize("name", ["convnext", "vision_transformer"])
def test_it_keeps_the_contract_of_models(name: str) -> None:
    assert own.add(FOLDERS / name) == name
    check_sizes(name, (PARAMETERS[name], 0))
    check_initial_weights(name)
    check_equality(name, ("pytorch", "tensorflow", "keras-torch"))


def test_dropout_within_attention_is_seen() -> None:
    own.add(FOLDERS / "vision_transformer")
    rows = gate(ParityRequest("vision_transformer"), ["pytorch", "keras-torch"])
    compared = {row.quantity: row.compared for row in rows}
    assert {compared[quantity] for quantity in ("place", "mask", "dropout")} == {2}


def faulty(folder: Path, right: str, wrong: str) -> ParityRequest:
    """The ConvNeXt with another text in its keras.py."""
    shutil.copytree(FOLDERS / "convnext", folder)
    file = folder / "keras.py"
    assert right in file.read_text()
    file.write_text(file.read_text().replace(right, wrong))
    return ParityRequest(own.add(folder))


@pytest.mark.parametrize(
    ("framework", "right", "wrong", "layer", "behind"),
    [
        pytest.param(
            "keras-torch",
            GELU,
            f"keras.activations.{GELU[:-1]}, True)",
            *BETWEEN,
            marks=pytest.mark.slow,
        ),
        ("tensorflow", GELU, f"keras.activations.{GELU}", *BETWEEN),
        pytest.param(
            "keras-torch", "path, epsilon=1e-6", "path", "stages.0.norm", "", marks=pytest.mark.slow
        ),
        ("keras-torch", "scale(y,", "scale(2 * y,", f"{BLOCK}.scale", f"{BLOCK}.linear2"),
    ],
    ids=["tanh", "kernel of TensorFlow", "epsilon", "factor"],
)
def test_the_layer_is_named(
    framework: str,
    right: str,
    wrong: str,
    layer: str,
    behind: str,
    tmp_path: Path,
) -> None:
    """Of TensorFlow's own exact GELU too, which is off by 1.6e-9."""
    rows = gate(faulty(tmp_path / "convnext", right, wrong), ["pytorch", framework])
    (forward,) = (row for row in rows if row.quantity == "forward")
    assert (forward.equal, forward.layer, forward.behind) == (False, layer, behind)
    assert "gradient" not in parity_cache.difference(rows)


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        pytest.param(
            *(
                ".linear2",
                ".last",
                f".last.weight' is missing, '{BLOCK}.linear2.weight' is superfluous",
            ),
            marks=pytest.mark.slow,
        ),
        ("4 * width", "3 * width", f"'{BLOCK}.linear1.weight' has shape (16, 4)"),
        pytest.param(
            ", bias=True), f",
            "), f",
            f"'{BLOCK}.depthwise.bias' is superfluous",
            marks=pytest.mark.slow,
        ),
        ("x + scale(", "x + scales(", "keras.py, line 40: NameError: name 'scales' is not defined"),
    ],
    ids=["name", "shape", "bias", "code"],
)
def test_what_cannot_run_is_one_line(right: str, wrong: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        gate(faulty(tmp_path / "convnext", right, wrong), ["keras-torch"])
    assert told in str(refused.value)
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
    from models.layers.pytorch import attend, gelu, layer_norm
    x = torch.from_numpy(x)
    found = [gelu(x), layer_norm(6).double()(x), attend(x, x + 1, 2 * x, 2)]
    found = [one.detach().numpy() for one in found]
else:
    import keras
    from keras import ops
    from models.layers.keras import attend, gelu, layer_norm
    x = ops.convert_to_tensor(x)
    found = [gelu(x), layer_norm(x, "norm"), attend(x, x + 1, 2 * x, 2)]
    found = [ops.convert_to_numpy(one) for one in found]
np.save(out, np.stack(found))
"""


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "keras-torch", "keras-jax"])
def test_helpers_are_exact_in_float64(framework: str, tmp_path: Path) -> None:
    """Against their formulas in NumPy; TensorFlow's own GELU is off by 1.6e-9."""
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
    for row, found in zip(x, attended, strict=True):
        for head in (slice(3), slice(3, None)):
            shares = np.exp(row[:, head] @ (row[:, head] + 1).T / np.sqrt(3))
            expected = shares / shares.sum(1, keepdims=True) @ (2 * row[:, head])
            np.testing.assert_allclose(found[:, head], expected, rtol=1e-12)
