"""Mixed precision: bfloat16 rounds, and float32 stays for weights and losses, in each framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.frameworks import available, missing
from tests.models.children import results_of
from tests.models.test_contract import slow_unless

MODELS = ("caption_decoder", "mobilenet_v2")
COMPUTE = """
import numpy as np
import models
from models.caption_decoder.decoding import decode
from models.contract import ModelError, OptimizerConfig
from models.frameworks import open_framework
name = {name!r}
refused = ""
try:
    open_framework(name, device="cpu", threads=1, precision="tf32", seed=0)
except ModelError as error:
    refused = str(error)
framework = open_framework(name, device="cpu", threads=1, precision={precision!r}, seed=0)
result = {{"tf32": refused}}
for model in {models!r}:
    module, rng = models.spec(model), np.random.default_rng(0)
    spec, batch = module.probe(rng)
    network = framework.build(model, spec)
    framework.load_weights(network, module.initial_weights(spec, rng))
    logits = framework.infer(network, batch.inputs)
    loss, total = framework.evaluate(network, batch)
    framework.drop_nothing(network)
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
    losses = [float(framework.train_step(network, optimizer, batch)) for _ in range(3)]
    types = {{str(array.dtype) for array in (logits, *framework.weights(network).values())}}
    values = {{"logits": logits.tolist(), "loss": loss / total, "losses": losses}}
    result[model] = {{**values, "types": sorted(types)}}
    if model == "caption_decoder":
        limits = {{"start": 1, "end": 2, "words": 4, "beams": 3}}
        captions = decode(framework, network, batch.inputs[0], **limits)
        result[model]["captions"] = list(captions.shape)
"""


def computed(name: str, precision: str) -> dict[str, Any]:
    script = COMPUTE.format(name=name, precision=precision, models=MODELS)
    results: dict[str, Any] = results_of(name, {"computed": script})["computed"]
    return results


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    return computed("pytorch", "float32")


@pytest.mark.parametrize("framework", slow_unless(("pytorch", "tensorflow"), available()))
def test_mixed_precision_rounds_and_nothing_else(framework: str, exact: dict[str, Any]) -> None:
    if reason := missing(framework):
        pytest.skip(reason)
    rounded = computed(framework, "bfloat16")
    assert "precision 'tf32' is a GPU's" in rounded["tf32"]
    for model in MODELS:
        full, mixed = exact[model], rounded[model]
        difference = np.array(mixed["logits"]) - np.array(full["logits"])
        # eight bits of mantissa: 2⁻⁹ a rounding, a few dozen layers; float32 would be at 1e-6
        assert 1e-4 < np.linalg.norm(difference) / np.linalg.norm(full["logits"]) < 0.05
        assert mixed["loss"] == pytest.approx(full["loss"], rel=0.02)
        assert np.isfinite(mixed["losses"]).all()
        assert mixed["types"] == ["float32"]
        assert mixed.get("captions") == full.get("captions")
