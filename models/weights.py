"""Weights from a seeded draw, ImageNet or a file; the only module that imports safetensors.

No pickle is ever executed. A state_dict is read in a separate process, because that imports torch.
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
from models.contract import Array, ErrorCode, ModelError, Weights, check_weights
from models.own import reason

SUFFIXES = (".safetensors", ".pth", ".pt")
NUMPY_TYPES = frozenset(
    {"F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
)
BFLOAT16 = "BF16"
REFUSED = 2
# A name, a type, a shape and two offsets an array: ten megabytes name a hundred thousand arrays.
LARGEST_HEADER_BYTES = 10 << 20


def load(source: str, model: str, spec: Any, seed: int = 0) -> Weights:
    """Return the weights of `models.<model>`, with names and layouts of a PyTorch state_dict.

    Args:
        source: `random` (drawn in NumPy), `imagenet` (torchvision's checkpoint, from torch's cache
            or downloaded into it), or the path of a .safetensors or .pth file.
        model: name of the model.
        spec: its sizes.
        seed: of `random`.

    Raises:
        ModelError: if they are not available or belong to another architecture.
    """
    module = models.spec(model)
    if source == "random":
        return module.initial_weights(spec, np.random.default_rng(seed))
    arrays = _read(imagenet(model) if source == "imagenet" else Path(source))
    shapes = module.shapes(spec)
    try:
        weights = renamed(model, arrays)
        if source == "imagenet":  # it has a classifier, even if the network has none
            extra = {name for name in weights if name.startswith("classifier.")} - shapes.keys()
            weights = {name: array for name, array in weights.items() if name not in extra}
        check_weights(weights, shapes)
        for name, array in weights.items():
            if array.dtype.kind != "f":
                text = f"weights: {name!r} holds {array.dtype}; save it as float32"
                raise ModelError(ErrorCode.UNSUPPORTED, text)
    except ModelError as error:
        text = f"{source}: not a {model} of these sizes: {error}"
        raise ModelError(error.code, text) from None
    return weights


def renamed(model: str, arrays: Mapping[str, Array]) -> Weights:
    """Return a published file's arrays by our names, without counters and auxiliary heads.

    Raise ModelError if two of its names are one of ours.
    """
    rename = models.spec(model).checkpoint_name
    names: dict[str, str] = {}
    for theirs in arrays:
        ours = None if theirs.endswith("num_batches_tracked") else rename(theirs)
        if ours in names:
            text = f"weights: {names[ours]!r} and {theirs!r} are both {ours!r}"
            raise ModelError(ErrorCode.DUPLICATE, text)
        if ours is not None:
            names[ours] = theirs
    return {ours: arrays[theirs] for ours, theirs in names.items()}


def digest(weights: Mapping[str, Array]) -> str:
    """Return the SHA-256 of the sorted names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.data)
    return total.hexdigest()


def check_file(path: Path) -> Path:
    if path.suffix not in SUFFIXES:
        text = f"must be random, imagenet or a file ending in {', '.join(SUFFIXES)}"
        raise ModelError(ErrorCode.INVALID_VALUE, f"weights {str(path)!r}: {text}")
    if not path.is_file():
        raise ModelError(ErrorCode.NOT_FOUND, f"weights {str(path)!r}: no such file")
    return path


