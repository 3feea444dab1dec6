"""Trained network of a cell, for MLflow's flavor of its framework."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from experiments.config.settings import ModelSettings
from experiments.contract import CellSpec, Output
from models import frameworks
from models.contract import Array, Framework
from models.weights import write_safetensors
from tracking import provenance
from tracking.records import ModelSaved


def save(
    cell: CellSpec[ModelSettings],
    framework: Framework,
    network: Any,
    inputs: tuple[Array, ...],
    output: Output,
    *,
    title: str,
    description: Mapping[str, Any],
    text: str,
) -> None:
    """Write the network and record that it is to be logged, if the settings ask for it.

    Args:
        cell: Spec of the cell.
        framework: Framework of the network.
        network: Trained network.
        inputs: What the network takes, of two rows or more.
        output: Gets the record.
        title: Of the network; left out of the model's name if the study has it, too.
        description: Content of `model.json`: what users need to know of inputs and outputs.
        text: Description for users.
    """
    mode = cell.settings.save_model
    if mode != "all" and (mode != "first" or cell.block != 1):
        return
    folder = cell.path / "model"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    try:
        native = framework.save_native(network, inputs, folder / "data")
    except Exception:  # the cell has been measured: it ends well without its network
        logging.getLogger(__name__).exception("the network could not be saved")
        return
    if native:
        versions = provenance.versions_of(
            sorted({"numpy", *frameworks.described(framework.name).distributions})
        )
        # a local label, as in 2.15.0+cpu, is of another index than pip's default
        lines = [f"{name}=={version.partition('+')[0]}\n" for name, version in versions.items()]
        (folder / "requirements.txt").write_text("".join(lines), encoding="utf-8")
        (folder / "model.json").write_text(json.dumps(description, indent=1), encoding="utf-8")
        write_safetensors(framework.weights(network), folder / "weights.safetensors")
        path = f"{cell.folder}/{folder.name}"
        # MLflow allows no plus, as in a variant's name
        parts = (cell.study, cell.settings.preset, title, cell.framework.replace("+", "-"))
        name = "-".join(dict.fromkeys([*parts, time.strftime("%Y-%m-%d")]))
        output.record(ModelSaved(cell.run, name, path, native, text))
