"""Weights from where the user says: a seeded draw, ImageNet, or a file. Nothing pickled is ever executed.

`python -m models.weights SOURCE.pth OUT.safetensors` converts a state_dict: a process of its own, because it imports torch.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import models
from models.contract import Array, ModelError, Weights, check_weights

SUFFIXES = (".safetensors", ".pth", ".pt")


def load(source: str, model: str, spec: Any, seed: int = 0) -> Weights:
    """The weights of `models.<model>` for `spec`, with the names and layouts of a PyTorch state_dict.

    source: `random` (drawn once in NumPy from `seed`), `imagenet` (torchvision's checkpoint, from torch's local cache or
    downloaded into it), or a path to a .safetensors or .pth file. Raises ModelError when it cannot be had or belongs to
    another architecture.
    """
    module = models.spec(model)
    if source == "random":
        drawn: Weights = module.initial_weights(spec, np.random.default_rng(seed))
        return drawn
    found = _read(imagenet(model) if source == "imagenet" else Path(source))
    weights = renamed(model, found)
    shapes = module.shapes(spec)
    if source == "imagenet":  # it has a classifier, whether or not the network wants one
        weights = {name: array for name, array in weights.items() if name in shapes or not name.startswith("classifier.")}
    try:
        check_weights(weights, shapes)
    except ModelError as error:
        raise ModelError(f"{source}: not a {model} of these sizes: {error}") from None
    return weights


def renamed(model: str, found: Mapping[str, Array]) -> Weights:
    """A published file's arrays by our names, without those that the network does not have: counters, auxiliary heads."""
    rename = getattr(models.spec(model), "checkpoint_name", str)
    named = {rename(name): array for name, array in found.items() if not name.endswith("num_batches_tracked")}
    return {name: array for name, array in named.items() if name is not None}


def digest(weights: Mapping[str, Array]) -> str:
    """SHA-256 over the sorted names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.data)
    return total.hexdigest()


def save(weights: Mapping[str, Array], path: Path) -> None:
    """A .safetensors file that `load` reads back."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, path)


def check_file(path: Path) -> Path:
    """The path, if it is a file of a kind that can hold weights. Raises ModelError."""
    if path.suffix not in SUFFIXES:
        raise ModelError(f"weights {str(path)!r}: must be random, imagenet or a file ending in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ModelError(f"weights {str(path)!r}: no such file")
    return path


def _read(path: Path) -> Weights:
    check_file(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "weights.safetensors"
        _child(str(path), str(converted))
        return _read_safetensors(converted)


def _read_safetensors(path: Path) -> Weights:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        weights: Weights = load_file(path)
    except (SafetensorError, ValueError) as error:
        raise ModelError(f"weights {str(path)!r}: not a safetensors file: {_first_line(error)}") from None
    return weights


def imagenet(model: str) -> Path:
    """torchvision's checkpoint in torch's local cache, downloaded into it if need be. Raises ModelError if it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "path"
        _child("imagenet", model, str(answer))
        return Path(answer.read_text())


def _child(*arguments: str) -> None:
    """torch in a process of its own: the caller's may hold TensorFlow."""
    command = [sys.executable, "-m", "models.weights", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    if done.returncode:
        raise ModelError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "torch could not read the weights")


def _convert(source: Path, out: Path) -> None:
    """A .pth state_dict (or {'state_dict': …}) to safetensors; unpickles tensors and containers only."""
    import torch
    from safetensors.torch import save_file

    try:
        found = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen types here; all mean that the file is not one
        raise ModelError(f"weights {str(source)!r}: not a state_dict of tensors alone: {_first_line(error)}") from None
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ModelError(f"weights {str(source)!r}: not a state_dict of tensors alone")
    save_file({name: tensor.clone().contiguous() for name, tensor in found.items()}, out)


def _fetch(model: str) -> Path:
    """Path of torchvision's ImageNet checkpoint in the cache. Raises ModelError when it is neither there nor to be downloaded."""
    import torch
    from torchvision.models import get_model_weights

    try:
        url = get_model_weights(model).DEFAULT.url
    except ValueError:
        raise ModelError(f"weights 'imagenet': torchvision has none for {model}; use weights=random or a local file") from None
    path: Path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        begin_of_hash = path.stem.rpartition("-")[2]
        try:
            torch.hub.download_url_to_file(url, str(path), begin_of_hash, progress=False)
        except (OSError, RuntimeError) as error:
            raise ModelError(
                f"weights 'imagenet': {path} is not there and {url} cannot be had ({_first_line(error)}); "
                "use weights=random or the path of a local file"
            ) from None
    return path


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["imagenet", model, answer]:
                Path(answer).write_text(str(_fetch(model)))
            case [source, out]:
                _convert(Path(source), Path(out))
            case _:
                raise ModelError("usage: python -m models.weights SOURCE.pth OUT.safetensors")
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
