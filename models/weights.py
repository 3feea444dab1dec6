"""Weights from where the user says: a seeded draw, ImageNet, or a file; the only module that imports safetensors.

Nothing pickled is ever executed.

`python -m models.weights SOURCE.pth OUT.safetensors` converts a state_dict: a process of its own, because it imports torch.
"""

from __future__ import annotations

import hashlib
import signal
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
# A name, a type, a shape and two offsets an array: ten megabytes name a hundred thousand arrays.
LARGEST_HEADER_BYTES = 10 << 20
NUMPY_TYPES = frozenset(
    {"F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
)
BFLOAT16 = "BF16"
REFUSED = 2
# What torch may take to read a .pth, which is not compressed: the file, its tensors, their copies in one piece; and time.
CONVERTED_TIMES, CONVERTED_BYTES = 4, 1 << 30
CONVERTED_SECONDS, CONVERTED_BYTES_PER_SECOND = 120, 10 << 20


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
    shapes = module.shapes(spec)
    try:
        weights = renamed(model, found)
        if source == "imagenet":  # it has a classifier, whether or not the network wants one
            weights = {
                name: array
                for name, array in weights.items()
                if name in shapes or not name.startswith("classifier.")
            }
        check_weights(weights, shapes)
        _check_floats(weights)
    except ModelError as error:
        raise ModelError(f"{source}: not a {model} of these sizes: {error}") from None
    return weights


def _check_floats(weights: Weights) -> None:
    for name, array in weights.items():
        if array.dtype.kind != "f":
            raise ModelError(
                f"weights: {name!r} holds {array.dtype}, the network wants floats; save it as float32"
            )


def renamed(model: str, found: Mapping[str, Array]) -> Weights:
    """A published file's arrays by our names, without those that the network does not have: counters, auxiliary heads.

    Raises ModelError where two of its names are one of ours.
    """
    rename = models.spec(model).checkpoint_name
    names: dict[str, str] = {}
    for theirs in found:
        ours = None if theirs.endswith("num_batches_tracked") else rename(theirs)
        if ours in names:
            raise ModelError(f"weights: {names[ours]!r} and {theirs!r} are both {ours!r}")
        if ours is not None:
            names[ours] = theirs
    return {ours: found[theirs] for ours, theirs in names.items()}


def digest(weights: Mapping[str, Array]) -> str:
    """SHA-256 over the sorted names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.data)
    return total.hexdigest()


def check_file(path: Path) -> Path:
    """The path, if it is a file of a kind that can hold weights. Raises ModelError."""
    if path.suffix not in SUFFIXES:
        raise ModelError(
            f"weights {str(path)!r}: must be random, imagenet or a file ending in {', '.join(SUFFIXES)}"
        )
    if not path.is_file():
        raise ModelError(f"weights {str(path)!r}: no such file")
    return path


def _read(path: Path) -> Weights:
    check_file(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "weights.safetensors"
        _child(str(path), str(path.absolute()), str(converted))
        return read_safetensors(converted)


def write_safetensors(weights: Mapping[str, Array], path: Path) -> None:
    """Write a file of arrays by name, without code. Raises OSError or SafetensorError where it cannot be written."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, path)


def read_safetensors(path: Path) -> Weights:
    """Arrays by name as they are; bfloat16, which NumPy does not have, as the same values in float32. Raises ModelError."""
    from safetensors import SafetensorError, deserialize, safe_open

    try:
        _check_header(path)
        with safe_open(path, framework="np") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            _check_types(path, types)
            weights = {name: file.get_tensor(name) for name in types if types[name] != BFLOAT16}
        if BFLOAT16 in types.values():
            found = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
            weights |= {name: _widened(part) for name, part in found if types[name] == BFLOAT16}
    except MemoryError:
        raise ModelError(f"weights {str(path)!r}: needs more memory than there is") from None
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        raise ModelError(
            f"weights {str(path)!r}: not a safetensors file: {_first_line(error)}"
        ) from None
    return weights


def _check_header(path: Path) -> None:
    """The first eight bytes promise the header's size."""
    with path.open("rb") as file:
        promised = int.from_bytes(file.read(8), "little")
    if promised > min(LARGEST_HEADER_BYTES, path.stat().st_size):
        raise ValueError(
            f"a header of {promised:,} bytes in a file of {path.stat().st_size:,}; at most {LARGEST_HEADER_BYTES:,}"
        )


def _check_types(path: Path, types: Mapping[str, str]) -> None:
    for name, kind in types.items():
        if kind not in NUMPY_TYPES and kind != BFLOAT16:
            raise ModelError(
                f"weights {str(path)!r}: {name!r} is of the type {kind}; save it as F32, or as F64, F16 or BF16"
            )


def _widened(part: Mapping[str, Any]) -> Array:
    """bfloat16 as float32: bfloat16 is the upper half of its bits."""
    upper = np.frombuffer(part["data"], "<u2").astype(np.uint32)
    return (upper << 16).view(np.float32).reshape(part["shape"])


def imagenet(model: str) -> Path:
    """torchvision's checkpoint in torch's local cache, downloaded into it if need be. Raises ModelError if it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "path"
        _child("imagenet", "imagenet", model, str(answer))
        return Path(answer.read_text())


def _child(source: str, *arguments: str) -> None:
    """torch in a process of its own: the caller's may hold TensorFlow, and a damaged file may end torch's."""
    command = [
        sys.executable,
        "-m",
        __name__,
        *arguments,
    ]  # a logged model has these modules under a name of its own
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[__name__.count(".")],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    said = done.stderr.strip().splitlines()
    if done.returncode == REFUSED and said:
        raise ModelError(said[-1])
    if done.returncode:
        why = (
            signal.Signals(-done.returncode).name
            if done.returncode < 0
            else _printable(said[-1] if said else "no word")
        )
        raise ModelError(f"weights {source!r}: torch could not read it: {why}")


def _convert(source: Path, out: Path) -> None:
    """A .pth state_dict (or {'state_dict': …}) to safetensors; unpickles tensors and containers only."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    _bound(source.stat().st_size)
    try:
        found = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen types here; all mean that the file is not one
        raise ModelError(
            f"weights {str(source)!r}: not a state_dict of tensors alone: {_first_line(error)}"
        ) from None
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(_plain(name, value) for name, value in found.items()):
        raise ModelError(f"weights {str(source)!r}: not a state_dict of tensors alone")
    promised = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    if (
        promised > CONVERTED_TIMES * source.stat().st_size
    ):  # a view can be larger than what it looks at
        raise ModelError(
            f"weights {str(source)!r}: {promised:,} bytes of tensors in a file of {source.stat().st_size:,}"
        )
    try:
        save_file({name: tensor.clone().contiguous() for name, tensor in found.items()}, out)
    except (ValueError, RuntimeError, MemoryError, SafetensorError) as error:
        raise ModelError(
            f"weights {str(source)!r}: cannot be converted: {_first_line(error)}"
        ) from None


def _plain(name: object, value: object) -> bool:
    """A dense tensor with values, by a name: neither sparse nor quantised, nor one without storage."""
    import torch

    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        return False
    return bool(
        value.layout == torch.strided and not value.is_quantized and value.device.type == "cpu"
    )


def _bound(size_bytes: int) -> None:
    """Bounds memory and time of this process by the file's size, whatever the sizes in it. Linux counts what is private."""
    status = Path("/proc/self/status")
    if not status.exists():
        return
    import resource

    now = next(
        int(line.split()[1]) << 10
        for line in status.read_text().splitlines()
        if line.startswith("VmData")
    )
    limits = {
        resource.RLIMIT_DATA: now + CONVERTED_TIMES * size_bytes + CONVERTED_BYTES,
        resource.RLIMIT_CPU: CONVERTED_SECONDS + size_bytes // CONVERTED_BYTES_PER_SECOND,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(
            kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most)
        )


def _fetch(model: str) -> Path:
    """Path of torchvision's ImageNet checkpoint in the cache. Raises ModelError when it is neither there nor to be downloaded."""
    import torch
    from torchvision.models import get_model_weights

    try:
        url = get_model_weights(model).DEFAULT.url
    except ValueError:
        raise ModelError(
            f"weights 'imagenet': torchvision has none for {model}; use weights=random or a local file"
        ) from None
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


def _first_line(error: BaseException) -> str:
    return _printable((str(error).strip().splitlines() or [type(error).__name__])[0])


def _printable(text: str) -> str:
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


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
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
