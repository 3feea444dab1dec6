"""Networks of users, in folders as in docs/own-model.md, and the parity gate."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf

from models import own
from models.contract import ErrorCode, ModelError
from models.errors import EvenhandError, UsageError
from models.frameworks import missing
from models.parity import ParityRequest, gate
from models.testing import check_equality, check_initial_weights, check_sizes
from tests.models.children import run_in
from tests.models.test_contract import slow_unless

EXAMPLE = Path(__file__).parent / "own" / "vision_transformer"
GELU = 'gelu(linear(layer_norm(x, f"{path}.norm2")'


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own.FOLDERS, "")


@pytest.mark.slow  # test_own_model.py takes a network from the gate to a campaign
def test_example_keeps_the_contract() -> None:
    name = own.add(EXAMPLE)
    check_sizes(name, (53_482, 0))
    check_initial_weights(name)
    check_equality(name, ("pytorch", "tensorflow", "keras-torch"))


def request_with_fault(folder: Path, file: str, right: str, wrong: str) -> ParityRequest:
    """Return a request for the example with another text in a file."""
    shutil.copytree(EXAMPLE, folder)
    text = (folder / file).read_text()
    assert right in text
    (folder / file).write_text(text.replace(right, wrong))
    return ParityRequest(own.add(folder))


@pytest.mark.parametrize(
    ("framework", "right", "wrong", "layer", "behind"),
    [
        # TensorFlow's exact GELU is off by 1.6e-9
        pytest.param(
            *("tensorflow", GELU, f"keras.activations.{GELU}", "blocks.0.linear2"),
            "blocks.0.linear1",
            marks=pytest.mark.slow,
        ),
        ("keras-torch", '.norm1")', '.norm1", epsilon=1e-3)', "blocks.0.norm1", "positions"),
    ],
    ids=["kernel of TensorFlow", "epsilon"],
)
def test_first_different_layer_is_named(
    framework: str, right: str, wrong: str, layer: str, behind: str, tmp_path: Path
) -> None:
    request = request_with_fault(tmp_path / EXAMPLE.name, "keras.py", right, wrong)
    rows = gate(request, ["pytorch", framework])
    (forward,) = (row for row in rows if row.quantity == "forward")
    assert (forward.equal, forward.layer, forward.behind) == (False, layer, behind)


@pytest.mark.parametrize(
    ("right", "wrong", "place"),
    [
        ("gelu(self", "gelus(self", "pytorch.py, line 26: NameError"),
        ("    return of_images(", "    raise SystemExit(0)\n    return of_images(", " 0: "),
    ],
    ids=["error", "exit"],
)
def test_network_that_cannot_run_is_one_line(
    right: str, wrong: str, place: str, tmp_path: Path
) -> None:
    request = request_with_fault(tmp_path / EXAMPLE.name, "pytorch.py", right, wrong)
    with pytest.raises(ModelError) as refused:
        gate(request, ["pytorch"])
    assert refused.value.code is ErrorCode.CHILD_FAILED
    assert place in str(refused.value)
    assert "\n" not in str(refused.value)


def test_network_whose_process_is_killed_is_no_wrong_call(tmp_path: Path) -> None:
    kill = "    import os\n    os.kill(os.getpid(), 9)\n    return of_images("
    fault = ("pytorch.py", "    return of_images(", kill)
    request = request_with_fault(tmp_path / EXAMPLE.name, *fault)
    with pytest.raises(EvenhandError) as failed:
        gate(request, ["pytorch"])
    assert failed.value.code is ErrorCode.CHILD_FAILED
    assert not isinstance(failed.value, UsageError)


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
