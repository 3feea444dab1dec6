"""TensorFlow's graph optimizers, switched and counted, against graphs with known nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.studies import graph
from models.frameworks import GRAPH_OPTIMIZERS
from tests.models.children import results_of

# One process; the switches of the script before are forgotten.
COUNTED = """
import tensorflow as tf
from tensorflow.python.eager import context
from models.frameworks.tensorflow import graph
context.context()._optimizer_experimental_options.clear()
graph.switch({off!r})

@tf.function
def simple(x):  # one product, one sum, and a constant that can be folded
    folded = tf.constant(2.0) * tf.constant(3.0)
    return tf.matmul(x, x) + folded

@tf.function
def looped(x):
    return tf.while_loop(lambda at, x: at < 3, lambda at, x: (at + 1, tf.matmul(x, x)), (0, x))[1]

nodes = [graph.nodes(lambda at=at: at(tf.ones((2, 2)))) for at in (simple, looped, looped)]
result = [tf.config.optimizer.get_experimental_options(), *nodes]
"""


def switches_without(name: str) -> list[str]:
    settings = replace(graph.Settings(), only=(name,), models=("bert",))
    treatments = graph.treatments(settings)
    (only,) = (treatment for treatment in treatments if treatment.name.startswith(f"only {name}"))
    return list(only.settings["graph_off"])


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    """Options, then nodes by kind, for each optimizer that is off and for two that alone are on."""
    only = {
        f"only {at}": switches_without(at) for at in ("constant_folding", "dependency_optimization")
    }
    off = {"": [], **{name: [name] for name in GRAPH_OPTIMIZERS}, **only}
    scripts = {name: COUNTED.format(off=names) for name, names in off.items()}
    return results_of("tensorflow", scripts)


def test_nodes_are_counted_by_kind_before_and_after(counted: dict[str, Any]) -> None:
    options, graph_nodes, looped, again = counted[""]
    assert options == {"disable_meta_optimizer": False, "disable_model_pruning": False}
    assert graph_nodes["products"] == [1, 1]
    assert graph_nodes["elements"] == [2, 1]  # the product of two constants is one constant
    assert graph_nodes["nothing"][0] >= 4  # the argument, two constants, the result
    assert looped["products"] == [1, 1]  # in the body
    assert looped["control"][0] == 1
    assert looped["control"][1] > 1  # the loop written out
    assert again == {}  # not optimized once more


@pytest.mark.parametrize("off", GRAPH_OPTIMIZERS)
def test_each_optimizer_has_its_switch(off: str, counted: dict[str, Any]) -> None:
    options, graph_nodes, *_ = counted[off]
    expected = {"disable_meta_optimizer": off == "all", "disable_model_pruning": off == "pruning"}
    assert options == expected | ({} if off in ("all", "pruning") else {off: False})
    is_folded = off not in ("constant_folding", "all")
    assert graph_nodes["elements"] == [2, 1 if is_folded else 2]


def test_single_optimizer_does_its_own_work(counted: dict[str, Any]) -> None:
    options, folded, *_ = counted["only constant_folding"]
    assert "constant_folding" not in options
    assert options["loop_optimization"] is False
    assert folded["elements"] == [2, 1]
    assert counted["only dependency_optimization"][1]["elements"] == [2, 2]
