"""Describe a network of another library: `python -m models.named.describe SOURCE FOLDER`.

Imports PyTorch, the library and, if it is installed, KerasHub on PyTorch.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.errors import ErrorCode, ModelError, suggestion
from models.frameworks.pytorch import introspection
from models.named import (
    CAUSAL,
    CONFIG,
    DEFINITION,
    EXTRA,
    FULL,
    IMAGE,
    SMALL,
    TEXT,
    Sizes,
    families,
    versions_of,
)
from models.named.pytorch import build
from models.own import reason

WRAPPER = "1."  # prefix of a network behind the permutation of its images


def describe(source: str, folder: Path) -> dict[str, Any]:
    """Return the definition of a network, and write its configurations into the folder.

    Raises:
        ModelError: The library has no such network, or it cannot be measured.
    """
    library, _, name = source.partition(":")
    definition: dict[str, Any] = {"source": source, "library": library, "name": name}
    definition["versions"] = versions_of(library)
    if library == "hf":
        _configure(definition, folder)
        definition["shapes"] = {size: _shapes(definition, folder, size) for size in (FULL, SMALL)}
        definition["no_counterpart"] = _convert(definition, folder, SMALL)
        return definition
    _check_name(library, name)
    definition |= {"kind": IMAGE, "corrections": {}}
    if library == "timm":
        import timm

        network = timm.create_model(name)
        definition["head"] = network.default_cfg["classifier"]
        momenta = {each.momentum for each in network.modules() if isinstance(each, nn.BatchNorm2d)}
        if name.startswith(families.WITHOUT_MOMENTUM) and len(momenta - {None}) == 1:
            momentum = 1 - (momenta - {None}).pop()
            definition["corrections"] = {families.MOMENTUM: (momentum, "that of timm")}
        configuration = {
            "architecture": name,
            "num_classes": 0,
            "num_features": network.num_features,
            "pretrained_cfg": {},
        }
        (folder / FULL).mkdir()
        (folder / FULL / CONFIG).write_text(json.dumps(configuration))
    described = introspection.describe(partial(_channels_first, definition, folder))
    names = ("channels", "least_side", "only_side", "classes")
    definition |= {name: getattr(described, name) for name in names}
    definition["probe_side"] = {FULL: described.only_side or max(described.least_side, 64)}
    shapes = {name.removeprefix(WRAPPER): shape for name, shape in described.shapes.items()}
    definition["shapes"] = {FULL: shapes}
    definition["no_counterpart"] = _convert(definition, folder, FULL)
    return definition


def _convert(definition: dict[str, Any], folder: Path, size: str) -> str:
    """Return why there is no counterpart in KerasHub; empty if its arrays were found."""
    if definition["library"] == "torchvision":
        return "KerasHub has no converter for networks of torchvision"
    if find_spec("keras_hub") is None:
        return f"keras-hub is not installed: pip install {EXTRA}"
    from models.named import conversion

    try:
        conversion.write_cuts(definition, folder, size)
    except Exception as error:  # of another library's code
        return str(error) if isinstance(error, ModelError) else reason(error)
    return ""


def _check_name(library: str, name: str) -> None:
    if library == "timm":
        import timm

        names = timm.list_models()
    else:
        from torchvision.models import list_models

        names = list_models()
    if name not in names:
        text = f"{library} has no network {name!r}{suggestion(name, names)}"
        raise ModelError(ErrorCode.UNKNOWN_NAME, text)


def _configure(definition: dict[str, Any], folder: Path) -> None:
    """Write the configuration without dropout, and that of the small version."""
    from transformers import (
        CONFIG_MAPPING,
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageClassification,
        AutoModelForMaskedLM,
    )

    name = definition["name"]
    is_architecture = name in CONFIG_MAPPING and not Path(name).is_dir()
    config = (AutoConfig.for_model if is_architecture else AutoConfig.from_pretrained)(name)
    is_decoder = type(config) in AutoModelForCausalLM._model_mapping and (
        (config.architectures or [""])[0].endswith(("ForCausalLM", "LMHeadModel"))
        or type(config) not in AutoModelForMaskedLM._model_mapping
    )
    family = families.of(config.model_type)
    if type(config) in AutoModelForImageClassification._model_mapping:
        definition["kind"] = IMAGE
    elif is_decoder:
        definition["kind"] = CAUSAL
    else:
        definition["kind"] = TEXT
    definition |= {"family": config.model_type, "vocabulary": {}, "positions": {}}
    definition |= {"classes": 1_000, "probe_side": {}, "feature": family.feature}
    for size in (FULL, SMALL):
        values = config.to_dict() | dict(family.configuration)
        values |= dict.fromkeys(values.keys() & set(families.DROPOUTS), 0.0)
        if size == SMALL:
            values = _small(values)
        place = folder / size
        place.mkdir()
        (place / CONFIG).write_text(json.dumps(values, indent=1))
        positions = values.get("max_position_embeddings") or values.get("n_positions")
        definition["vocabulary"][size] = values.get("vocab_size", 0)
        definition["positions"][size] = positions and positions - family.first_position
        definition["probe_side"][size] = values.get("image_size")
    values = json.loads((folder / FULL / CONFIG).read_text())
    definition["corrections"] = {
        option: (values[key], f"{key} of the configuration")
        for option, key in family.options.items()
    }
    if family.exact_gelu and config.hidden_act == "gelu":
        definition["corrections"][families.GELU] = "gelu", "exact, not approximated"
    if family.equal_paths:
        text = "Keras on PyTorch adds up the gradients of variables with the same path"
        definition["corrections"][families.PATHS] = "distinct", text
    side = definition["probe_side"][FULL]
    channels = getattr(config, "num_channels", 3)
    definition |= {"channels": channels, "least_side": side, "only_side": side}


def _small(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration with few layers of a small width."""
    small = {name: families.SMALL_VALUES.get(name, value) for name, value in values.items()}
    for name in families.LAYER_LISTS:
        if small.get(name):
            small[name] = small[name][:2]
    if isinstance(values.get("num_heads"), list):
        small["num_heads"] = [2, 2]
    for name in small:
        if name.endswith(families.TOKEN_SUFFIX):
            small[name] = 0 if name.startswith("pad") else None
    derived = families.DERIVED_BY_WIDTH if "embed_dim" in values else families.DERIVED
    return {name: value for name, value in small.items() if name not in derived}


def _channels_first(definition: dict[str, Any], folder: Path, num_classes: int) -> nn.Module:
    """Return a network that takes images (n, channels, height, width)."""
    network = build(definition, folder, Sizes(FULL, num_classes))
    return nn.Sequential(_Permuted(), network)


class _Permuted(nn.Module):  # type: ignore[misc]
    def forward(self, images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1)


def _shapes(
    definition: dict[str, Any], folder: Path, size: str
) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of each array by name, None for the number of classes."""
    shapes = []
    for classes in introspection.CLASSES:
        with torch.device("meta"):
            network = build(definition, folder / size, Sizes(size, classes))
        state = introspection.state(network).items()
        shapes.append({name: tensor.shape for name, tensor in state})
    first, second = shapes
    return {
        name: tuple(a if a == b else None for a, b in zip(shape, second[name], strict=True))
        for name, shape in first.items()
    }


def main(source: str, folder: str) -> int:
    try:
        definition = describe(source, Path(folder))
    except Exception as error:  # of another library's code
        print(error if isinstance(error, ModelError) else reason(error), file=sys.stderr)
        return 1
    (Path(folder) / DEFINITION).write_text(json.dumps(definition, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
