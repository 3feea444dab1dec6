"""Differences between families of networks of Hugging Face and their counterparts in KerasHub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Rates of dropout, which are 0: dropout places of the two libraries have no common names.
DROPOUTS = (
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "classifier_dropout",
    "classifier_dropout_prob",
    "drop_path_rate",
    "dropout",
    "embd_pdrop",
    "hidden_dropout_prob",
    "qa_dropout",
    "resid_pdrop",
    "seq_classif_dropout",
    "summary_first_dropout",
)
# Sizes of the small version, of those that a configuration has.
SMALL_VALUES: dict[str, Any] = {
    "depths": [2, 2],
    "dim": 32,
    "embed_dim": 16,
    "embedding_size": 16,
    "head_dim": 16,
    "hidden_dim": 48,
    "hidden_size": 32,
    "image_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "n_embd": 32,
    "n_head": 2,
    "n_heads": 2,
    "n_layer": 2,
    "n_layers": 2,
    "n_positions": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "patch_size": 4,
    "vocab_size": 61,
    "window_size": 4,
}
# Lists with an entry for each layer, and names of tokens, which a small vocabulary lacks.
LAYER_LISTS, TOKEN_SUFFIX = ("layer_types", "no_rope_layers", "mlp_layer_types"), "_token_id"
# Names of corrections that are no arguments.
GELU, PATHS, MOMENTUM = "activation", "paths of variables", "momentum of running statistics"
NO_ARGUMENTS = {GELU, PATHS, MOMENTUM}
# Beginnings of timm's names whose running statistics have another momentum in KerasHub.
WITHOUT_MOMENTUM = ("efficientnet",)
# Values that a configuration derives from its sizes.
DERIVED = ("out_features", "out_indices", "stage_names")
DERIVED_BY_WIDTH = (*DERIVED, "hidden_size")


@dataclass(frozen=True)
class Family:
    """Family of networks, by `model_type` of its configurations.

    feature: what a classifier is put on: of the `first` token, the `mean` of all, or `pooled` by
    the network itself. saved_as: class of transformers in whose checkpoints KerasHub's converter
    finds the names. configuration: values that leave out what nothing reads. options: arguments of
    KerasHub's network that its converter ignores, by the key of the configuration. exact_gelu:
    whether KerasHub has the approximation where the configuration says `gelu`. equal_paths:
    whether variables of several layers have one path. first_position: of a sequence's first token;
    the configuration counts those before it, too.
    """

    feature: str = "first"
    saved_as: str = "AutoModel"
    configuration: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    exact_gelu: bool = False
    equal_paths: bool = False
    first_position: int = 0


FAMILIES = {
    "albert": Family("pooled", "AutoModelForPreTraining"),
    "bert": Family("pooled", options={"dropout": "hidden_dropout_prob"}, exact_gelu=True),
    "dinov2": Family(configuration={"use_mask_token": False}),
    "distilbert": Family(saved_as="AutoModelForMaskedLM"),
    "llama": Family(options={"layer_norm_epsilon": "rms_norm_eps"}),
    "qwen2": Family(options={"layer_norm_epsilon": "rms_norm_eps"}),
    "roberta": Family(saved_as="AutoModelForMaskedLM", first_position=2),
    "smollm3": Family(options={"layer_norm_epsilon": "rms_norm_eps"}, equal_paths=True),
    "swin": Family("mean"),
    "vit": Family(
        saved_as="AutoModelForImageClassification",
        options={"layer_norm_epsilon": "layer_norm_eps"},
    ),
}


def of(model_type: str) -> Family:
    return FAMILIES.get(model_type, Family())
