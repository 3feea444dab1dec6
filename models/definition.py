"""What a model's `spec.py` states, typed: the only place that looks for its functions by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from types import ModuleType
from typing import Any

import numpy as np

from models.contract import Array, Batch, Reads, Weights
from models.errors import ModelError
from models.layers import images
from models.layers.images import ImageSpec, Shapes


def _not_stated(*_: Any, **__: Any) -> Any:
    raise ModelError("the model's spec.py does not state this")


@dataclass(frozen=True)
class ModelDefinition:
    """Sizes, shapes, initial weights and batches of a model.

    Spec: its sizes. shapes: of its weights, by PyTorch's names. probe: a small version, or the whole
    with `full`, and a batch for the parity gate.
    sized, lengths, batch: by the name of a size, random inputs of sequences; reads, batch_of: real
    ones. checkpoint_name: the name here of an array in a published file; None for what is not used.
    """

    Spec: type[Any]
    probe: Callable[..., tuple[Any, Batch]]
    shapes: Callable[[Any], dict[str, tuple[int, ...]]]
    initial_weights: Callable[[Any, np.random.Generator], Weights]
    sized: Callable[..., Any] = _not_stated
    lengths: Callable[[str, int, np.random.Generator], Array] = _not_stated
    batch: Callable[[Any, Array, np.random.Generator], Batch] = _not_stated
    reads: Callable[[Any], Reads] = _not_stated
    batch_of: Callable[..., Batch] = _not_stated
    checkpoint_name: Callable[[str], str | None] = str

    @classmethod
    def of(cls, module: ModuleType) -> ModelDefinition:
        """Return what a module states; of images, all but sizes and probe is shared.

        Raises ModelError for what is missing.
        """
        stated = vars(module)
        spec = stated.get("Spec")
        is_image = isinstance(spec, type) and issubclass(spec, ImageSpec)
        given = {**(vars(images) if is_image else {}), **stated}
        own = {"batch"} if is_image else set()  # `images.batch` takes other arguments
        names = [field.name for field in fields(cls) if field.name not in own]
        required = [field.name for field in fields(cls) if field.default is MISSING]
        if missing := [name for name in required if name not in given]:
            raise ModelError(
                f"{module.__file__}: there is no {missing[0]}; a spec.py has {', '.join(required)}"
            )
        return cls(**{name: given[name] for name in names if name in given})

    def parameters(self, spec: Any) -> tuple[int, int]:
        """Return the expected (trainable, others): running statistics are not trained."""
        return Shapes(self.shapes(spec)).parameters

    @property
    def takes_images(self) -> bool:
        return issubclass(self.Spec, ImageSpec)

    @property
    def has_random_inputs(self) -> bool:
        return self.takes_images or self.sized is not _not_stated

    @property
    def has_lengths(self) -> bool:
        """Whether its random inputs are sequences, whose lengths can vary."""
        return self.lengths is not _not_stated

    @property
    def reads_files(self) -> bool:
        """Whether it can train on sequences from files."""
        return self.reads is not _not_stated
