"""TensorFlow's graph optimizers, switched and counted: against graphs whose nodes are known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from experiments.studies import graph
from models.frameworks import GRAPH_OPTIMIZERS
from tests.models.children import answer, run_in, run_python

COUNTED = """
import json, sys
import tensorflow as tf
from models.frameworks.tensorflow import graph
graph.switch(json.loads(sys.argv[1]))

@tf.function
def known(x):  # one product, one sum, and a constant that can be folded
    folded = tf.constant(2.0) * tf.constant(3.0)
    return tf.matmul(x, x) + folded

@tf.function
def looped(x):
    return tf.while_loop(lambda at, x: at < 3, lambda at, x: (at + 1, tf.matmul(x, x)), (0, x))[1]

options = tf.config.optimizer.get_experimental_options()
found = [graph.nodes(lambda one=one: one(tf.ones((2, 2)))) for one in (known, looped, looped)]
print(json.dumps([options, *found]))
"""


def counted(*off: str) -> list[dict[str, list[int]]]:
    found: list[dict[str, list[int]]] = answer("tensorflow", COUNTED, json.dumps(off))
    return found


def test_nodes_are_counted_by_kind_before_and_after() -> None:
    options, known, looped, again = counted()
    assert options == {"disable_meta_optimizer": False, "disable_model_pruning": False}
    assert known["products"] == [1, 1]
    assert known["elements"] == [2, 1]  # the product of two constants is one constant
    assert known["nothing"][0] >= 4  # the argument, two constants, what is returned
    assert looped["products"] == [1, 1]  # in the body, which is counted with what calls it
    assert looped["control"][0] == 1
    assert looped["control"][1] > 1  # the loop written out
    assert again == {}  # met before: it is not optimized once more


@pytest.mark.parametrize("off", ["constant_folding", "all"])
def test_what_is_switched_off_leaves_its_nodes(off: str) -> None:
    _, known, *_ = counted(off)
    assert known["elements"] == [2, 2]


# One process: what was switched before is forgotten.
OPTIONS = """
import json, sys
import tensorflow as tf
from tensorflow.python.eager import context
from models.frameworks.tensorflow import graph
found = {}
for name in sys.argv[1:]:
    context.context()._optimizer_experimental_options.clear()
    graph.switch([name])
    found[name] = tf.config.optimizer.get_experimental_options()
print(json.dumps(found))
"""


def test_every_optimizer_has_its_switch() -> None:
    done = run_in("tensorflow", "-c", OPTIONS, *GRAPH_OPTIMIZERS)
    for off, options in json.loads(done.stdout.splitlines()[-1]).items():
        expected = {
            "disable_meta_optimizer": off == "all",
            "disable_model_pruning": off == "pruning",
        }
        assert options == expected | ({} if off in ("all", "pruning") else {off: False})


def _switches_without(name: str) -> list[str]:
    settings = replace(graph.Settings(), alone=(name,), models=("bert",))
    (program,) = [
        treatment
        for treatment in graph.treatments(settings)
        if treatment.name.startswith(f"only {name}")
    ]
    return list(program.settings["graph_off"])


def test_one_that_is_on_alone_does_its_own_work_and_no_other() -> None:
    """Folding makes one constant of a product of two."""
    options, folded, *_ = counted(*_switches_without("constant_folding"))
    _, kept, *_ = counted(*_switches_without("dependency_optimization"))
    assert "constant_folding" not in options
    assert options["loop_optimization"] is False
    assert folded["elements"] == [2, 1]
    assert kept["elements"] == [2, 2]


ONEDNN = """
import json, sys
import numpy as np
from models.frameworks import open_framework
from models import spec
framework = open_framework(sys.argv[1], device="cpu", threads=1, precision="float32", seed=0, conv_algorithm=sys.argv[2])
module, rng = spec("lenet"), np.random.default_rng(0)
sizes, batch = module.probe(rng)
network = framework.build("lenet", sizes)
framework.load_weights(network, module.initial_weights(sizes, rng))
if sys.argv[1] == "pytorch":
    import torch
    with torch.profiler.profile() as seen:
        outputs = framework.infer(network, batch.inputs)
    names = [one.key for one in seen.key_averages()]
else:
    from tensorflow.python.eager import context
    context.context().enable_graph_collection()
    outputs = framework.infer(network, batch.inputs)
    graphs = context.context().export_run_metadata().function_graphs
    names = [node.op for one in graphs for part in one.partition_graphs for node in part.node]
print(json.dumps([names, outputs.tolist()]))
"""


@pytest.mark.parametrize(
    ("framework", "sign"),
    [("pytorch", "mkldnn"), pytest.param("tensorflow", "Mkl", marks=pytest.mark.slow)],
)
def test_convolutions_are_onednns_or_the_frameworks_own(framework: str, sign: str) -> None:
    """As its profiler, or its rewritten graph, names them; with the same outputs."""
    found = {}
    for algorithm in ("onednn", "plain"):
        done = run_python("-c", ONEDNN, framework, algorithm)
        names, outputs = json.loads(done.stdout.splitlines()[-1])
        assert any(sign in name for name in names) == (algorithm == "onednn"), sorted(set(names))
        found[algorithm] = outputs
    assert found["onednn"] == [pytest.approx(row, rel=1e-4, abs=1e-5) for row in found["plain"]]
