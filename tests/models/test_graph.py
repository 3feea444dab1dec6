"""TensorFlow's graph optimizers, switched off, against the graph of a small function."""

from __future__ import annotations

from models.frameworks import GRAPH_OPTIMIZERS
from tests.models.children import result_of

# The switches of the optimizer before are forgotten.
SWITCHED = f"""
import tensorflow as tf
from tensorflow.python.eager import context
from models.frameworks.tensorflow.adapter import Adapter
result = {{}}
for name in {("", *GRAPH_OPTIMIZERS)}:
    context.context()._optimizer_experimental_options.clear()
    if name:
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
    result[name] = [tf.config.optimizer.get_experimental_options(), operators]
"""


def test_each_optimizer_has_its_switch() -> None:
    for off, (options, operators) in result_of("tensorflow", SWITCHED).items():
        changed = {
            "disable_meta_optimizer": off == "all",
            "disable_model_pruning": off == "pruning",
        }
        assert options == changed | ({} if off in ("", "all", "pruning") else {off: False})
        assert "MatMul" in operators
        assert ("Mul" in operators) == (off in ("constant_folding", "all")), off
