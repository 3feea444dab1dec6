"""BERT: its size by hand, its numbers against plain NumPy, checkpoints of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf

from models import parity, weights
from models.bert import spec as bert
from models.contract import Array, Batch, ModelError
from models.testing import check_initial_weights, check_sizes, contract_run
from tests.models.children import run_python

EMBEDDINGS = (30_522 + 512 + 2) * 768 + 2 * 768
ATTENTION = 4 * (768 * 768 + 768) + 2 * 768
FEED_FORWARD = 768 * 3_072 + 3_072 + 3_072 * 768 + 768 + 2 * 768
POOLER, HEAD = 768 * 768 + 768, 2 * 768 + 2


def test_the_papers_size_and_initial_weights() -> None:
    encoder = EMBEDDINGS + 12 * (ATTENTION + FEED_FORWARD) + POOLER
    assert encoder == 109_482_240
    assert bert.shapes(bert.Spec(classes=None)).parameters == (encoder, 0)
    check_sizes("bert", (encoder + HEAD, 0))
    check_initial_weights("bert")
    drawn = bert.initial_weights(
        replace(bert.SIZES["tiny"], vocabulary=5_000), np.random.default_rng(0)
    )
    words = drawn["embeddings.word_embeddings.weight"]
    assert np.abs(words).max() <= 0.04
    assert words.std() == pytest.approx(
        0.02 * 0.8796, rel=0.01
    )  # a normal without what is beyond two deviations
    assert (drawn["encoder.layer.1.output.LayerNorm.weight"] == 1).all()
    assert (drawn["encoder.layer.1.output.LayerNorm.bias"] == 0).all()


class Plain:
    """Formulas of the paper, a row and a head at a time; `given` holds the inputs of dropouts."""

    def __init__(self, spec: bert.Spec, weights: Mapping[str, Array]) -> None:
        self.spec, self.weights, self.given = spec, weights, dict[str, list[Array]]()

    def logits(self, batch: Batch) -> Array:
        return np.array([self.row(*item) for item in zip(*batch.inputs, strict=True)])

    def row(self, tokens: Array, length: int, types: Array) -> Array:
        word, position, kind = (
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        x = np.array(
            [word[token] + position[at] + kind[types[at]] for at, token in enumerate(tokens)]
        )
        x = self.seen("embeddings.dropout", self.norm("embeddings.LayerNorm", x))
        for index in range(self.spec.layers):
            x = self.layer(f"encoder.layer.{index}", x, length)
        pooled = self.seen("dropout", np.tanh(self.linear("pooler.dense", x[0])))
        return self.linear("classifier", pooled)

    def layer(self, path: str, x: Array, length: int) -> Array:
        query, key, value = (
            self.linear(f"{path}.attention.self.{name}", x) for name in ("query", "key", "value")
        )
        size = self.spec.width // self.spec.heads
        mixed = []
        for head in range(self.spec.heads):
            mine = slice(head * size, (head + 1) * size)
            scores = np.exp(query[:, mine] @ key[:length, mine].T / sqrt(size))
            likely = np.zeros((len(x), len(x)))
            likely[:, :length] = scores / scores.sum(1, keepdims=True)
            mixed.append(self.seen(f"{path}.attention.self.dropout", likely) @ value[:, mine])
        x = self.end(f"{path}.attention.output", np.concatenate(mixed, 1), x)
        between = self.linear(f"{path}.intermediate.dense", x)
        return self.end(f"{path}.output", between * (1 + erf(between / sqrt(2))) / 2, x)

    def end(self, path: str, x: Array, before: Array) -> Array:
        return self.norm(
            f"{path}.LayerNorm",
            self.seen(f"{path}.dropout", self.linear(f"{path}.dense", x)) + before,
        )

    def linear(self, path: str, x: Array) -> Array:
        return x @ self.weights[f"{path}.weight"].T + self.weights[f"{path}.bias"]

    def norm(self, path: str, x: Array) -> Array:
        centred = x - x.mean(1, keepdims=True)
        whitened = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-12)
        return whitened * self.weights[f"{path}.weight"] + self.weights[f"{path}.bias"]

    def seen(self, path: str, x: Array) -> Array:
        self.given.setdefault(path, []).append(x)
        return x

    def loss(self, batch: Batch) -> float:
        logits = self.logits(batch)
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), batch.targets]
        return float((losses * batch.weights).sum() / batch.weights.sum())


@pytest.fixture(scope="module")
def probed() -> tuple[bert.Spec, Batch, dict[str, Array]]:
    """Return the inputs of the parity gate."""
    rng = np.random.default_rng(0)
    spec, batch = bert.probe(rng)
    return spec, batch, parity._perturbed(bert.initial_weights(spec, rng), rng)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_every_number_is_that_of_the_formulas(
    framework: str, probed: tuple[bert.Spec, Batch, dict[str, Array]]
) -> None:
    """Compare outputs, loss, slopes, and inputs and rate of each dropout."""
    spec, batch, values = probed
    results, plain = contract_run(framework, ("bert",)).parity("bert"), Plain(spec, values)
    np.testing.assert_allclose(results["forward/outputs"], plain.logits(batch), rtol=1e-12)
    for path, arrays in plain.given.items():
        np.testing.assert_allclose(
            results[f"place/{path}"],
            np.concatenate([item.ravel() for item in arrays]),
            rtol=1e-11,
            atol=1e-14,
        )
        np.testing.assert_allclose(results[f"mask/{path}"][:2], 1 / 0.9)
        dropped, drawn = results[f"dropout/{path}"]
        assert dropped / drawn == pytest.approx(
            0.1, abs=6 * sqrt(0.1 * 0.9 / drawn)
        )  # six deviations
    assert len([name for name in results if name.startswith("dropout/")]) == len(plain.given) == 8
    assert results["loss/mean"] == pytest.approx(plain.loss(batch), rel=1e-12)
    rng = np.random.default_rng(1)
    for name, array in values.items():
        direction = rng.standard_normal(array.shape)
        ends = [
            Plain(spec, values | {name: array + step * direction}).loss(batch)
            for step in (1e-5, -1e-5)
        ]
        slope = float((results[f"gradient/{name}"] * direction).sum())
        # Central differences: right to the square of the step, and to the loss's rounding over it.
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-8), name


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


def test_a_published_file_is_loaded_by_name(tmp_path: Path) -> None:
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


KEY = "encoder.layer.0.attention.self.key.bias"


@pytest.mark.parametrize(
    ("changed", "output"),
    [
        ({f"bert.{KEY}": None}, rf"not a bert of these sizes: weights: '{KEY}' is missing"),
        (
            {"bert.encoder.layer.1.output.dense.bias": np.zeros(8)},
            r"'encoder\.layer\.1\.output\.dense\.bias' is superfluous",
        ),
        ({"classifier.bias": np.zeros(2)}, r"'classifier\.bias' is superfluous"),
        (
            {"bert.pooler.dense.weight": np.zeros((8, 9))},
            r"'pooler\.dense\.weight' has shape \(8, 9\), the network wants \(8, 8\)",
        ),
        ({KEY: np.ones(8)}, rf"'(bert\.)?{KEY}' and '(bert\.)?{KEY}' are both '{KEY}'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(
    changed: dict[str, Array | None], output: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=output) as refused:
        weights.load(published(tmp_path / "model.safetensors", **changed), "bert", SMALL)
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
sizes |= {"num_attention_heads": spec.heads, "intermediate_size": spec.intermediate, "max_position_embeddings": spec.positions}
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
assert {name: tuple(tensor.shape) for name, tensor in whole.items()} == bert.shapes(bert.Spec(classes=None))
"""


@pytest.mark.skipif(
    find_spec("transformers") is None,
    reason="transformers is not installed: pip install -e '.[references]'",
)
def test_it_is_the_bert_of_transformers() -> None:
    """The same names, and the same pooled vectors, in float64."""
    run_python("-c", REFERENCE)
