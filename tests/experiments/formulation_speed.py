"""Child process: speed of `sequence` over `prefix`, steps in turn, at a published size."""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from experiments.datasets import caption_batches
from experiments.datasets.synthetic import synthetic
from models.caption_decoder.spec import CaptionDecoderSpec, initial_weights
from models.contract import OptimizerConfig
from models.frameworks import open_framework

CAPTIONS, ROUNDS, WARMUP = 32, 8, 2


def main(name: str, vocabulary: int, length: int, cache: str) -> None:
    framework = open_framework(name, device="cpu", threads=2, precision="float32", seed=0)
    data = synthetic(
        vocabulary=vocabulary, length=length, captions=640, images=64, seed=0, cache=Path(cache)
    )
    spec = CaptionDecoderSpec(vocabulary, length)
    network = framework.build("caption_decoder", spec)
    framework.load_weights(network, initial_weights(spec, np.random.default_rng(0)))
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
    batches = {
        kind: list(
            caption_batches.epoch(
                data,
                np.load(data.folder / "features.npy"),
                data.captions_of("train"),
                batch_size=CAPTIONS,
                formulation=kind,
                steps=ROUNDS + WARMUP,
            )
        )
        for kind in caption_batches.FORMULATIONS
    }
    seconds: dict[str, list[float]] = {"prefix": [], "sequence": []}
    for step in range(ROUNDS + WARMUP):
        for kind, values in seconds.items():
            began = time.perf_counter()
            float(framework.train_step(network, optimizer, batches[kind][step]))
            framework.synchronise()
            values.append(time.perf_counter() - began)
    prefix, sequence = (statistics.median(values[WARMUP:]) for values in seconds.values())
    print(f"{name}, {vocabulary} words, length {length}, {CAPTIONS} captions a step:", end=" ")
    print(f"prefix {prefix * 1e3:.0f} ms, sequence {sequence * 1e3:.0f} ms")
    print(f"RATIO={prefix / sequence:.2f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
