"""Networks of users, in folders as in docs/own-model.md, and the parity gate."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf

import models
from models import own
from models.contract import ErrorCode
from models.errors import EvenhandError, UsageError
from models.frameworks import missing
from models.parity import ParityRequest, gate
from tests.conftest import ROOT
from tests.models.children import forked_processes, result_of
from tests.models.test_contract import slow_unless
from tests.models.test_zoo import check_initial_weights, check_sizes

EXAMPLE = Path(__file__).parent / "own" / "vision_transformer"
# As `evenhand new model` wrote it until 2026-11-25; its files do not change.
WRITTEN_EARLIER = Path(__file__).parent / "own" / "written_earlier"
# Parameters of the public names. One that is removed or renamed needs a deprecation first.
PUBLIC = {
    "models.contract": {"Batch": "inputs targets weights"},
    "models.layers.images": {
        "ImageSpec": "classes",
        "Shapes": "",
        "Shapes.convolution": "self path outputs inputs size bias",
        "Shapes.norm": "self path channels",
        "Shapes.linear": "self path outputs inputs",
        "Shapes.layer_norm": "self path width",
        "Shapes.scale": "self path width",
        "Shapes.embedding": "self path rows width",
        "Shapes.attention": "self path width",
        "initial_weights": "spec rng",
        "probe_batch": "spec side rng rows",
    },
    "models.layers.pytorch": {
        "Attention": "width heads dropout",
        "OneBiasCell": "inputs size",
        "OneBiasLSTM": "inputs size bidirectional",
        "PositionEmbedding": "rows width",
        "Scale": "width",
        "gelu": "",
        "of_images": "network",
    },
    "models.layers.keras": {
        "attention": "x heads path dropout",
        "average_pool": "x size strides padding",
        "convolution": "x filters size path strides padding bias",
        "depthwise": "x size path strides bias",
        "dropout": "x rate path",
        "embedding": "tokens rows width path",
        "flatten": "x",
        "gelu": "x",
        "images": "channels side",
        "layer_norm": "x path epsilon",
        "linear": "x outputs path",
        "max_pool": "x size strides padding",
        "network": "inputs outputs name",
        "norm": "x path epsilon",
        "position_embedding": "x rows path",
        "scale": "x path",
    },
    "models.transfer": {
        "AS_IS": "",
        "Arrays": "",
        "CONVOLUTION": "",
        "DEPTHWISE": "",
        "LINEAR": "",
        "Layout": "to_torch to_keras",
        "SEQUENCE": "",
        "weight_rule": "kind",
    },
}
BUILT = "    return of_images("
GELU = 'gelu(linear(layer_norm(x, f"{path}.norm2")'


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(own.FOLDERS, "")
    with forked_processes():
        yield


@pytest.mark.slow  # test_own_model.py takes a network from the gate to a campaign
def test_example_keeps_the_contract() -> None:
    name = own.add(EXAMPLE)
    check_sizes(name, (53_482, 0))
    check_initial_weights(name)
    rows = gate([ParityRequest(name)], ("pytorch", "tensorflow", "keras-torch"))
    assert all(row.equal for row in rows)


# The parameters of names, {module: names}, and whether each is required.
PARAMETERS = """
import importlib, inspect, operator
from models.frameworks import open_framework
open_framework("keras-torch", device="cpu", threads=1, precision="float64", seed=0)
result = {}
for module, names in PUBLIC.items():
    for name in names:
        value = operator.attrgetter(name)(importlib.import_module(module))
        named = inspect.signature(value).parameters.values() if names[name] else ()
        result[f"{module}.{name}"] = [[at.name, at.default is at.empty] for at in named]
"""


def test_public_names_change_only_with_a_deprecation() -> None:
    """Names that docs/own-model.md promises, with their parameters; new ones have defaults."""
    page = (ROOT / "docs" / "own-model.md").read_text().partition("## Names that stay")[2]
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", page, re.MULTILINE)
    documented = {module: re.findall(r"`(\w+)`", names) for module, names in rows}
    public = {
        module: [name for name in names if "." not in name] for module, names in PUBLIC.items()
    }
    assert documented == public
    signatures = result_of("keras-torch", f"PUBLIC = {PUBLIC}\n{PARAMETERS}")
    for module, names in PUBLIC.items():
        for name, text in names.items():
            parameters, pinned = signatures[f"{module}.{name}"], text.split()
            assert [parameter for parameter, _ in parameters][: len(pinned)] == pinned
            assert not any(is_required for _, is_required in parameters[len(pinned) :])


def test_model_written_earlier_is_equal_and_warned_about() -> None:
    name = own.add(WRITTEN_EARLIER)
    with pytest.warns(FutureWarning, match="parameters"):
        assert models.spec(name).Spec().shapes().parameters == (5_418, 0)
    rows = gate([ParityRequest(name)], ["pytorch", "keras-torch"])
    assert all(row.equal for row in rows)


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
    rows = gate([request], ["pytorch", framework])
    (forward,) = (row for row in rows if row.quantity == "forward")
    assert (forward.equal, forward.layer, forward.behind) == (False, layer, behind)


@pytest.mark.parametrize(
    ("right", "wrong", "is_wrong_call", "place"),
    [
        ("gelu(self", "gelus(self", True, "pytorch.py, line 26: NameError"),
        (BUILT, f"    raise SystemExit(0)\n{BUILT}", True, " 0: "),
        (BUILT, f"    import os\n    os.kill(os.getpid(), 9)\n{BUILT}", False, "-9"),
    ],
    ids=["error", "exit", "kill"],
)
def test_network_that_cannot_run_is_one_line(
    right: str, wrong: str, is_wrong_call: bool, place: str, tmp_path: Path
) -> None:
    """A process that is killed is no wrong call."""
    request = request_with_fault(tmp_path / EXAMPLE.name, "pytorch.py", right, wrong)
    with pytest.raises(EvenhandError) as refused:
        gate([request], ["pytorch"])
    assert refused.value.code is ErrorCode.CHILD_FAILED
    assert isinstance(refused.value, UsageError) == is_wrong_call
    assert place in str(refused.value)
    assert "\n" not in str(refused.value)


HELPERS = """
import numpy as np
from models.frameworks import open_framework
open_framework(name, device="cpu", threads=1, precision="float64", seed=0)
x = np.array(X)
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
result = [array.tolist() for array in arrays]
"""


@pytest.mark.parametrize(
    "framework", slow_unless(("pytorch",), ("pytorch", "tensorflow", "keras-jax"))
)
def test_helpers_are_exact_in_float64(framework: str) -> None:
    """Against their formulas in NumPy."""
    if reason := missing(framework):
        pytest.skip(reason)
    x = np.random.default_rng(0).standard_normal((3, 5, 6)) * 3
    gelu, norm, attended = result_of(framework, f"X = {x.tolist()}\n{HELPERS}")
    np.testing.assert_allclose(gelu, x * (1 + erf(x / np.sqrt(2))) / 2, rtol=1e-14, atol=1e-15)
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm, centred / deviation, rtol=1e-13)
    for row, outputs in zip(x, attended, strict=True):
        for head in (slice(3), slice(3, None)):
            shares = np.exp(row[:, head] @ (row[:, head] + 1).T / np.sqrt(3))
            expected = shares / shares.sum(1, keepdims=True) @ (2 * row[:, head])
            np.testing.assert_allclose(np.array(outputs)[:, head], expected, rtol=1e-12)
