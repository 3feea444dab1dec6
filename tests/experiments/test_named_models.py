"""Campaigns of networks of other libraries by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli.codes import DONE, NO_VERDICT
from experiments.comparison.analyses import runs
from experiments.comparison.runs.warning import WarningCode
from tests.conftest import Place
from tests.experiments import small_campaigns
from tests.models.children import run_python

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 70,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


def test_network_of_one_framework_needs_no_counterpart(place: Place) -> None:
    options = {"models": "timm:test_byobnet", "image_sizes": "64", "batch_sizes": "2"}
    options |= {"seconds": "0.05", "phases": "inference", "preset": "smoke"}
    done = place.call(*small_campaigns.command(place, "grid", frameworks="pytorch", **options))
    assert done.returncode == NO_VERDICT, done.stdout + done.stderr
    (run,) = small_campaigns.cells(place)
    assert run.data.params["model"] == "timm_test_byobnet"
    refused = place.call(
        *small_campaigns.command(place, "grid", frameworks="pytorch,tensorflow", **options)
    )
    assert refused.returncode == 2
    assert "KerasHub has no converter" in refused.stderr


# The most likely token again and again, each from a pass over all tokens before it.
ONE_BY_ONE = """
import sys
import numpy as np
import models
from pathlib import Path
from models import named
from models.frameworks import open_framework

name = named.add(sys.argv[1], Path(sys.argv[2]))
framework = open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
module, rng = models.spec(name), np.random.default_rng(1)
sizes = module.Spec("tiny")
network = framework.build(name, sizes)
framework.load_weights(network, module.initial_weights(sizes, rng))
prompts, lengths = module.batch(sizes, np.full(3, 7), rng).inputs
tokens = prompts
for _ in range(6):
    rows, length = tokens.shape
    logits = framework.infer(network, (tokens, np.full(rows, length, np.int32)))
    chosen = logits.reshape(rows, length, -1)[:, -1].argmax(1).astype(np.int32)
    tokens = np.concatenate([tokens, chosen[:, None]], axis=1)
generate = models.load(name, "pytorch").generate
for cached in (0, 1):
    answer = framework.apply(generate, network, (prompts, lengths), new_tokens=6, cached=cached)
    assert answer.tolist() == tokens[:, -6:].tolist(), (cached, answer, tokens)
"""


def test_language_model_trains_and_answers_in_two_frameworks(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    options = {"models": f"hf:{folder}", "lengths": "12", "batch_sizes": "2", "seconds": "0.05"}
    options |= {"preset": "smoke", "size": "paper", "new_tokens": "5"}
    options["frameworks"] = "pytorch,keras-torch"
    done = place.call(*small_campaigns.command(place, "transformers", **options))
    assert done.returncode == DONE, done.stdout + done.stderr
    cells = small_campaigns.cells(place)
    losses = {run.data.metrics["train/loss"] for run in cells}
    assert len(cells) == 2
    assert max(losses) / min(losses) < 1 + 1e-4
    for run in cells:
        assert run.data.metrics["model/trainable_parameters"] == 20_000
    assert "layer_norm_epsilon=1e-05" in done.stdout
    assert len({run.data.tags["answers"] for run in cells}) == 1
    for metrics in (run.data.metrics for run in cells):
        answer, token = metrics["inference/latency_seconds_p50"], "inference/seconds_per_token"
        assert answer == pytest.approx(
            metrics["inference/first_token_seconds"] + 4 * metrics[token]
        )
        assert metrics["check/inference_requests"] >= 13
    run_python("-c", ONE_BY_ONE, options["models"], str(place.cache))
    refused = place.call(
        *small_campaigns.command(place, "transformers", **options, kv_cache="false")
    )
    assert refused.returncode == 2
    assert "kv_cache" in refused.stderr


def test_levels_that_answer_other_tokens_are_named() -> None:
    levels = {"a": "11, 22", "b": "22, 11", "part": "11", "other": "11, 33"}
    facts = {level: {"answers": text} for level, text in levels.items()}
    (warning,) = runs.answer_warnings({**facts, "classifier": {}})
    assert warning.code == WarningCode.ANSWERS_DIFFER
    assert "other against a" in warning.text
    assert runs.answer_warnings({"classifier": {}}) == []
