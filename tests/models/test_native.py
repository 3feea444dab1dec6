"""Networks in their framework's own format: loaded without our code, they compute the same."""

from __future__ import annotations

import pytest

from models.frameworks import described, missing
from tests.models.children import result_of

# Those that campaigns log; the small version of resnet152 is resnet50's.
MODELS = ("caption_decoder", "lenet", "resnet18", "resnet50", "vgg16", "vgg16_cifar")
MODELS += ("mobilenet_v2", "efficientnet_b4", "inception_v3", "densenet201")
FRAMEWORKS = (
    "pytorch",
    "pytorch+channels_last",
    "tensorflow",
    "tensorflow+xla",
    "keras-tensorflow",
)
FRAMEWORKS += ("keras-torch", "keras-jax", "jax")
SCRIPT = """
import sys, tempfile
from pathlib import Path
import numpy as np
import models
from models.contract import OptimizerConfig
from models.frameworks import open_framework

framework = open_framework(name, device="cpu", threads=1, precision="float32", seed=0)
module, rng = models.spec(MODEL), np.random.default_rng(0)
spec, batch = module.probe(rng)
network = framework.build(MODEL, spec)
framework.load_weights(network, module.initial_weights(spec, rng))
optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
framework.train_step(network, optimizer, batch)
folder = Path(tempfile.mkdtemp())
entries = framework.save_native(network, batch.inputs, folder)
(file,) = folder.iterdir()
rows = tuple(np.concatenate([array, array]) for array in batch.inputs)  # another number of rows
expected = framework.infer(network, rows)
if entries["flavor"] == "pytorch":
    import torch

    loaded = torch.export.load(file).module()
    outputs = loaded(*map(torch.from_numpy, rows)).detach().numpy()
else:
    import keras

    loaded = keras.saving.load_model(file)
    kinds = {type(layer).__module__.partition(".")[0] for layer in loaded.layers}
    assert kinds == {"keras"} and not loaded.compiled
    placed = [keras.ops.convert_to_tensor(array) for array in rows]
    outputs = keras.ops.convert_to_numpy(loaded(placed if len(placed) > 1 else placed[0]))
framework.train_step(network, optimizer, batch)  # the network trains on
result = [file.name, float(np.abs(outputs - expected).max()), float(np.abs(expected).max())]
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_saved_networks_compute_the_same(name: str, model: str) -> None:
    if reason := missing(name):
        pytest.skip(reason)
    file, error, size = result_of(name, f"MODEL = {model!r}\n{SCRIPT}")
    assert file == {"pytorch": "model.pt2", "keras": "model.keras"}[described(name).architecture]
    assert error <= 1e-4 * max(1.0, size)  # compiled in another way: float32 sums in another order
