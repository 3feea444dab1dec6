"""Campaigns of networks of other libraries by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cell import timing
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


# A checkpoint of the library's own, made without this project.
CHECKPOINT = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.manual_seed(3)
folder = sys.argv[1]
network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
with torch.no_grad():
    for tensor in network.parameters():
        tensor.mul_(4)
network.save_pretrained(folder)
"""
# The most likely token again and again, each from the library's pass over all tokens before it.
ONE_BY_ONE = """
import hashlib, sys
from pathlib import Path
import numpy as np
import torch
from transformers import AutoModelForCausalLM
import models
from models import named

folder, cache, rows, length, count = sys.argv[1:3] + list(map(int, sys.argv[3:]))
module = models.spec(named.add(f"hf:{folder}", Path(cache)))
lengths = np.full(rows, length)
prompts, _ = module.batch(module.sized("paper"), lengths, np.random.default_rng(0)).inputs
network, tokens = AutoModelForCausalLM.from_pretrained(folder).eval(), torch.from_numpy(prompts)
with torch.no_grad():
    for _ in range(count):
        chosen = network(tokens.long(), use_cache=False).logits[:, -1].argmax(-1)
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
answer = tokens[:, -count:].numpy().astype(np.int32)
assert len(set(answer.ravel().tolist())) > 2, answer
print(hashlib.sha256(answer.tobytes()).hexdigest()[:8])
"""


def test_language_model_trains_and_answers_in_two_frameworks(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    run_python("-c", CHECKPOINT, str(folder))
    options = {"models": f"hf:{folder}", "lengths": "12", "batch_sizes": "2", "seconds": "0.05"}
    options |= {"preset": "smoke", "size": "paper", "new_tokens": "5"}
    options |= {"weights": "pretrained", "seed": "0"}
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
    numbers = options["batch_sizes"], options["lengths"], options["new_tokens"]
    answers = run_python("-c", ONE_BY_ONE, str(folder), str(place.cache), *numbers).stdout.split()
    assert [run.data.tags["tokens.digest"] for run in cells] == [answers[-1]] * 2
    for metrics in (run.data.metrics for run in cells):
        names = ("latency_seconds_p50", "first_token_seconds", "seconds_per_token")
        answer, first, token = (metrics.get(f"inference/{name}") for name in names)
        if token is None:  # noise is longer than four tokens
            assert answer <= first
        else:
            assert answer == pytest.approx(first + 4 * token)
        assert metrics["check/inference_requests"] >= 13
    refused = place.call(
        *small_campaigns.command(place, "transformers", **options, kv_cache="false")
    )
    assert refused.returncode == 2
    assert "kv_cache" in refused.stderr


def test_time_per_token_is_that_of_the_tokens_after_the_first() -> None:
    first, whole, noise = (
        timing.PhaseValues("", (9.0, *seconds), (1,) * 4, 1)
        for seconds in ((1.0, 1.1, 1.2), (5.1, 5.0, 5.2), (0.9, 1.0, 1.0))
    )
    metrics = timing.summarise_generation(whole, first, 5)
    assert metrics["inference/first_token_seconds"] == pytest.approx(1.1)
    assert metrics["inference/seconds_per_token"] == pytest.approx(1.0)
    assert timing.summarise_generation(noise, first, 5).keys() == {"inference/first_token_seconds"}


def test_levels_that_answer_other_tokens_are_named() -> None:
    levels = {"a": "11, 22", "b": "22, 11", "part": "11", "other": "11, 33"}
    facts = {level: {"tokens.digest": text} for level, text in levels.items()}
    (warning,) = runs.answer_warnings({**facts, "classifier": {}})
    assert warning.code == WarningCode.ANSWERS_DIFFER
    assert "other against a" in warning.text
    assert runs.answer_warnings({"classifier": {}}) == []
