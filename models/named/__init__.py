"""Networks of other libraries by name: `timm:NAME`, `torchvision:NAME`, `hf:NAME`, `hf:FOLDER`.

Such a network becomes a folder as of a model of one's own, in the cache: `definition.json` has what
a process that imports PyTorch and the library found, and its modules read it. Importing this
package imports no framework.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from models import own
from models.contract import Array, Batch, ErrorCode, ModelError, Weights
from models.layers.images import ImageSpec, Shapes, probe_batch
from models.sequences import is_inside, log_normal

# The distributions that decide what a library's name means.
LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
CONVERTER = "keras-hub"
FORMAT = 9  # of what is cached: a change of it makes definitions anew
DEFINITION, CONFIG, WEIGHTS = "definition.json", "config.json", "model.safetensors"
IMAGE, TEXT, CAUSAL = "image", "text", "causal"
FULL, SMALL = "paper", "tiny"  # names of sizes, as of every network of sequences
EXTRA = "-c constraints.txt -e '.[named]'"
# Tokens of random examples: the median, the fewest and the most, unless the network takes fewer.
LENGTHS = {FULL: (64, 8, 256), SMALL: (8, 2, 16)}
PROBE_LENGTHS = (9, 14, 5, 16, 1, 11)
_MODULES = {
    "spec": "from models import named\n\nglobals().update(named.members(FOLDER))",
    "pytorch": "from models.named.pytorch import build_from, generate\n\n"
    "def build(spec):\n    return build_from(FOLDER, spec)",
    "keras": "from models.named.keras import build_from, generate\n\n"
    "def build(spec):\n    return build_from(FOLDER, spec)",
}


def is_named(text: str) -> bool:
    return text.partition(":")[0] in LIBRARIES and ":" in text


def add(source: str, cache: Path) -> str:
    """Add the network as a model of one's own and return the model's name.

    Args:
        source: `timm:NAME`, `torchvision:NAME`, `hf:NAME` or `hf:FOLDER`.
        cache: Folder that gets the model's folder; what is there for these versions is used again.

    Raises:
        ModelError: The library is missing, or has no network of this name that can be measured.
    """
    library, _, name = source.partition(":")
    versions = versions_of(library)
    if LIBRARIES[library] not in versions:
        text = f"{source}: {LIBRARIES[library]} is not installed: pip install {EXTRA}"
        raise ModelError(ErrorCode.NOT_INSTALLED, text)
    folder = Path(name).expanduser()
    if library == "hf" and (folder.is_dir() or name.startswith((".", "~", os.sep))):
        if not (folder / CONFIG).is_file():
            text = f"{source}: there is no {CONFIG} in the folder; give a checkpoint's folder"
            raise ModelError(ErrorCode.NOT_FOUND, text)
        name, source = folder.resolve().name, f"hf:{folder.resolve()}"
        versions[CONFIG] = hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()
    key = hashlib.sha256(json.dumps([FORMAT, source, versions]).encode()).hexdigest()[:12]
    label = re.sub("[^a-z0-9]+", "_", f"{library}_{name}".lower()).strip("_")
    model = cache.expanduser().resolve() / "named" / key / label
    if not (model / DEFINITION).is_file():
        _describe(source, model)
    return own.add(model)


def versions_of(library: str) -> dict[str, str]:
    """Return the versions of a library and of its converter, as far as they are installed."""
    versions = dict[str, str]()
    for distribution in (LIBRARIES[library], CONVERTER):
        with suppress(metadata.PackageNotFoundError):
            versions[distribution] = metadata.version(distribution)
    return versions


def _describe(source: str, model: Path) -> None:
    """Write a model's folder, whole or not at all."""
    model.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=model.parent) as temporary:
        _run(source, "describe", source, temporary)
        digest = hashlib.sha256(Path(temporary, DEFINITION).read_bytes()).hexdigest()
        definition = read(Path(temporary))
        for name, text in _MODULES.items():
            if name == "keras" and definition["no_counterpart"]:
                continue
            lines = f'"""{source}, as {digest} describes it."""\n\nfrom pathlib import Path\n\n'
            body = text.replace("FOLDER", "Path(__file__).parent")
            Path(temporary, f"{name}.py").write_text(f"{lines}{body}\n")
        Path(temporary).chmod(0o755)
        try:
            os.rename(temporary, model)
        except OSError:
            if not (model / DEFINITION).is_file():  # else another process was faster
                raise
        Path(temporary).mkdir(exist_ok=True)


