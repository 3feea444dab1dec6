"""What makes a step wait for a GPU although its cell runs freely: PyTorch's packed sequences, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.cell import measure
from experiments.cell.timing import PhaseValues
from tests.models.children import answer
from tracking.records import Tags

CHILD = """
import json, sys
import numpy as np
import models
from models.frameworks import lean_import, open_framework
with lean_import(sys.argv[1]):
    adapter = open_framework(sys.argv[1], device="cpu", threads=1, precision="float32", seed=0)
found = {}
for device in ("cpu", "cuda"):
    adapter.device = "cpu"
    for model, lstm in (pair.split("=") for pair in sys.argv[2:]):
        module = models.spec(model)
        probed, _ = module.probe(np.random.default_rng(0), full=False)
        network = adapter.build(model, module.sized("tiny", lstm=lstm) if lstm else probed)
        adapter.device = device
        found[f"{device} {model} {lstm}"] = adapter.waits_in_step(network)
        adapter.device = "cpu"
print(json.dumps(found))
"""
NETWORKS = (
    "deepspeech2=layer",
    "gnmt=layer",
    "tacotron2=layer",
    "deepspeech2=scan",
    "caption_decoder=layer",
    "lenet=",
)


def test_packed_sequences_of_pytorch_wait_on_a_gpu() -> None:
    found = answer("pytorch", CHILD, "pytorch", *NETWORKS)
    assert {name for name, reason in found.items() if reason} == {
        "cuda deepspeech2 layer",
        "cuda gnmt layer",
        "cuda tacotron2 layer",
    }


@pytest.mark.parametrize(("timing", "tagged"), [("step", False), ("free", True), ("both", True)])
def test_only_windows_are_tagged(timing: str, tagged: bool) -> None:
    spec: Any = SimpleNamespace(settings={"timing": timing}, run="r")
    records: list[object] = []
    output: Any = SimpleNamespace(record=records.append)
    windows, on_device = (
        PhaseValues("train_windows", (1.0, 1.0), (8, 8), 0),
        PhaseValues("train_on_device", (), (), 0),
    )
    summary = {
        "train/examples_per_second": 1.0,
        "train/step_seconds": 1.0,
        "train/step_seconds_p95": 1.0,
    }
    measure.as_timed(spec, summary, windows, on_device, output, held_up=False, waits="lengths")
    assert records == ([Tags("r", {"waits_in_step": "lengths"})] if tagged else [])


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
