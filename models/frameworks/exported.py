"""Runtimes: frameworks that only infer, with a file that another framework has exported.

`python -m models.frameworks.exported FOLDER` exports a network in a separate process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import models
from models.contract import (
    PROFILED,
    Array,
    Batch,
    ErrorCode,
    Framework,
    ModelError,
    Weights,
    check_weights,
)
from models.devices import CPU
from models.errors import last_lines
from models.frameworks import described, load, open_framework
from models.frameworks.devices import resolve
from models.weights import digest, read_safetensors, write_safetensors

REQUEST, WEIGHTS, MODEL = "request.json", "weights.safetensors", "model"
OUTPUTS, REFUSED = ".npz", 2
AGREEMENT = "inference/same_class_share"
# Places in the graph of a converter, long before its reason.
PLACES = re.compile(r"loc\(.*?\)+: ")
IMAGES = 4  # dimensions: (n, height, width, channels) in the contract
# Largest difference of an output, relative to the largest output. Equal networks were measured at
# 2e-7 to 4e-6 in float32; one weight of the last convolution at half its value changes 1e-3.
# In bfloat16, 8 bits of mantissa: 2⁻⁹ a rounding, a few dozen layers.
LIMITS = {"float32": 1e-4, "bfloat16": 5e-2}


class Placed(tuple[Array, ...]):
    """Inputs in the layout of the file."""


@dataclass
class ExportedNetwork:
    """Network of a runtime.

    weights: empty once its file is loaded. session: of the file, as the runtime calls it.
    """

    model: str
    spec: Any
    weights: Weights = field(default_factory=dict)
    session: Any = None


@dataclass(frozen=True)
class Export:
    """Export of a network by a framework, in a process that is not measured.

    suffix: of the file, which names its format. batches: as `Framework.deploy` takes them. in_int8:
    as of a `Variant`.
    """

    framework: str
    suffix: str
    network: ExportedNetwork
    batches: Sequence[tuple[Array, ...]]
    in_int8: bool = False

    @property
    def free_axes(self) -> list[list[int]]:
        """Axes of each input in which the batches differ."""
        by_input = zip(*self.batches, strict=True)
        shapes = [np.array([array.shape for array in arrays]) for arrays in by_input]
        return [np.flatnonzero(np.ptp(sizes, axis=0)).tolist() for sizes in shapes]

    def digest(self, packages: Sequence[str]) -> str:
        """Return a digest of all that decides on the file.

        Args:
            packages: Of the exporter, besides the framework's.
        """
        total = hashlib.sha256(digest(self.network.weights).encode())
        packages = (*described(self.framework).distributions, *packages)
        versions = {name: version(name) for name in packages}
        spec = repr(self.network.spec)
        key = [self.framework, self.network.model, spec, versions, models.code_digest()]
        total.update(json.dumps([*key, self.free_axes, self.in_int8]).encode())
        for array in (array for inputs in self.batches for array in inputs):
            total.update(f"{array.dtype.str} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()[:16]

    def write(self, path: Path) -> None:
        """Export into a file, with the framework's outputs for the batches beside it.

        Raises:
            ModelError: The exporter refuses the network; its reason is named.
        """
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            folder, spec = Path(name), self.network.spec
            request = {
                "framework": self.framework,
                "suffix": self.suffix,
                "model": self.network.model,
                "spec": {each.name: getattr(spec, each.name) for each in fields(spec)},
                "free_axes": self.free_axes,
                "in_int8": self.in_int8,
            }
            (folder / REQUEST).write_text(json.dumps(request))
            write_safetensors(self.network.weights, folder / WEIGHTS)
            for number, inputs in enumerate(self.batches):
                np.savez(folder / f"{number}{OUTPUTS}", *inputs)
            command = [sys.executable, "-m", "models.frameworks.exported", name]
            root = Path(__file__).parents[2]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True)
            if done.returncode:
                is_refused = done.returncode == REFUSED
                code = ErrorCode.NOT_EXPORTED if is_refused else ErrorCode.CHILD_FAILED
                text = f"is not exported from {self.framework} as {self.suffix}"
                reason = last_lines(done.stderr)
                raise ModelError(code, f"{self.network.model} {text}: {reason}")
            (folder / f"{MODEL}{OUTPUTS}").replace(path.with_suffix(OUTPUTS))
            (folder / f"{MODEL}{self.suffix}").replace(path)


@dataclass(frozen=True)
class ExportJob:
    """Network and the file that an exporter makes of it.

    network: of the framework, in evaluation mode. inputs: example, with 2 or more along each free
    axis. free_axes: of each input, axes of any size. path: of the file. in_int8: as of a `Variant`.
    """

    network: Any
    inputs: tuple[Array, ...]
    free_axes: Sequence[Sequence[int]]
    path: Path
    in_int8: bool


class Runtime(Framework):
    """Runtime of exported files, with a smaller contract: `_open`, `load` and `run`.

    suffix: of its files. precisions: those it computes in. Images are transposed when they are
    placed, if they are in the file of a network of PyTorch.
    """

    suffix: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]] = ("float32",)
    device = CPU

    def __init__(
        self,
        name: str,
        *,
        device: str,
        threads: int,
        precision: str,
        seed: int,
        conv_algorithm: str = PROFILED,
    ) -> None:
        self.name, self.precision = name, precision
        self._channels_first = described(name).exported_from == "pytorch"
        if precision not in self.precisions:
            have = ", ".join(self.precisions)
            text = f"precision {precision!r}: {name} is a runtime without it; use {have}"
            raise ModelError(ErrorCode.UNSUPPORTED, text)
        if conv_algorithm in ("onednn", "plain"):
            text = f"conv_algorithm {conv_algorithm!r}: {name} has no such choice; use profiled"
            raise ModelError(ErrorCode.UNSUPPORTED, text)
        resolve(device, "", name, precision, "")
        self._open(threads)

    @abstractmethod
    def _open(self, threads: int) -> None:
        """Import the runtime.

        Args:
            threads: 0 for its default.
        """

    @abstractmethod
    def load(self, path: Path) -> Any:
        """Return a session of an exported file."""

    @abstractmethod
    def run(self, session: Any, inputs: tuple[Array, ...]) -> Array:
        """Return the outputs for placed inputs."""

    def build(self, model: str, spec: Any) -> ExportedNetwork:
        return ExportedNetwork(model, spec)

    def parameter_counts(self, network: ExportedNetwork) -> tuple[int, int]:
        return models.spec(network.model).parameters(network.spec)

    def weights(self, network: ExportedNetwork) -> Weights:
        return {name: array.copy() for name, array in network.weights.items()}

    def load_weights(self, network: ExportedNetwork, weights: Mapping[str, Array]) -> None:
        check_weights(weights, models.spec(network.model).shapes(network.spec))
        network.weights, network.session = dict(weights), None

    def deploy(
        self, network: ExportedNetwork, batches: Sequence[tuple[Array, ...]], folder: Path
    ) -> dict[str, float]:
        variant = described(self.name)
        export = Export(variant.exported_from, self.suffix, network, batches, variant.in_int8)
        name = f"{network.model}-{export.digest(variant.export_packages)}{self.suffix}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        with path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (path.is_file() and path.with_suffix(OUTPUTS).is_file()):
                export.write(path)
            compared = self._verify(export, path)
        network.weights = {}  # a deployment has only the file
        began = time.perf_counter()
        network.session = self.load(path)
        seconds = time.perf_counter() - began
        return {
            "inference/load_seconds": seconds,
            "inference/file_bytes": path.stat().st_size,
            **compared,
        }

    def _verify(self, export: Export, path: Path) -> dict[str, float]:
        """Compare a file's outputs with those of its network, unless this file has passed before.

        Returns:
            The largest difference of an output, relative to the largest output, and the share of
            answers with the same largest output.

        Raises:
            ModelError: They differ, or the file does not take a batch of one of the sizes.
        """
        proof = path.with_suffix(f".{self.name}.{self.precision}.proof")
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        proven = {"file": content, **self.versions()}
        if proof.is_file() and proven.items() <= (earlier := json.loads(proof.read_text())).items():
            return {"check/export_error": earlier["error"], AGREEMENT: earlier["agreement"]}
        # in int8 it is another function: the answers of the same class are counted
        limit = np.inf if export.in_int8 else LIMITS[self.precision]
        session, errors, same = self.load(path), list[float](), list[Array]()
        of_model = f"{export.network.model} of {self.name}: {path.name}"
        with np.load(path.with_suffix(OUTPUTS), allow_pickle=False) as expected:
            for inputs, outputs in zip(export.batches, expected.values(), strict=True):
                shapes = ", ".join(str(array.shape) for array in inputs)
                try:
                    actual = self.run(session, self.place_inputs(inputs))
                except Exception as problem:  # each runtime has types of its own
                    reason = " ".join(str(problem).split())[:300]
                    text = f"{of_model} does not take inputs of {shapes}: {reason}"
                    raise ModelError(ErrorCode.NOT_EQUAL, text) from None
                if actual.shape != outputs.shape:
                    text = f"answers inputs of {shapes} with {actual.shape}, not {outputs.shape}"
                    raise ModelError(ErrorCode.NOT_EQUAL, f"{of_model} {text}")
                errors.append(abs(actual - outputs).max() / abs(outputs).max())
                same.append((actual.argmax(-1) == outputs.argmax(-1)).ravel())
        error, agreement = float(np.max(errors)), float(np.concatenate(same).mean())
        if not error <= limit:  # NaN, too
            source = export.framework
            weight = load(source, "export").first_difference(export, path)
            where = f", first in {weight}" if weight else ""
            text = f"differs from {source}'s network by {error:.0e} of its largest output"
            raise ModelError(ErrorCode.NOT_EQUAL, f"{of_model} {text} (limit {limit:.0e}){where}")
        proof.write_text(json.dumps({**proven, "error": error, "agreement": agreement}))
        return {"check/export_error": error, AGREEMENT: agreement}

    def place(self, batch: Batch) -> Batch:
        placed = self.place_inputs(batch.inputs)
        return Batch(placed, batch.targets, batch.weights, batch.uniform_weights)

    def place_inputs(self, inputs: tuple[Array, ...]) -> Placed:
        if isinstance(inputs, Placed):
            return inputs
        return Placed(
            np.ascontiguousarray(array.transpose(0, 3, 1, 2))
            if self._channels_first and array.ndim == IMAGES
            else np.ascontiguousarray(array)
            for array in inputs
        )

    def infer(self, network: ExportedNetwork, inputs: tuple[Array, ...]) -> Array:
        if type(inputs) is not Placed:
            inputs = self.place_inputs(inputs)
        return self.run(network.session, inputs)

    def compilations(self) -> int:
        return 0

    def synchronise(self) -> None:
        """Do nothing: a call returns with its outputs."""

    def peak_device_bytes(self) -> int | None:
        return None

    def _refuse(self, *_: Any, **__: Any) -> Any:
        text = f"{self.name} is not available for this: a runtime does not train"
        raise ModelError(ErrorCode.UNSUPPORTED, text)

    optimizer = optimizer_implementation = set_learning_rate = _refuse
    optimizer_state = load_optimizer_state = train_step = train_epoch = _refuse
    evaluate = gradients = dropping = drop_nothing = apply = _refuse


def round_onnx(path: Path) -> None:
    """Let an ONNX file compute products in integers of 8 bits, scaled by each call's values."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(path, path, weight_type=QuantType.QInt8)