def _read(path: Path) -> Weights:
    check_file(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "weights.safetensors"
        _run("convert", str(path.absolute()), str(converted))
        return read_safetensors(converted)


def write_safetensors(weights: Mapping[str, Array], path: Path) -> None:
    """Write arrays by name. Raise OSError or SafetensorError."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, path)


def read_safetensors(path: Path) -> Weights:
    """Return arrays by name, bfloat16 as float32. Raise ModelError."""
    from safetensors import SafetensorError, deserialize, safe_open

    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > LARGEST_HEADER_BYTES:
            raise ValueError(
                f"a header of {header_bytes:,} bytes; at most {LARGEST_HEADER_BYTES:,}"
            )
        with safe_open(path, framework="np") as tensors:
            names = tensors.keys()
            types = {name: tensors.get_slice(name).get_dtype() for name in names}
            for name, kind in types.items():
                if kind not in NUMPY_TYPES and kind != BFLOAT16:
                    text = f"{name!r} is of the type {kind}; save it as F32, F64, F16 or BF16"
                    raise ModelError(ErrorCode.UNSUPPORTED, f"weights {str(path)!r}: {text}")
            weights = {name: tensors.get_tensor(name) for name in names if types[name] != BFLOAT16}
        if BFLOAT16 in types.values():
            for name, part in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
                if types[name] == BFLOAT16:  # the upper half of a float32's bits
                    upper = np.frombuffer(part["data"], "<u2").astype(np.uint32)
                    weights[name] = (upper << 16).view(np.float32).reshape(part["shape"])
    except (SafetensorError, OSError, ValueError, OverflowError, MemoryError) as error:
        text = f"weights {str(path)!r}: not a safetensors file: {reason(error)}"
        raise ModelError(ErrorCode.UNREADABLE, text) from None
    return weights


def imagenet(model: str) -> Path:
    """Return torchvision's checkpoint in torch's cache, downloaded if missing. Raise ModelError."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "path"
        _run("fetch", model, str(answer))
        return Path(answer.read_text())


def _run(*arguments: str) -> None:
    """Run torch in a separate process: this one may have TensorFlow, and a file may end torch's."""
    command = [sys.executable, "-m", __name__, *arguments]
    root = Path(__file__).parents[__name__.count(".")]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, errors="replace")
    lines = result.stderr.strip().splitlines() or ["no message"]
    if result.returncode == REFUSED:
        code, _, text = lines[-1].partition(" ")
        raise ModelError(ErrorCode(code), text)
    if result.returncode:
        message = f"torch exited with {result.returncode}: {reason(RuntimeError(lines[-1]))}"
        raise ModelError(ErrorCode.CHILD_FAILED, f"weights {arguments[1]!r}: {message}")


def _convert(source: str, out: str) -> None:
    """Convert a .pth state_dict (or {'state_dict': …}), whose pickle holds tensors only."""
    import torch
    from safetensors.torch import save_file

    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
        state = state.get("state_dict", state)
        file_bytes = Path(source).stat().st_size
        tensor_bytes = sum(tensor.nbytes for tensor in state.values())
        if tensor_bytes > 4 * file_bytes:  # a view can be larger than its storage
            raise ValueError(f"{tensor_bytes:,} bytes of tensors in a file of {file_bytes:,}")
        save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, out)
    except Exception as error:  # torch raises a dozen types here
        why = reason(error).partition(". ")[0]  # then torch names a way to run its code
        text = f"weights {str(source)!r}: not a state_dict of tensors alone: {why}"
        raise ModelError(ErrorCode.UNREADABLE, text) from None


def _fetch(model: str, answer: str) -> None:
    import torch
    from torchvision.models import get_model_weights

    try:
        url = get_model_weights(model).DEFAULT.url
    except ValueError:
        text = f"torchvision has none for {model}; use weights=random or a local file"
        raise ModelError(ErrorCode.UNSUPPORTED, f"weights 'imagenet': {text}") from None
    path: Path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        hash_prefix = path.stem.rpartition("-")[2]
        try:
            torch.hub.download_url_to_file(url, str(path), hash_prefix, progress=False)
        except (OSError, RuntimeError) as error:
            text = (
                f"{path} is missing, and {url} is not available ({reason(error)}); "
                "use weights=random or the path of a local file"
            )
            raise ModelError(ErrorCode.NOT_FOUND, f"weights 'imagenet': {text}") from None
    Path(answer).write_text(str(path))


def main(name: str, *arguments: str) -> int:
    try:
        {"fetch": _fetch, "convert": _convert}[name](*arguments)
    except ModelError as error:
        print(error.code, error, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
