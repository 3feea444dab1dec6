"""Definition of a model, typed: the only place that looks up the functions of its `spec.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from operator import methodcaller
from types import ModuleType
from typing import Any

import numpy as np

from models.contract import Array, Batch, ErrorCode, ModelError, Weights
from models.layers import images
from models.layers.images import ImageSpec, Shapes


def _missing(*_: Any, **__: Any) -> Any:
    raise ModelError(ErrorCode.MISSING_VALUE, "the model's spec.py does not state this")


@dataclass(frozen=True)
class ModelDefinition:
    """Sizes, shapes, initial weights and batches of a model.

    Spec: its sizes. shapes: of its weights, by PyTorch's names. probe: a small version, or the
    whole with `full`, and a batch for the parity gate. SIZES, lengths, batch: by the name of a
    size, specs and random inputs of sequences. LENGTHS_AT: place of their lengths among the inputs,
    or of tokens that end where they are 0. checkpoint_name: our name of an array in a
    published file; None for an array that is not used.
    """

    Spec: type[Any]
    probe: Callable[..., tuple[Any, Batch]]
    shapes: Callable[[Any], dict[str, tuple[int, ...]]]
    initial_weights: Callable[[Any, np.random.Generator], Weights]
    SIZES: Mapping[str, Any] = field(default_factory=dict)
    lengths: Callable[[str, int, np.random.Generator], Array] = _missing
    batch: Callable[[Any, Array, np.random.Generator], Batch] = _missing
    LENGTHS_AT: int | None = None
    checkpoint_name: Callable[[str], str | None] = str

    @classmethod
    def from_module(cls, module: ModuleType) -> ModelDefinition:
        """Return the definition in a module; image models share all but their sizes.

        Raise ModelError for a missing function.
        """
        members: dict[str, Any] = dict(vars(module))
        spec = members.get("Spec")
        if isinstance(spec, type) and issubclass(spec, ImageSpec):
            shared = {"probe": partial(images.probe, spec), "shapes": methodcaller("shapes")}
            members = {**shared, "initial_weights": images.initial_weights, **members}
        required = [
            field.name for field in fields(cls) if field.default is field.default_factory is MISSING
        ]
        if missing := [name for name in required if name not in members]:
            raise ModelError(
                ErrorCode.MISSING_VALUE,
                f"{module.__file__}: there is no {missing[0]}; a spec.py has {', '.join(required)}",
            )
        names = [field.name for field in fields(cls) if field.name in members]
        return cls(**{name: members[name] for name in names})

    def parameters(self, spec: Any) -> tuple[int, int]:
        """Count the parameters of a network of these sizes.

        Returns:
            (trainable, non-trainable).
        """
        shapes = self.shapes(spec)
        return (shapes if isinstance(shapes, Shapes) else Shapes(shapes)).parameters

    def sized(self, size: str, **options: str) -> Any:
        """Return the sizes of this name.

        Args:
            size: Name in `SIZES`.
            options: Fields of several networks; those that this one lacks are ignored.
        """
        spec = self.SIZES[size]
        return replace(spec, **{name: options[name] for name in options.keys() & vars(spec)})

    def inference_batches(
        self, spec: Any, rng: np.random.Generator, extent: int = 0, times: int = 2
    ) -> list[tuple[Array, ...]]:
        """Return inputs of batches: two sizes, of sequences also two lengths, in turns.

        Args:
            spec: Sizes of the network.
            rng: Draws the inputs.
            extent: Height and width of images, in pixels, or length of the longest sequence; 0 for
                those of the parity gate.
            times: Batches of each size.
        """
        if self.takes_images:
            side = extent or spec.only_side or spec.probe_side
            return [images.batch(spec, side, rng, rows).inputs for rows in (1, 3) * times]
        longest = extent or 16
        sizes = ((1, max(1, longest // 2)), (3, longest))
        lengths = [np.full(rows, length) for rows, length in sizes]
        return [self.batch(spec, each, rng).inputs for each in lengths * times]

    @property
    def takes_images(self) -> bool:
        return issubclass(self.Spec, ImageSpec)
