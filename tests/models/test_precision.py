"""Mixed precision: the same numbers but for bfloat16's rounding, float32 where it matters, in every framework."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from models.frameworks import available, missing
from tests.models.children import answer, run_in
from tests.models.test_contract import QUICK

FRAMEWORKS = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in available()
]
MODELS = ("caption_decoder", "mobilenet_v2")
COMPUTE = """
import json, sys
import numpy as np
import models
from models.caption_decoder.decoding import decode
from models.contract import OptimizerConfig
from models.frameworks import open_framework
framework = open_framework(sys.argv[1], device="cpu", threads=1, precision=sys.argv[2], seed=0)
found = {}
for model in sys.argv[3:]:
    module, rng = models.spec(model), np.random.default_rng(0)
    spec, batch = module.probe(rng)
    network = framework.build(model, spec)
    framework.load_weights(network, module.initial_weights(spec, rng))
    logits = framework.infer(network, batch.inputs)
    loss, total = framework.evaluate(network, batch)
    framework.drop_nothing(network)
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
    losses = [float(framework.train_step(network, optimizer, batch)) for _ in range(3)]
    kept = sorted({str(array.dtype) for array in framework.weights(network).values()})
    found[model] = {"logits": logits.tolist(), "dtype": str(logits.dtype), "loss": loss / total, "losses": losses, "kept": kept}
    if model == "caption_decoder":
        captions = decode(framework, network, batch.inputs[0], start=1, end=2, words=4, beams=3)
        found[model]["captions"] = list(captions.shape)
print(json.dumps(found))
"""


@cache
def computed(framework: str, precision: str) -> dict[str, Any]:
    if reason := missing(framework):
        pytest.skip(reason)
    found: dict[str, Any] = answer(framework, COMPUTE, framework, precision, *MODELS)
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_mixed_precision_rounds_and_nothing_else(framework: str, model: str) -> None:
    full, mixed = computed("pytorch", "float32")[model], computed(framework, "bfloat16")[model]
    exact, rounded = np.array(full["logits"]), np.array(mixed["logits"])
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    # eight bits of mantissa: 2⁻⁹ a rounding, a few dozen layers; float32 would be at 1e-6
    assert 1e-4 < error < 0.05
    assert mixed["loss"] == pytest.approx(full["loss"], rel=0.02)
    assert np.isfinite(mixed["losses"]).all()
    assert (mixed["dtype"], mixed["kept"]) == ("float32", ["float32"])
    if model == "caption_decoder":
        assert mixed["captions"] == full["captions"]


def test_rounded_products_need_a_gpu() -> None:
    script = """
import sys
from models.contract import ModelError
from models.frameworks import open_framework
try:
    open_framework(sys.argv[1], device="cpu", threads=1, precision="tf32", seed=0)
except ModelError as error:
    print(error)
"""
    for framework in ("pytorch", "tensorflow"):
        assert "precision 'tf32' is a GPU's" in run_in(framework, "-c", script, framework).stdout


# A layer in bfloat16 whose products, sums and tanh XLA fuses.
EXCESS = """
import json, os, sys
os.environ["XLA_FLAGS"] = sys.argv[1]
import numpy as np
import tensorflow as tf
rng = np.random.default_rng(0)
x, w, b = (tf.cast(rng.normal(size=shape), tf.bfloat16) for shape in ((64, 256), (256, 128), (128,)))
layer = tf.function(lambda x, w, b: tf.tanh(x @ w + b) * b - x @ w, jit_compile=True)
print(json.dumps(tf.cast(layer(x, w, b), tf.float32).numpy().tolist()))
"""


def test_on_a_cpu_xla_rounds_with_excess_precision_as_without() -> None:
    """XLA may leave out roundings between operators, by default; on a CPU it does not."""
    flags = ("--xla_allow_excess_precision=true", "--xla_allow_excess_precision=false")
    outputs = {run_in("tensorflow", "-c", EXCESS, flag).stdout.splitlines()[-1] for flag in flags}
    assert len(outputs) == 1
