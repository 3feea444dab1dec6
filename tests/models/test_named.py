"""Networks of other libraries by name, and what the gate says of their counterparts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from models import named, own, parity, weights
from models.contract import Array, ErrorCode, ModelError
from models.named import cuts
from tests.models.children import run_python

BERT = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 90,
    "max_position_embeddings": 40,
}
EQUAL = (
    "hf:albert",
    "hf:bert",
    "hf:dinov2",
    "hf:distilbert",
    "hf:gpt2",
    "hf:llama",
    "hf:qwen2",
    "hf:smollm3",
    "hf:swin",
    "hf:vit",
    "timm:efficientnet_b0",
    "timm:resnet18",
    "timm:resnet50",
)
Loaded = list[cuts.Loaded]


@pytest.fixture(autouse=True)
def no_models_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own.FOLDERS, "")


def _write_configuration(folder: Path, **changes: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BERT | changes))
    return f"hf:{folder}"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _write_configuration(tmp_path_factory.mktemp("checkpoints") / "reader")


def _arrays() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {"linear": (4, 6), "query": (6, 6), "key": (6, 6), "joined": (12, 3), "bias": (6,)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def _convert(arrays: Mapping[str, Array]) -> Loaded:
    """Return what a converter makes of them: turned, reshaped, side by side, in two parts."""
    top, bottom = np.split(arrays["joined"], 2)
    variables = [
        ("dense/kernel", arrays["linear"].T),
        ("attention/kernel", np.concatenate([arrays["query"].T, arrays["key"].T], axis=1)),
        ("top", top.T.reshape(3, 2, 3)),
        ("constant", np.array([0.5, 0.25])),
        ("bottom", bottom.T.reshape(3, 2, 3)),
        ("bias", arrays["bias"]),
    ]
    return [cuts.Loaded(*variable, is_trained=True) for variable in variables]


def test_places_of_arrays_are_known_afterwards() -> None:
    places = cuts.find(_arrays(), _convert)
    assert places["linear"] == (((1, 0), 0, 1), [(0, [(0, 6), (0, 4)])])
    assert places["query"] == (((1, 0), 0, 1), [(1, [(0, 6), (0, 6)])])
    assert places["key"] == (((1, 0), 0, 1), [(1, [(0, 6), (6, 12)])])
    order, axis, parts = places["joined"][0]
    assert (order, axis, parts) == ((1, 0), 1, 2)
    assert [number for number, _ in places["joined"][1]] == [2, 4]


def _changed(variables: Loaded, path: str, change: Callable[[Array], Array]) -> Loaded:
    return [
        replace(each, values=change(each.values)) if each.path == path else each
        for each in variables
    ]


def _doubled(arrays: Mapping[str, Array]) -> Loaded:
    return _changed(_convert(arrays), "bias", lambda values: 2 * values)


def _one_value_wrong(arrays: Mapping[str, Array]) -> Loaded:
    def change(values: Array) -> Array:
        is_constant = values.min() == values.max()
        return values if is_constant else np.where(values == values.max(), 0, values)

    return _changed(_convert(arrays), "dense/kernel", change)


def _without_bias(arrays: Mapping[str, Array]) -> Loaded:
    return _convert(arrays)[:-1]


def _twice(arrays: Mapping[str, Array], *, is_trained: bool = True) -> Loaded:
    return [*_convert(arrays), cuts.Loaded("copy", arrays["bias"], is_trained)]


def test_copy_that_is_not_trained_is_left_to_the_gate() -> None:
    assert cuts.find(_arrays(), partial(_twice, is_trained=False)) == cuts.find(_arrays(), _convert)


@pytest.mark.parametrize(
    ("converter", "culprit"),
    [(_doubled, "bias"), (_one_value_wrong, "linear"), (_without_bias, "bias"), (_twice, "bias")],
)
def test_converter_that_does_not_only_move_is_refused(
    converter: Callable[[Mapping[str, Array]], Loaded], culprit: str
) -> None:
    with pytest.raises(ModelError, match=culprit) as refused:
        cuts.find(_arrays(), converter)
    assert refused.value.code == ErrorCode.UNSUPPORTED


def test_counterpart_is_equal_and_a_fault_in_it_is_not(source: str, cache: Path) -> None:
    name = named.add(source, cache)
    assert name == "hf_reader"
    sides = ["pytorch", "keras-torch", "tensorflow"]
    rows = parity.gate([parity.ParityRequest(name)], sides)
    assert {row.framework for row in rows} == {"keras-torch", "tensorflow"}
    assert [row for row in rows if not row.equal] == []
    assert {row.compared for row in rows if row.quantity == "gradient"} == {41}
    # the keys' array put where the queries' belongs, and the other way round
    file = named.cuts_file(own.folders()[name], named.SMALL)
    right = file.read_text()
    places, path = json.loads(right), "encoder.layer.0.attention.self"
    query, key = f"{path}.query.bias", f"{path}.key.bias"
    places[query], places[key] = places[key], places[query]
    file.write_text(json.dumps(places))
    try:
        rows = parity.gate([parity.ParityRequest(name)], sides[:2])
    finally:
        file.write_text(right)
    gradient = next(row for row in rows if row.quantity == "gradient")
    assert not gradient.equal
    assert gradient.tensor in {f"body.{query}", f"body.{key}"}


@pytest.mark.slow
@pytest.mark.parametrize("source", EQUAL)
def test_network_of_a_family_is_equal(source: str, cache: Path) -> None:
    """The table of docs/named-models.md, without JAX."""
    request = parity.ParityRequest(named.add(source, cache))
    rows = parity.gate([request], ["pytorch", "keras-torch", "tensorflow"])
    assert {row.quantity for row in rows} >= {"forward", "gradient", "step"}
    assert [row for row in rows if not row.equal] == []


def test_value_that_the_converter_ignores_is_refused(tmp_path: Path, cache: Path) -> None:
    """The network is frozen but for its classifier, whose gradients alone are compared."""
    name = named.add(_write_configuration(tmp_path / "other", layer_norm_eps=1e-5), cache)
    frozen = (("trained", "head"),)
    sides = [parity.Side(framework, frozen) for framework in ("pytorch", "keras-torch")]
    rows = {row.quantity: row for row in parity.gate([parity.ParityRequest(name)], sides)}
    assert rows["forward"].error > 1e-7 > rows["forward"].limit
    assert rows["count"].equal
    assert rows["gradient"].compared == 2
    module = models.spec(name)
    sizes = module.sized("tiny", trained="head", classes=2)
    assert module.parameters(sizes)[0] == 2 * (32 + 1)


def test_checkpoint_has_the_arrays_under_the_names_of_the_library(source: str, cache: Path) -> None:
    name = named.add(source, cache)
    module = models.spec(name)
    sizes = module.Spec(classes=3)
    ours = module.initial_weights(sizes, np.random.default_rng(0))
    theirs = {key.replace("body.", "bert."): array for key, array in ours.items()}
    theirs["cls.predictions.bias"] = np.zeros(90, np.float32)
    path = Path(named.checkpoint(name))
    weights.write_safetensors(theirs, path)
    loaded = weights.load(str(path), name, sizes)
    assert weights.digest(loaded) == weights.digest(ours)


def test_network_is_described_once(
    source: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = named.add(source, cache)
    monkeypatch.setattr(named, "_run", None)
    assert named.add(source, cache) == name


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("timm:resnet19", ErrorCode.UNSUPPORTED, "did you mean"),
        ("hf:./nowhere", ErrorCode.NOT_FOUND, "config.json"),
        ("hf:no organisation/no name", ErrorCode.UNSUPPORTED, "no organisation/no name"),
    ],
)
def test_unknown_network_is_refused_in_a_line(
    text: str, code: ErrorCode, part: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=part) as refused:
        named.add(text, tmp_path)
    assert refused.value.code == code
    assert "\n" not in str(refused.value)


def test_missing_library_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named, "versions_of", lambda _: {})
    with pytest.raises(ModelError, match="pip install") as refused:
        named.add("timm:resnet18", tmp_path)
    assert refused.value.code == ErrorCode.NOT_INSTALLED


def test_attention_of_the_proof_is_that_of_jax() -> None:
    script = """
import jax, numpy as np
from models.frameworks.keras.widening import _attention

rng = np.random.default_rng(0)
shapes = {"query": (2, 5, 4, 8), "key": (2, 7, 2, 8), "value": (2, 7, 2, 8)}
arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
mask, bias = rng.random((2, 1, 5, 7)) < 0.7, rng.standard_normal((1, 4, 5, 7), np.float32)
for options in ({}, {"mask": mask, "scale": 0.3}, {"bias": bias, "is_causal": True}, {"scale": 0}):
    expected = jax.nn.dot_product_attention(**arrays, **options)
    np.testing.assert_allclose(_attention(**arrays, **options), expected, atol=1e-6)
print("equal")
"""
    result = run_python("-c", script, KERAS_BACKEND="jax")
    assert result.stdout.split() == ["equal"], result.stderr
