"""Networks of timm, torchvision and Hugging Face as PyTorch's adapter wants them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.named import CAUSAL, IMAGE, families, read


def build_from(folder: Path, spec: Any) -> nn.Module:
    """Return the network that a model's folder defines."""
    return build(read(folder), folder / spec.size, spec)


def build(definition: Mapping[str, Any], folder: Path, spec: Any) -> nn.Module:
    """Return a network.

    Args:
        definition: Its library, name and kind.
        folder: Of a configuration of Hugging Face.
        spec: Its sizes.
    """
    wide = torch.get_default_dtype() == torch.float64
    with Widening() if wide else nullcontext():
        network = _make(definition, folder, spec)
    network.wide = wide
    return network


def _make(definition: Mapping[str, Any], folder: Path, spec: Any) -> nn.Module:
    library, name = definition["library"], definition["name"]
    if library == "timm":
        import timm

        return Images(timm.create_model(name, num_classes=spec.classes))
    if library == "torchvision":
        from torchvision.models import get_model

        return Images(get_model(name, num_classes=spec.classes))
    import transformers

    auto: Any = transformers
    config = auto.AutoConfig.from_pretrained(folder)
    if definition["kind"] == CAUSAL:
        body = auto.AutoModelForCausalLM.from_config(config, attn_implementation=spec.attention)
        return LanguageModel(body)
    family = families.of(config.model_type)
    options = {"attn_implementation": spec.attention}
    kind = auto.AutoModel._model_mapping[type(config)]
    if family.feature != "pooled" and "add_pooling_layer" in inspect.signature(kind).parameters:
        options["add_pooling_layer"] = False  # nothing would read it
    body = auto.AutoModel.from_config(config, **options)
    body.requires_grad_(getattr(spec, "trained", "all") == "all")
    is_image = definition["kind"] == IMAGE
    return Classifier(body, family.feature, spec.classes, is_image=is_image)


class Named(nn.Module):  # type: ignore[misc]
    """Network around one of a library. wide: whether it computes in float64 whatever it says."""

    wide = False

    def forward(self, *inputs: Tensor) -> Tensor:
        if not self.wide:
            return self.compute(*inputs)
        with Widening():
            return self.compute(*inputs)


class Images(Named):
    """forward(images (n, height, width, channels)) -> logits (n, classes)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def compute(self, images: Tensor) -> Tensor:
        return self.body(images.permute(0, 3, 1, 2))


class Classifier(Named):
    """Linear classifier on a network of Hugging Face.

    forward(images (n, height, width, channels)), or (tokens (n, length), lengths (n,)) -> (n,
    classes).
    """

    def __init__(self, body: nn.Module, feature: str, classes: int, *, is_image: bool) -> None:
        super().__init__()
        self.body, self.feature, self.is_image = body, feature, is_image
        config = body.config
        width = getattr(config, "hidden_size", None) or getattr(config, "dim", 0)
        self.classifier = nn.Linear(width, classes)

    def compute(self, inputs: Tensor, *lengths: Tensor) -> Tensor:
        if self.is_image:
            outputs = self.body(pixel_values=inputs.permute(0, 3, 1, 2))
        else:
            positions = torch.arange(inputs.shape[1], device=inputs.device)
            mask = (positions < lengths[0][:, None]).long()
            outputs = self.body(input_ids=inputs, attention_mask=mask)
        if self.feature == "pooled":
            features = outputs.pooler_output
        elif self.feature == "mean":
            features = outputs.last_hidden_state.mean(dim=1)
        else:
            features = outputs.last_hidden_state[:, 0]
        return self.classifier(features)


class LanguageModel(Named):
    """forward(tokens (n, length), lengths (n,)) -> logits (n · length, vocabulary).

    Padding is behind the tokens, which do not see what follows them: no mask is needed.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def compute(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.body(input_ids=tokens, use_cache=False).logits.flatten(0, 1)


def generate(
    network: LanguageModel,
    prompts: Tensor,
    lengths: Tensor,
    *,
    compiled: Callable[..., Any],
    new_tokens: int,
    cached: int,
) -> Tensor:
    """Return the tokens (n, new_tokens) behind prompts (n, length) without padding.

    cached: whether keys and values of earlier tokens are kept, or computed again for each token.
    """
    from transformers import GenerationConfig

    rule = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, use_cache=bool(cached), pad_token_id=0
    )
    body = network.body
    body.forward = compiled(MethodType(type(body).forward, body))
    try:
        with Widening() if network.wide else nullcontext():
            mask = torch.ones_like(prompts)
            tokens = body.generate(prompts, attention_mask=mask, generation_config=rule)
    finally:
        del body.forward  # a training compiles the network as a whole
    return tokens[:, -new_tokens:]


class Widening(TorchFunctionMode):  # type: ignore[misc]
    """Make float64 of what a network converts to float32 on purpose: norms, angles, softmax."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is Tensor.float:
            return args[0].double()
        args = tuple(map(_widened, args))
        return function(*args, **{name: _widened(at) for name, at in (kwargs or {}).items()})


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
