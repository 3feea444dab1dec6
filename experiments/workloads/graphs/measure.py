"""One network in one framework, some graph optimizers off; when all is measured, the nodes of its step's graph."""

from __future__ import annotations

from experiments.contract import CellSpec, Output
from experiments.workloads.training_speed import measure
from models.contract import Framework


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    framework.leave_graphs(spec.settings["graph_off"])
    network, optimizer, batches = measure.run(spec, framework, output)
    nodes = framework.graph_nodes(network, optimizer, batches[0])
    if nodes:
        metrics = {
            f"graph/{kind}_nodes_{when}": count for kind, pair in nodes.items() for when, count in zip(WHEN, pair, strict=True)
        }
        totals = {
            f"graph/nodes_{when}": sum(counts) for when, counts in zip(WHEN, zip(*nodes.values(), strict=True), strict=True)
        }
        output.metrics({**totals, **metrics})


WHEN = ("before", "after")
