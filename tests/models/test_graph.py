"""TensorFlow's graph optimizers, switched off, against the graph of a small function."""

from __future__ import annotations

from typing import Any

import pytest

from models.frameworks import GRAPH_OPTIMIZERS
from tests.models.children import results_of

# One process; the switches of the script before are forgotten.
SWITCHED = """
import tensorflow as tf
from tensorflow.python.eager import context
from models.frameworks.tensorflow.adapter import Adapter
context.context()._optimizer_experimental_options.clear()
for name in {off!r}:
    Adapter.disable_graph_optimizer(None, name)  # it needs no state

@tf.function
def simple(x):  # one product, one sum, and a constant that can be folded
    folded = tf.constant(2.0) * tf.constant(3.0)
    return tf.matmul(x, x) + folded

context.context().enable_graph_collection()
simple(tf.ones((2, 2)))
graphs = context.context().export_run_metadata().function_graphs
context.context().disable_graph_collection()
operators = [node.op for graph in graphs for node in graph.post_optimization_graph.node]
result = [tf.config.optimizer.get_experimental_options(), operators]
"""


@pytest.fixture(scope="module")
def switched() -> dict[str, Any]:
    """Options and operators for each optimizer that is off, and for none."""
    off = {"": [], **{name: [name] for name in GRAPH_OPTIMIZERS}}
    scripts = {name: SWITCHED.format(off=names) for name, names in off.items()}
    return results_of("tensorflow", scripts)


@pytest.mark.parametrize("off", ["", *GRAPH_OPTIMIZERS])
def test_each_optimizer_has_its_switch(off: str, switched: dict[str, Any]) -> None:
    options, operators = switched[off]
    expected = {"disable_meta_optimizer": off == "all", "disable_model_pruning": off == "pruning"}
    assert options == expected | ({} if off in ("", "all", "pruning") else {off: False})
    assert "MatMul" in operators
    assert ("Mul" in operators) == (off in ("constant_folding", "all"))
