"""One network in one framework, some graph optimizers off; then the nodes of its step's graph."""

from __future__ import annotations

from experiments.contract import CellSpec, Output
from experiments.workloads.training_speed import measure
from models.contract import Framework

WHEN = ("before", "after")


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    framework.leave_graphs(spec.settings["graph_off"])
    network, optimizer, batches = measure.run(spec, framework, output)
    nodes = framework.graph_nodes(network, optimizer, batches[0])
    if not nodes:
        return
    metrics: dict[str, float] = {}
    for at, when in enumerate(WHEN):
        metrics[f"graph/nodes_{when}"] = sum(pair[at] for pair in nodes.values())
        metrics |= {f"graph/{kind}_nodes_{when}": pair[at] for kind, pair in nodes.items()}
    output.metrics(metrics)