def read(folder: Path) -> dict[str, Any]:
    """Return the definition in a model's folder."""
    definition: dict[str, Any] = json.loads((folder / DEFINITION).read_text())
    return definition


@dataclass(frozen=True)
class Sizes:
    """Version of a network of sequences.

    Attributes:
        size: A name in the definition's shapes.
        classes: Of the classifier; a language model has none.
        attention: Implementation of attention in Hugging Face's networks.
        trained: What training changes: `all`, or the classifier (`head`) on a frozen network.
    """

    size: str = FULL
    classes: int = 2
    attention: str = "sdpa"
    trained: str = "all"


def members(folder: Path) -> dict[str, Any]:
    """Return what the `spec.py` in a model's folder states, by name."""
    definition = read(folder)
    if definition["kind"] == IMAGE:
        return _image_members(definition)

    def lengths(size: str, count: int, rng: np.random.Generator) -> Array:
        median, least, most = LENGTHS[size]
        most = min(most, definition["positions"][size] or most)
        drawn = log_normal(rng, count, min(median, most), 0.5, least, most)
        return np.round(drawn).astype(np.int64)

    def batch(spec: Sizes, lengths: Array, rng: np.random.Generator) -> Batch:
        inside = is_inside(lengths)
        vocabulary = definition["vocabulary"][spec.size]
        tokens = rng.integers(1, vocabulary, inside.shape, dtype=np.int32) * inside
        inputs = tokens.astype(np.int32), lengths.astype(np.int32)
        if definition["kind"] == CAUSAL:  # the target of each token is the next
            targets = np.pad(tokens, ((0, 0), (0, 1)))[:, 1:].astype(np.int32)
            has_next = np.pad(inside, ((0, 0), (0, 1)))[:, 1:]
            return Batch(inputs, targets.ravel(), has_next.ravel().astype(np.float32))
        classes = rng.integers(0, spec.classes, len(tokens), dtype=np.int32)
        return Batch(inputs, classes, np.ones(len(tokens), np.float32))

    def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Sizes, Batch]:
        spec = Sizes(FULL if full else SMALL)
        return spec, batch(spec, np.array(PROBE_LENGTHS), rng)

    return {
        "Spec": Sizes,
        "SIZES": {size: Sizes(size) for size in (FULL, SMALL)},
        "LENGTHS_AT": 1,
        "lengths": lengths,
        "batch": batch,
        "probe": probe,
        "shapes": lambda spec: _shapes(definition, spec.size, spec.classes, spec.trained),
        "initial_weights": lambda spec, rng: _draw(
            _shapes(definition, spec.size, spec.classes), rng, spec.size
        ),
        "checkpoint_name": lambda name: _checkpoint_name(definition, name),
    }


def _image_members(definition: Mapping[str, Any]) -> dict[str, Any]:
    @dataclass(frozen=True)
    class Spec(ImageSpec):
        """Sizes of the network. size: a name in the definition's shapes."""

        classes: int = definition["classes"]
        size: str = FULL
        attention: str = "sdpa"

        least_side = definition["least_side"]
        only_side = definition["only_side"]
        channels = definition["channels"]
        small = {"size": SMALL} if SMALL in definition["shapes"] else {}

        def shapes(self) -> Shapes:
            return _shapes(definition, self.size, self.classes)

    def probe(rng: np.random.Generator, *, full: bool = False) -> tuple[Spec, Batch]:
        spec = Spec() if full else Spec(**Spec.small)
        return spec, probe_batch(spec, definition["probe_side"][spec.size], rng)

    return {
        "Spec": Spec,
        "probe": probe,
        "initial_weights": lambda spec, rng: _draw(spec.shapes(), rng, spec.size),
        "checkpoint_name": lambda name: _checkpoint_name(definition, name),
    }