def first_difference_of_onnx(path: Path, other: Path) -> str:
    """Return the first weight that an ONNX file has otherwise than another; empty if none."""
    import onnx

    left, right = (
        {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(at).graph.initializer}
        for at in (path, other)
    )
    return next(
        (
            name
            for name, array in right.items()
            if name not in left or not np.array_equal(left[name], array)
        ),
        "",
    )


def main(name: str) -> int:
    folder = Path(name)
    request = json.loads((folder / REQUEST).read_text())
    framework = open_framework(
        request["framework"], device=CPU, threads=0, precision="float32", seed=0
    )
    values = {key: _as_tuple(value) for key, value in request["spec"].items()}
    network = framework.build(request["model"], models.spec(request["model"]).Spec(**values))
    framework.load_weights(network, read_safetensors(folder / WEIGHTS))
    batches = []
    for path in sorted(folder.glob(f"[0-9]*{OUTPUTS}"), key=lambda path: int(path.stem)):
        with np.load(path, allow_pickle=False) as arrays:
            batches.append(tuple(arrays.values()))
    np.savez(folder / f"{MODEL}{OUTPUTS}", *(framework.infer(network, each) for each in batches))
    largest = max(batches, key=lambda inputs: len(inputs[0]))  # its sequences are the longest, too
    write = load(request["framework"], "export").WRITERS[request["suffix"]]
    try:
        path = folder / f"{MODEL}{request['suffix']}"
        write(ExportJob(network, largest, request["free_axes"], path, request["in_int8"]))
    except Exception as error:  # each exporter has types of its own, some around the reason
        reason: BaseException = error
        while reason.__cause__:
            reason = reason.__cause__
        text = PLACES.sub("", " ".join(str(reason).split()))
        print(f"{type(reason).__name__}: {text[:300]}", file=sys.stderr)
        return REFUSED
    return 0


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
