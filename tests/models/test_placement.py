"""Placement of batches by PyTorch before the measured step."""

from __future__ import annotations

from tests.models.children import answer

PLACED = """
import json
import numpy as np
import models
from models.frameworks import open_framework
adapter = open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
found = {}
for model in ("caption_decoder", "bert", "lenet"):
    _, batch = models.spec(model).probe(np.random.default_rng(0), full=False)
    placed = adapter.place(batch)
    found[model] = [sorted({str(array.dtype) for array in placed.inputs}), str(placed.targets.dtype)]
print(json.dumps(found))
"""


def test_pytorch_widens_targets_before_the_step_and_no_inputs() -> None:
    found = answer("pytorch", PLACED)
    assert found == {
        "caption_decoder": [["torch.float32", "torch.int32"], "torch.int64"],
        "bert": [["torch.int32"], "torch.int64"],
        "lenet": [["torch.float32"], "torch.int64"],
    }