def _shapes(definition: Mapping[str, Any], size: str, classes: int, trained: str = "all") -> Shapes:
    shapes: dict[str, list[int | None]] = definition["shapes"][size]
    sized = Shapes(
        {name: tuple(each or classes for each in shape) for name, shape in shapes.items()}
    )
    if trained == "head":
        sized.frozen = "body."
    return sized


def _checkpoint_name(definition: Mapping[str, Any], name: str) -> str | None:
    """Return our name of an array in the library's own checkpoint; None for heads of others."""
    shapes = definition["shapes"][FULL]
    names = (prefix + name for prefix in ("", "body."))
    parts = name.split(".")
    shorter = ("body." + ".".join(parts[start:]) for start in range(1, len(parts)))
    return next((each for each in (*names, *shorter) if each in shapes), None)


def _draw(shapes: Shapes, rng: np.random.Generator, size: str) -> Weights:
    """Draw products N(0, 0.02²), convolutions by He's rule; scales are 1, biases 0.

    Of the small version they are wider: at widths of some ten, nonlinearities would not show.
    """
    weights: Weights = {}
    scale = 0.02 if size == FULL else 0.16
    for name, shape in shapes.items():
        if len(shape) == 4:
            values = rng.standard_normal(shape, np.float32) * np.float32(sqrt(2 / prod(shape[1:])))
        elif len(shape) > 1:
            values = rng.standard_normal(shape, np.float32) * np.float32(scale)
        else:
            values = np.full(shape, not name.endswith(("bias", ".running_mean")), np.float32)
        weights[name] = values
    return weights


def cuts_file(folder: Path, size: str) -> Path:
    """Return the file that says where KerasHub's network of a size has the arrays."""
    return folder / f"cuts-{size}.json"


def convert(model: str, size: str = FULL) -> None:
    """Find where KerasHub's network has the arrays, unless it is known.

    Args:
        model: Name of a model; nothing is done for one that is not another library's.
        size: Which version of it.

    Raises:
        ModelError: The converter fails, changes arrays or leaves some out.
    """
    folder = own.folders().get(model, Path())
    if (folder / DEFINITION).is_file() and not cuts_file(folder, size).is_file():
        _run(str(read(folder)["source"]), "conversion", str(folder), size)


def _run(source: str, module: str, *arguments: str) -> None:
    """Run a module of this package that imports PyTorch, and KerasHub on it."""
    result = subprocess.run(
        [sys.executable, "-m", f"{__name__}.{module}", *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu"},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        reason = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise ModelError(ErrorCode.UNSUPPORTED, f"{source}: {reason[-1]}")


def notes(models: Iterable[str]) -> tuple[str, ...]:
    """Return what is compared under the names of networks of other libraries, a line for each."""
    lines = []
    for model in models:
        definition = _definition(model)
        if not definition:
            continue
        versions = ", ".join(f"{name} {at}" for name, at in definition["versions"].items())
        corrected = ", ".join(
            f"{name}={value} ({reason})"
            for name, (value, reason) in definition["corrections"].items()
        )
        end = f"; corrected in KerasHub: {corrected}" if corrected else ""
        lines.append(f"{model} is {definition['source']} of {versions}, without dropout{end}")
    return tuple(lines)


def checkpoint(model: str) -> str:
    """Return the path of the weights beside a network's configuration, empty if it has none."""
    definition = _definition(model)
    return f"{definition['name']}/{WEIGHTS}" if "family" in definition else ""


def positions(model: str, size: str) -> int:
    """Return the most tokens that a network by name takes; 0 for no limit, or another network."""
    definition = _definition(model)
    return definition["positions"][size] or 0 if definition else 0


def has_head(model: str) -> bool:
    """Return whether a network by name has a classifier that can be trained alone."""
    return bool(_definition(model).get("kind") == TEXT)


def is_causal(model: str) -> bool:
    """Return whether a model predicts each token from those before it."""
    return bool(_definition(model).get("kind") == CAUSAL)


def _definition(model: str) -> dict[str, Any]:
    """Return the definition of a model; empty for one that is not another library's."""
    folder = own.folders().get(model, Path())
    return read(folder) if (folder / DEFINITION).is_file() else {}


def why_not(model: str, architecture: str) -> str:
    """Return why a network by name has no counterpart, or an empty text."""
    return str(_definition(model).get("no_counterpart", "")) if architecture == "keras" else ""
