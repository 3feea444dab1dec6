"""Search for KerasHub's places of arrays: `python -m models.named.conversion FOLDER SIZE`.

The converter is no part of what is measured or proven: a network whose arrays it changes, leaves
out or makes of several others is refused.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.contract import Array, ModelError
from models.frameworks.pytorch.introspection import state
from models.named import CAUSAL, CONFIG, WEIGHTS, Sizes, cuts_file, families, read
from models.named.cuts import Loaded, find
from models.named.keras import backbone
from models.named.pytorch import build
from models.own import reason
from models.weights import write_safetensors


def write_cuts(definition: Mapping[str, Any], folder: Path, size: str) -> None:
    """Write, by array of a network's body, its cut and places, as `find` returns them.

    Args:
        definition: Of the network.
        folder: Of the model.
        size: Which version of it.

    Raises:
        ModelError: The converter changes arrays or leaves some out.
    """
    network = build(definition, folder / size, Sizes(size))
    rng, head = np.random.default_rng(0), definition.get("head", "")
    shapes = {name: tuple(tensor.shape) for name, tensor in state(network.body).items()}
    arrays = {
        name: rng.standard_normal(shape, np.float32)
        for name, shape in shapes.items()
        if not (head and name.startswith(f"{head}."))
    }

    def load(values: Mapping[str, Array]) -> list[Loaded]:
        with tempfile.TemporaryDirectory() as temporary:
            _write(definition, folder / size, network, values, Path(temporary))
            loaded = backbone(definition, Path(temporary), load_weights=True)
        return [
            Loaded(each.path, np.array(each.numpy()), each.trainable) for each in loaded.weights
        ]

    cuts_file(folder, size).write_text(json.dumps(find(arrays, load)))


def _write(
    definition: Mapping[str, Any],
    folder: Path,
    network: Any,
    arrays: Mapping[str, Array],
    checkpoint: Path,
) -> None:
    """Write a checkpoint in the library's own format."""
    if definition["library"] == "timm":
        shutil.copy(folder / CONFIG, checkpoint)
        write_safetensors(arrays, checkpoint / WEIGHTS)
        return
    import torch
    import transformers

    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    family, model = families.of(definition["family"]), network.body
    if definition["kind"] != CAUSAL:
        config = transformers.AutoConfig.from_pretrained(folder)
        model = getattr(transformers, family.saved_as).from_config(config)
    inner = model if family.saved_as == "AutoModel" else model.base_model
    inner.load_state_dict(tensors, strict=False)
    model.save_pretrained(checkpoint)


def main(folder: str, size: str) -> int:
    try:
        write_cuts(read(Path(folder)), Path(folder), size)
    except Exception as error:  # of another library's code
        print(error if isinstance(error, ModelError) else reason(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
