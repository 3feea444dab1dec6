"""Measurement with some graph optimizers off, and the nodes of the step's graph."""

from __future__ import annotations

from experiments.contract import CellSpec, Output
from experiments.workloads.training_speed import measure
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    framework.leave_graphs(spec.settings["graph_off"])
    network, optimizer, batches = measure.run(spec, framework, output)
    nodes = framework.graph_nodes(network, optimizer, batches[0])
    if not nodes:
        return
    metrics: dict[str, float] = {}
    for position, when in enumerate(("before", "after")):
        counts = {kind: pair[position] for kind, pair in nodes.items()}
        metrics[f"graph/nodes_{when}"] = sum(counts.values())
        metrics |= {f"graph/{kind}_nodes_{when}": count for kind, count in counts.items()}
    output.metrics(metrics)
