"""Counterparts of networks of timm and Hugging Face in KerasHub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from math import prod
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from models.contract import Array
from models.frameworks import hidden
from models.frameworks.keras.widening import widen
from models.named import CAUSAL, IMAGE, cuts_file, families, read
from models.named.cuts import Cut, Place
from models.transfer import Arrays, Layout, layer_name, weight_rule


def build_from(folder: Path, spec: Any) -> keras.Model:
    """Return the counterpart of the network that a model's folder defines."""
    definition = read(folder)
    cuts = json.loads(cuts_file(folder, spec.size).read_text())
    body = Body(backbone(definition, folder / spec.size), definition, cuts, spec)
    head = definition["shapes"][spec.size].get(f"{_head(definition)}.weight", (0, 0))
    return Network(body, definition, spec.classes, head[1])


def _head(definition: Mapping[str, Any]) -> str:
    return f"body.{definition['head']}" if "head" in definition else "classifier"


def backbone(definition: Mapping[str, Any], folder: Path, *, load_weights: bool = False) -> Any:
    """Return KerasHub's network without a head.

    Args:
        definition: Of the network.
        folder: Of its configuration, or of its checkpoint.
        load_weights: Whether to load the checkpoint.
    """
    # KerasHub imports TensorFlow on every backend
    with hidden("tensorflow") if keras.config.backend() != "tensorflow" else nullcontext():
        import keras_hub
        from keras_hub.src.utils.keras_utils import gelu_approximate
    if keras.config.floatx() == "float64":
        widen()
    corrections = {name: value for name, (value, _) in definition["corrections"].items()}
    options = {name: corrections[name] for name in corrections.keys() - families.NO_ARGUMENTS}
    policy = keras.config.dtype_policy()
    network = keras_hub.models.Backbone.from_preset(
        str(folder), load_weights=load_weights, dtype=policy, **options
    )
    for layer in network._flatten_layers():
        if families.GELU in corrections and getattr(layer, "activation", 0) is gelu_approximate:
            layer.activation = keras.activations.gelu
        if families.MOMENTUM in corrections and isinstance(layer, layers.BatchNormalization):
            layer.momentum = corrections[families.MOMENTUM]
    if families.PATHS in corrections:
        for number, variable in enumerate(network.variables):
            variable._path = f"{variable.path}_{number}"
        if keras.config.backend() == "torch":
            for layer in (network, *network._flatten_layers()):
                layer._track_variables()
    return network


class Body(layers.Layer):  # type: ignore[misc]
    """KerasHub's network, whose arrays have the names of the library's."""

    def __init__(
        self, network: Any, definition: Mapping[str, Any], cuts: Mapping[str, Any], spec: Any
    ) -> None:
        super().__init__(name="body")
        self.network, self.cuts, self.kind = network, cuts, definition["kind"]
        shapes = definition["shapes"][spec.size]
        self.shapes = {name: tuple(shapes[f"body.{name}"]) for name in cuts}
        self.feature = definition.get("feature", "mean")
        self.built = True
        self.trainable = getattr(spec, "trained", "all") == "all"

    def call(self, inputs: Any, training: bool = False) -> Any:
        if self.kind == IMAGE:
            return self._features(self.network(inputs, training=training))
        tokens, lengths = inputs
        if self.kind == CAUSAL:
            mask = ops.ones_like(tokens)
        else:
            positions = ops.arange(ops.shape(tokens)[1], dtype="int32")
            mask = ops.cast(positions < lengths[:, None], "int32")
        arguments = {
            "token_ids": tokens,
            "padding_mask": mask,
            "segment_ids": ops.zeros_like(tokens),
        }
        arguments = {name: arguments[name] for name in self.network.input}
        outputs = self.network(arguments, training=training)
        if self.kind == CAUSAL:
            return self.network.token_embedding(outputs, reverse=True)
        return self._features(outputs)

    @property
    def weights(self) -> list[Any]:
        """Variables that hold arrays of the network, without constants."""
        numbers = {number for _, places in self.cuts.values() for number, _ in places}
        return [self.network.weights[number] for number in sorted(numbers)]

    def _features(self, outputs: Any) -> Any:
        if isinstance(outputs, dict):
            outputs = outputs["pooled_output" if self.feature == "pooled" else "sequence_output"]
        if len(outputs.shape) == 2:
            return outputs
        if self.feature == "first":
            return outputs[:, 0]
        return ops.mean(outputs, axis=tuple(range(1, len(outputs.shape) - 1)))


class Network(keras.Model):  # type: ignore[misc]
    """Network of the library; its inputs and outputs are those of its sibling in PyTorch."""

    def __init__(self, body: Body, definition: Mapping[str, Any], classes: int, width: int) -> None:
        super().__init__()
        self.body, self.head = body, None
        if definition["kind"] == CAUSAL:
            # a bound method: Keras would take an attribute for one more layer
            self.answer = _language_model(body.network).generate_step
        else:
            self.head = layers.Dense(classes, name=layer_name(_head(definition)))
            self.head.build((None, width))

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = self.body(inputs, training=training)
        if self.head is not None:
            return self.head(outputs)
        return ops.reshape(outputs, (-1, outputs.shape[-1]))


def _language_model(network: Any) -> Any:
    """Return KerasHub's language model around a network, which takes the likeliest token."""
    import keras_hub
    from keras_hub.src.utils.preset_utils import find_subclass

    kind = find_subclass(type(network).__name__, keras_hub.models.CausalLM, type(network))
    model = kind(backbone=network, preprocessor=None)
    model.sampler = keras_hub.samplers.GreedySampler()
    return model


def generate(network: Network, prompts: Any, lengths: Any, *, new_tokens: int, cached: int) -> Any:
    """Return the tokens (n, new_tokens) behind prompts (n, length) without padding.

    cached: as in PyTorch's twin; KerasHub keeps keys and values of earlier tokens always.
    """
    room = ((0, 0), (0, new_tokens))
    outputs = network.answer(
        {
            "token_ids": ops.pad(prompts, room),
            "padding_mask": ops.pad(ops.ones_like(prompts, dtype="bool"), room),
        }
    )
    return outputs["token_ids"][:, -new_tokens:]


@weight_rule(Body)
def _arrays(body: Body) -> Arrays:
    variables = body.network.weights
    for name, (cut, places) in body.cuts.items():
        held = tuple(variables[number] for number, _ in places)
        yield name, held, layout(body.shapes[name], cut, places)


def layout(shape: tuple[int, ...], cut: Cut, places: Sequence[Place]) -> Layout:
    """Return the layout of an array whose parts, its axes reordered, are reshaped in Keras."""
    order, axis, parts = cut
    part = [shape[at] for at in order]
    part[axis] //= parts
    back = np.argsort(order)
    regions = [tuple(slice(*ends) for ends in place) for _, place in places]

    def to_torch(*values: Array) -> Array:
        pieces = [value[region] for value, region in zip(values, regions, strict=True)]
        return np.concatenate([each.reshape(part) for each in pieces], axis).transpose(back)

    def to_keras(array: Array, *variables: Any) -> tuple[Array, ...]:
        pieces = np.split(array.transpose(order), parts, axis)
        changed = []
        for piece, region, variable in zip(pieces, regions, variables, strict=True):
            if piece.size == prod(variable.shape):
                changed.append(piece.reshape(variable.shape))
                continue
            values = np.array(ops.convert_to_numpy(variable))
            values[region] = piece.reshape(values[region].shape)
            changed.append(values)
        return tuple(changed)

    return Layout(to_torch, to_keras)
