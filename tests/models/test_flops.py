"""FLOPs of networks against counts by hand; peak and bandwidth of this machine."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import models
from models import own
from models.flops import Network
from models.layers import images
from tests.models.children import result_of, run_python


def counted(*networks: Network) -> list[dict[str, float]]:
    """Return the counts of the process that campaigns start."""
    text = json.dumps([asdict(network) for network in networks])
    output = run_python("-m", "models.flops", stdin=text).stdout
    counts: list[dict[str, float]] = json.loads(output)
    return counts


def of_images(model: str, side: int, rows: int = 2) -> Network:
    sizes = models.spec(model).Spec()
    batch = images.batch(sizes, side, np.random.default_rng(0), rows)
    return Network.computed(model, sizes, [batch])


def of_lengths(model: str, *lengths: int, size: str = "paper", answer_length: int = 0) -> Network:
    module, rng = models.spec(model), np.random.default_rng(0)
    sizes = module.SIZES[size]
    batch = module.batch(sizes, np.array(lengths), rng)
    return Network.computed(model, sizes, [batch], answer_length)


def test_counts_are_those_by_hand() -> None:
    resnet50, vgg16 = counted(of_images("resnet50", 224), of_images("vgg16", 224))
    # 4.089 and 15.47 billion multiplications with additions, as published
    assert resnet50["forward"] == pytest.approx(2 * 4.089e9, rel=1e-3)
    assert vgg16["forward"] == pytest.approx(2 * 15.47e9, rel=1e-3)


def test_sequences_are_counted_step_by_step() -> None:
    """Products of a caption: the picture, 35 steps of the LSTM, and 34 words of each layer."""
    spec = models.spec("caption_decoder").SIZES["paper"]
    width, hidden = spec.width, spec.hidden

    def caption(words: int) -> int:
        lstm = (words + 1) * 4 * width * (width + width)
        layers = words * (width * hidden + hidden * spec.vocabulary)
        return 2 * (spec.features * width + lstm + layers)

    def bert(tokens: int) -> int:
        spec = models.spec("bert").SIZES["paper"]
        block = 4 * spec.width**2 + 2 * spec.width * spec.intermediate + 2 * tokens * spec.width
        return 2 * (spec.layers * tokens * block + spec.width**2 + 2 * spec.width)

    full, ragged, sentence = counted(
        of_lengths("caption_decoder", 34, 34, answer_length=5),
        of_lengths("caption_decoder", 34, 10),
        of_lengths("bert", 128, 100),
    )
    assert full["forward"] == pytest.approx(caption(34), rel=1e-9)
    assert full["answer"] == pytest.approx(caption(5), rel=1e-9)
    assert full["padding_percent"] == pytest.approx(0, abs=1e-6)
    assert ragged["forward"] == pytest.approx((caption(34) + caption(10)) / 2, rel=1e-9)
    assert ragged["padding_percent"] == pytest.approx(
        100 * (1 - ragged["forward"] / caption(34)), abs=1e-3
    )
    assert sentence["forward"] == pytest.approx((bert(128) + bert(100)) / 2, rel=1e-9)
    assert (ragged["tokens"], sentence["tokens"]) == (22, 114)


def test_training_is_two_to_three_forward_passes_in_every_model() -> None:
    networks = []
    for model in models.available():
        module = models.spec(model)
        if module.takes_images:
            side = module.Spec().only_side or max(64, module.Spec().least_side)
            networks.append(of_images(model, side))
        else:
            networks.append(of_lengths(model, 14, 9, size="tiny"))
    counts = counted(*networks)
    for model, each in zip(models.available(), counts, strict=True):
        assert 2.5 <= each["training"] / each["forward"] <= 3.1, model


def test_own_network_is_counted_unless_it_reads_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(own.FOLDERS, "")
    example = Path(__file__).parent / "own" / "vision_transformer"
    reading = shutil.copytree(example, tmp_path / "reads_values")
    text = (reading / "pytorch.py").read_text()
    forward = re.search(r"def forward\(self, (\w+): Tensor\) -> Tensor:\n", text)
    assert forward is not None
    read = f"        assert {forward[1]}.sum().item() < 1e9\n"
    (reading / "pytorch.py").write_text(text[: forward.end()] + read + text[forward.end() :])
    names = [own.add(example), own.add(reading)]
    spec = models.spec(names[0]).Spec()
    block = 12 * spec.width**2 * spec.tokens + 2 * spec.tokens**2 * spec.width
    patches = (spec.tokens - 1) * 3 * spec.patch**2 * spec.width
    products = patches + spec.blocks * block + spec.width * spec.classes
    counted_one, refused = counted(*(of_images(name, spec.only_side) for name in names))
    assert counted_one["forward"] == pytest.approx(2 * products, rel=1e-9)
    assert "item()" in str(refused)


PEAK = """
import time
import numpy as np
import torch
from models import limits
from models.frameworks import open_framework

torch.manual_seed(0)
framework = open_framework(name, device="cpu", threads=1, precision="float32", seed=0)
network = torch.nn.Sequential(*[torch.nn.Linear(1_536, 1_536) for _ in range(6)]).eval()
inputs = torch.randn(256, 1_536)  # some 10 ms a product: a busy neighbour leaves such slots
peaks, seconds = [], []
with torch.inference_mode():
    for _ in range(5):
        peaks.append(limits.peak_flops(framework))
        for _ in range(20):
            began = time.perf_counter()
            network(inputs)
            seconds.append(time.perf_counter() - began)
result = [6 * 2 * 256 * 1_536**2 / min(seconds) / max(peaks), limits.bandwidth(framework, 1)]
"""


def test_large_products_reach_the_peak() -> None:
    share, bandwidth = result_of("pytorch", PEAK)
    assert 0.70 <= share <= 1.05
    assert 1e9 < bandwidth < 1e12
