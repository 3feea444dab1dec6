"""Stage 2: the decoder, trained on the agreed features; held-out pictures captioned for sacrebleu's BLEU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell.checkpoint import TrainingState
from experiments.cell.measure import mean_loss, measure
from experiments.contract import CellSpec, Output
from experiments.datasets import caption_batches
from experiments.datasets.captions import CaptionData
from experiments.workloads import served
from experiments.workloads.captioning import captioner, features, samples
from models.caption_decoder.decoding import decode
from models.caption_decoder.spec import CaptionDecoderSpec, initial_weights, shapes
from models.contract import Array, Batch, Framework, Weights

DECODE_IMAGES = 64


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    measure(Captioning(spec), spec, framework, output)


class Captioning:
    """The decoder's training as a task. Weights, orders and requests depend on seed and block alone, never on the framework."""

    model = "caption_decoder"

    def __init__(self, spec: CellSpec) -> None:
        settings = spec.settings
        self._cell = spec
        self._settings = settings
        array = Path(spec.inputs["features"])
        self._data = data = CaptionData.open(Path(spec.inputs["index"]))
        self._broken = features.broken(array.parent)
        self._features = np.load(array, mmap_mode="r")
        self._start, self._end = spec.inputs["start"], spec.inputs["end"]
        self.spec = CaptionDecoderSpec(
            data.vocabulary.size, data.length, dropout=settings["dropout"]
        )
        self.parameters = shapes(self.spec).parameters
        self.examples_a_step = settings["batch_size"]
        self._training = data.captions_of("train", self._broken)
        self.steps_per_epoch = settings["steps_per_epoch"] or caption_batches.steps_per_epoch(
            len(self._training), settings["batch_size"]
        )
        self._answers: dict[str, list[str]] = {}

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._settings["seed"], self._cell.block, purpose])

    def initial_weights(self) -> Weights:
        return initial_weights(self.spec, self._rng(0))

    def training(self, epoch: int, framework: Framework) -> Iterator[Batch]:  # noqa: ARG002
        return caption_batches.epoch(
            self._data,
            self._features,
            split="train",
            batch_size=self._settings["batch_size"],
            formulation=self._settings["formulation"],
            order=self._rng(1 + epoch).permutation(self._training),
            steps=self.steps_per_epoch,
        )

    def validation(self) -> Iterator[Batch]:
        size = self._settings["batch_size"]
        limit = self._settings["validation_captions"]
        return caption_batches.epoch(
            self._data,
            self._features,
            split="validation",
            batch_size=size,
            formulation=self._settings["formulation"],
            order=self._data.captions_of("validation", self._broken),
            steps=max(1, limit // size) if limit else None,
            drop_last=False,
        )

    def learning_rate(self, epoch: int) -> float | None:  # noqa: ARG002
        """Constant learning rate."""
        return None

    def validate(self, framework: Framework, network: Any) -> dict[str, float]:
        return {"val/loss": mean_loss(framework, network, self.validation())}

    def request(self, batch_size: int, index: int) -> tuple[Array, ...]:
        rows = (np.arange(batch_size) + index * batch_size) % len(self._features)
        return (np.ascontiguousarray(self._features[rows]),)

    def answer(self, framework: Framework, network: Any, request: tuple[Any, ...]) -> Array:
        return self._decode(framework, network, request[0], 1, self._settings["inference_words"])

    def derived(self, metrics: Mapping[str, float], state: TrainingState) -> dict[str, float]:  # noqa: ARG002
        """Pictures a second: captions a second over captions a picture."""
        if "train/examples_per_second" not in metrics:
            return {}
        each = len(self._training) / len(np.unique(self._data.caption_image[self._training]))
        return {"train/images_per_second": metrics["train/examples_per_second"] / each}

    def quality(self, framework: Framework, network: Any) -> dict[str, float]:
        """BLEU-1…4 (0–100, sacrebleu) on held-out pictures: greedy under the plain names, beam search beside it."""
        from sacrebleu.metrics import BLEU

        images = self._captioned()[: self._settings["bleu_images"] or None]
        references = [self._data.references(int(image)) for image in images]
        most = max(map(len, references))
        transposed = [
            [captions[i] if i < len(captions) else None for captions in references]
            for i in range(most)
        ]
        metrics = {}
        for name, beams in {"": 1, "_beam": self._settings["beams"]}.items():
            answers = self._captions(framework, network, images, beams)
            for n in range(1, 5):
                score = (
                    BLEU(max_ngram_order=n, tokenize="none", force=True)
                    .corpus_score(answers, transposed)
                    .score
                )
                metrics[f"val/bleu{n}{name}"] = score
            self._answers["beam" if name else "greedy"] = answers
        return metrics

    def save_artifacts(self, framework: Framework, network: Any, output: Output) -> None:
        """Captions with their pictures, and the captioner as a model that loads elsewhere."""
        self._data.vocabulary.save(self._cell.path / "vocabulary.json")
        output.artifact("vocabulary.json")
        images = self._captioned()
        if self._settings["data"] == "synthetic":
            return
        if len(images):
            rows = samples.rows(self._data, images, self._answers)
            samples.write(self._cell.path, rows, f"{framework.name}, block {self._cell.block}")
            output.artifact("captions.html")
            output.artifact("captions.png")
        if served.is_kept(self._cell):
            record = captioner.save(self._cell, framework, network, self.spec, self._data)
            output.record(record)

    def _captioned(self) -> Array:
        """Held-out pictures that somebody has captioned with at least one known word."""
        captions = self._data.captions_of("validation", self._broken)
        return np.unique(self._data.caption_image[captions])

    def _captions(self, framework: Framework, network: Any, images: Array, beams: int) -> list[str]:
        found: list[str] = []
        for first in range(0, len(images), DECODE_IMAGES):
            chosen = images[first : first + DECODE_IMAGES]
            ids = self._decode(
                framework,
                network,
                np.ascontiguousarray(self._features[chosen]),
                beams,
                self.spec.length,
            )
            found += [self._data.vocabulary.decode(row) for row in ids]
        return found

    def _decode(
        self, framework: Framework, network: Any, rows: Array, beams: int, words: int
    ) -> Array:
        return decode(
            framework, network, rows, start=self._start, end=self._end, words=words, beams=beams
        )
