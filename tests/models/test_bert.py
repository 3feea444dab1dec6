"""BERT: checkpoints of Hugging Face, and its outputs against transformers."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from models import weights
from models.bert import spec as bert
from models.contract import Array, ErrorCode, ModelError
from tests.models.children import run_in

SMALL = bert.Spec(
    vocabulary=11, width=8, layers=1, heads=2, intermediate=6, positions=5, classes=None
)


def published(path: Path, **changed: Array | None) -> str:
    """Write a file as Hugging Face publishes BERT, with old names and arrays of pre-training."""
    drawn = bert.initial_weights(SMALL, np.random.default_rng(0))
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    results: dict[str, Array] = {}
    for name, array in drawn.items():
        last_two = ".".join(name.split(".")[-2:])
        results[f"bert.{name.removesuffix(last_two)}{old.get(last_two, last_two)}"] = array
    results["bert.embeddings.position_ids"] = np.arange(5)[None]
    results["cls.predictions.bias"] = np.zeros(11, np.float32)
    results["cls.seq_relationship.weight"] = np.zeros((2, 8), np.float32)
    results |= {name: array for name, array in changed.items() if array is not None}
    weights.write_safetensors(
        {name: array for name, array in results.items() if changed.get(name, array) is not None},
        path,
    )
    return str(path)


def test_published_file_is_loaded_by_name(tmp_path: Path) -> None:
    loaded = weights.load(published(tmp_path / "model.safetensors"), "bert", SMALL)
    assert weights.digest(loaded) == weights.digest(
        bert.initial_weights(SMALL, np.random.default_rng(0))
    )
    tuned = {
        "classifier.weight": np.ones((2, 8), np.float32),
        "classifier.bias": np.zeros(2, np.float32),
    }
    with_head = weights.load(
        published(tmp_path / "tuned.safetensors", **tuned), "bert", replace(SMALL, classes=2)
    )
    np.testing.assert_array_equal(with_head["classifier.weight"], tuned["classifier.weight"])


KEY, EXTRA = "encoder.layer.0.attention.self.key.bias", "encoder.layer.1.output.dense.bias"
POOLED = "pooler.dense.weight"


@pytest.mark.parametrize(
    ("changed", "code", "array"),
    [
        ({f"bert.{KEY}": None}, ErrorCode.NOT_EQUAL, KEY),
        ({f"bert.{EXTRA}": np.zeros(8)}, ErrorCode.NOT_EQUAL, EXTRA),
        ({"classifier.bias": np.zeros(2)}, ErrorCode.NOT_EQUAL, "classifier.bias"),
        ({f"bert.{POOLED}": np.zeros((8, 9))}, ErrorCode.NOT_EQUAL, f"{POOLED}' has shape (8, 9)"),
        ({KEY: np.ones(8)}, ErrorCode.DUPLICATE, KEY),
    ],
)
def test_file_that_does_not_fit_is_refused_in_one_line(
    changed: dict[str, Array | None], code: ErrorCode, array: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=re.escape(array)) as refused:
        weights.load(published(tmp_path / "model.safetensors", **changed), "bert", SMALL)
    assert refused.value.code is code
    assert "\n" not in str(refused.value)


REFERENCE = """
import sys
import numpy as np
import torch
from transformers import BertConfig, BertModel
from models.bert import spec as bert
from models.bert.pytorch import build
from dataclasses import replace

torch.set_default_dtype(torch.float64)
spec, batch = bert.probe(np.random.default_rng(0))
spec = replace(spec, classes=None)
sizes = {"vocab_size": spec.vocabulary, "hidden_size": spec.width, "num_hidden_layers": spec.layers}
sizes |= {"num_attention_heads": spec.heads, "intermediate_size": spec.intermediate}
sizes |= {"max_position_embeddings": spec.positions}
ours, theirs = build(spec).eval(), BertModel(BertConfig(**sizes)).eval()
generator = torch.Generator().manual_seed(0)
for parameter in ours.parameters():
    parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
left = theirs.load_state_dict(ours.state_dict(), strict=True)
tokens, lengths, types = map(torch.from_numpy, batch.inputs)
mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
expected = theirs(tokens, attention_mask=mask, token_type_ids=types).pooler_output
torch.testing.assert_close(ours(tokens, lengths, types), expected, rtol=1e-12, atol=1e-13)
with torch.device("meta"):
    whole = BertModel(BertConfig()).state_dict()
shapes = {name: tuple(tensor.shape) for name, tensor in whole.items()}
assert shapes == bert.shapes(bert.Spec(classes=None))
"""


@pytest.mark.skipif(
    find_spec("transformers") is None,
    reason="transformers is not installed: pip install -e '.[named]'",
)
def test_outputs_equal_those_of_transformers() -> None:
    """The same names, and the same pooled vectors, in float64."""
    run_in("pytorch", "-c", REFERENCE)
