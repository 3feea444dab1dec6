"""S0 · Image captioning with a CNN and an LSTM: throughput, memory and training time of a decoder.

Source: PyTorch against TensorFlow for image captioning (Arizona State University, 2024), with its
published figures below.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.config.settings import (
    MAX_EPOCHS,
    MAX_ROWS,
    MAX_SIDE,
    MAX_STEPS,
    ModelSettings,
    setting,
)
from experiments.contract import Scaling, Study
from experiments.metrics import outcome


@dataclass(frozen=True)
class Settings(ModelSettings):
    """Settings of the captioning study."""

    data: str = setting(
        "scenes",
        "a folder in a known caption format, scenes (embedded) or synthetic (no pictures)",
        path=True,
        group="data",
    )
    images: int = setting(
        320, "pictures that scenes draws", minimum=20, maximum=100_000, group="data", advanced=True
    )
    split: str = setting(
        "own",
        "own: the data set's, if it has one; random: 85 % for training",
        choices=("own", "random"),
        group="data",
        advanced=True,
    )
    max_broken_images: float = setting(
        0.01,
        "share of pictures that may be unreadable; they are skipped and listed",
        minimum=0,
        maximum=1,
        group="data",
        searchable=False,
        advanced=True,
    )
    weights: str = setting(
        "auto",
        "of DenseNet-201: imagenet, random, a .safetensors or .pth file; "
        "auto: imagenet if it is available",
        path=True,
        group="data",
    )
    image_size: int = setting(
        224,
        "side of the square that pictures are resized to, pixels",
        minimum=32,
        maximum=MAX_SIDE,
        group="data",
    )
    formulation: str = setting(
        "prefix",
        "what is an example: every prefix, or the sequence once",
        choices=("prefix", "sequence"),
        group="training",
    )
    batch_size: int = setting(32, "captions a step", minimum=1, maximum=MAX_ROWS, group="training")
    epochs: int = setting(
        11, "passes over the training captions", minimum=1, maximum=MAX_EPOCHS, group="training"
    )
    training_seconds: float = setting(
        0.0,
        "epochs of a new campaign have fewer steps, for all frameworks alike, if the slowest would "
        "train longer; at least a quarter; 0: never",
        minimum=0,
        maximum=86_400,
        group="training",
        searchable=False,
    )
    warmup_steps: int = setting(
        10,
        "steps left out of the summaries (kept in values.parquet)",
        minimum=1,
        maximum=MAX_STEPS,
        group="training",
    )
    dropout: float = setting(
        0.5, "rate of both dropout layers", minimum=0, maximum=0.95, group="training"
    )
    vocabulary: int = setting(
        8_485,
        "words of synthetic captions",
        minimum=8,
        maximum=1_000_000,
        group="data",
        advanced=True,
    )
    length: int = setting(
        34,
        "longest synthetic caption, words",
        minimum=4,
        maximum=1_000,
        group="data",
        advanced=True,
    )
    validation_captions: int = setting(
        0,
        "captions in the validation loss; 0: all held out",
        minimum=0,
        maximum=MAX_STEPS,
        group="evaluation",
        advanced=True,
    )
    bleu_images: int = setting(
        0,
        "held-out pictures that are captioned for BLEU; 0: all",
        minimum=0,
        maximum=MAX_STEPS,
        group="evaluation",
        advanced=True,
    )
    beams: int = setting(
        3,
        "width of the beam search reported beside greedy decoding",
        minimum=1,
        maximum=64,
        group="evaluation",
        advanced=True,
    )
    inference_batch_sizes: tuple[int, ...] = setting(
        (1, 8), "pictures a captioning request", minimum=1, maximum=MAX_ROWS, group="inference"
    )
    inference_requests: int = setting(
        400,
        "timed requests a batch size; p95 needs 72, p99 368",
        minimum=2,
        maximum=MAX_STEPS,
        group="inference",
        advanced=True,
    )
    inference_words: int = setting(
        20,
        "words decoded a request, always all of them: equal work",
        minimum=1,
        maximum=1_000,
        group="inference",
        advanced=True,
    )


STUDY = Study(
    name="captioning",
    title="Image captioning: DenseNet-201 features, merge LSTM decoder",
    workload="captioning",
    settings=Settings,
    models=lambda _: ("caption_decoder",),
    scaling=Scaling("training_captions"),
    demo_on_gpu={"phase_seconds": 2.0},
    presets={
        "demo": {
            "weights": "random",
            "image_size": 64,
            # A caption is one example, which takes a tenth of the time.
            "formulation": "sequence",
            "epochs": 8,
            # A verdict in two minutes, on a slow CPU too.
            "images": 160,
            "steps_per_epoch": 20,
            "training_seconds": 3.0,
            "learning_rate": 0.003,
            "dropout": 0.2,
            "bleu_images": 16,
            "validation_captions": 64,
            "inference_requests": 120,
            # Small or busy machines vary by threads that wait, freed memory, and neighbours.
            "threads": 1,
            "malloc": "keep",
            "pairing": "interleaved",
        },
        "flickr8k-paper": {"data": "", "split": "random", "vocabulary": 8_485, "length": 34},
        "flickr30k-paper": {"data": "", "split": "random", "vocabulary": 18_313, "length": 74},
        "coco-paper": {"data": "", "split": "random", "vocabulary": 26_443, "length": 49},
    },
    outcomes=(
        outcome("train/examples_per_second"),
        outcome("train/images_per_second"),
        outcome("train/step_seconds"),
        outcome("train/first_step_seconds"),
        outcome("train/total_seconds"),
        outcome("memory/peak_rss_bytes"),
        outcome("memory/peak_device_bytes"),
        outcome("memory/peak_device_with_warmup_bytes"),
        outcome("energy/joules_per_example"),
        outcome("inference/latency_seconds_p50"),
        outcome("inference/latency_seconds_p95"),
        outcome("inference/latency_seconds_p99"),
        outcome("inference/batch_8/latency_seconds_p50"),
        outcome("val/loss"),
        outcome("val/bleu1"),
        outcome("val/bleu2"),
        outcome("val/bleu3"),
        outcome("val/bleu4"),
    ),
    primary=("train/examples_per_second", "inference/latency_seconds_p50", "val/bleu4"),
    published=(
        {
            "what": "training throughput, Flickr8k, A100",
            "published": "at most 23 images/s, TensorFlow slightly ahead",
            "metric": "train/images_per_second",
        },
        {
            "what": "peak memory",
            "published": "PyTorch slightly lower",
            "metric": "memory/peak_rss_bytes",
        },
        {
            "what": "all differences",
            "published": "“no significant difference” (no test given)",
            "metric": "",
        },
        {
            "what": "feature extraction, Flickr8k, A100",
            "published": "13 images/s, about 10 min",
            "metric": "features/images_per_second",
        },
        {
            "what": "feature extraction, Flickr8k, T4",
            "published": "9 images/s, about 14 min",
            "metric": "features/images_per_second",
        },
        {
            "what": "feature extraction, Flickr30k, A100",
            "published": "12 images/s, about 41 min",
            "metric": "features/images_per_second",
        },
        {
            "what": "feature extraction, COCO, A100",
            "published": "10 images/s, about 240 min",
            "metric": "features/images_per_second",
        },
    ),
    source="Arizona State University, 2024 (TensorFlow 2.15, PyTorch 2.2.1)",
)
