"""What lies inside the clock is the same work in every framework, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from tests.models.children import run_python

PRELUDE = """
import json, sys
import numpy as np
import models
from models.contract import Batch, OptimizerConfig
from models.frameworks import open_framework


class Clock:
    def __init__(self):
        self.runs, self.losses = False, []

    def begin(self):
        self.runs = True

    def end(self, loss):
        self.runs = False
        self.losses.append(loss)


def opened(name, model, precision="float32"):
    framework = open_framework(name, device="cpu", threads=1, precision=precision, seed=0)
    module, rng = models.spec(model), np.random.default_rng(0)
    spec, batch = module.probe(rng)
    network = framework.build(model, spec)
    framework.load_weights(network, module.initial_weights(spec, rng))
    return framework, network, batch, framework.optimizer(network, OptimizerConfig("adam", 1e-3))
"""


def told(script: str, *arguments: str) -> Any:
    """What the script prints as JSON in its last line."""
    return json.loads(run_python("-c", PRELUDE + script, *arguments).stdout.splitlines()[-1])


MODES = """
import torch
framework, network, batch, optimizer = opened("pytorch", "caption_decoder")
clock, walks, walk = Clock(), [], network.train
network.train = lambda mode=True: (walks.append("inside" if clock.runs else "outside"), walk(mode))[1]
modes = lambda: sorted({module.training for module in network.modules()})
found = {"built": modes()}
framework.train_epoch(network, optimizer, [batch] * 3, clock)
found["trained"] = modes()
clock.begin()
for _ in range(3):
    framework.infer(network, batch.inputs)
clock.end(0.0)
framework.gradients(network, batch)
found["differentiated"] = modes()
framework.train_step(network, optimizer, batch)
found["stepped"] = modes()
framework.evaluate(network, batch)
print(json.dumps({**found, "evaluated": modes(), "walks": walks}))
"""


def test_pytorch_sets_the_mode_when_it_changes_and_outside_of_the_clock() -> None:
    """`train()` and `eval()` walk over all modules: milliseconds where there are hundreds."""
    found = told(MODES)
    assert "inside" not in found["walks"]
    assert found["walks"].count("outside") <= 7  # there and back: epoch 2, gradients 3, step 2
    assert found["built"] == found["trained"] == found["differentiated"] == found["evaluated"] == [False]
    assert found["stepped"] == [True]
