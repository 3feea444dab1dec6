"""Campaigns of networks of other libraries by name."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.cli.codes import DONE, NO_VERDICT
from tests.conftest import Place
from tests.experiments import small_campaigns

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


def test_language_model_trains_in_two_frameworks(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    options = {"models": f"hf:{folder}", "lengths": "12", "batch_sizes": "2", "seconds": "0.05"}
    options |= {"preset": "smoke", "size": "paper"}
    options["frameworks"] = "pytorch,keras-torch"
    done = place.call(*small_campaigns.command(place, "transformers", phases="train", **options))
    assert done.returncode == DONE, done.stdout + done.stderr
    runs = small_campaigns.cells(place)
    losses = {run.data.metrics["train/loss"] for run in runs}
    assert len(runs) == 2
    assert max(losses) / min(losses) < 1 + 1e-4
    for run in runs:
        assert run.data.metrics["model/trainable_parameters"] == 20_000
    assert "layer_norm_epsilon=1e-05" in done.stdout
