"""Training of the decoder on pooled features, and BLEU of its captions by sacrebleu."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell.checkpoint import TrainingState
from experiments.cell.measure import mean_loss, measure
from experiments.contract import CellSpec, Output
from experiments.datasets import caption_batches
from experiments.datasets.captions import CaptionData
from experiments.studies.captioning import Settings
from experiments.workloads import logged_model
from experiments.workloads.captioning import features, samples
from models.caption_decoder.decoding import decode
from models.caption_decoder.spec import CaptionDecoderSpec, batch, initial_weights, shapes
from models.contract import Array, Batch, Framework, Weights

DECODE_IMAGES = 64


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    measure(Captioning(spec), spec, framework, output)


class Captioning:
    """Training of the decoder, whose weights, orders and requests depend only on seed and block.

    drawn: Whether constant features take the place of the extracted ones.
    """

    model = "caption_decoder"

    def __init__(self, spec: CellSpec[Settings], *, drawn: bool = False) -> None:
        self._cell, self._settings = spec, spec.settings
        self._data = data = CaptionData.open(Path(spec.inputs["index"]))
        path = Path(spec.inputs["features"])
        self._broken = {} if drawn else features.read_progress(path.parent)[1]
        constant = np.broadcast_to(np.float32(0.5), (len(data.images), features.SIZE))
        self._features = constant if drawn else np.load(path, mmap_mode="r")
        self.spec = CaptionDecoderSpec(
            data.vocabulary.size, data.length, dropout=self._settings.dropout
        )
        self.parameters = shapes(self.spec).parameters
        self.answer_length = self._settings.inference_words
        self.examples_a_step = self._settings.batch_size
        self._training = data.captions_of("train", self._broken)
        self.steps_per_epoch = self._settings.steps_per_epoch or (
            len(self._training) // self.examples_a_step
        )
        self._answers: dict[str, list[str]] = {}

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._settings.seed, self._cell.block, purpose])

    def initial_weights(self) -> Weights:
        return initial_weights(self.spec, self._rng(0))

    def training(self, epoch: int, framework: Framework) -> Iterator[Batch]:  # noqa: ARG002
        order = self._rng(1 + epoch).permutation(self._training)
        return self._batches(order, self.steps_per_epoch)

    def validation(self) -> Iterator[Batch]:
        limit = self._settings.validation_captions
        steps = max(1, limit // self.examples_a_step) if limit else None
        captions = self._data.captions_of("validation", self._broken)
        return self._batches(captions, steps, drop_last=False)

    def _batches(
        self, captions: Array, steps: int | None, *, drop_last: bool = True
    ) -> Iterator[Batch]:
        return caption_batches.epoch(
            self._data,
            self._features,
            captions,
            batch_size=self.examples_a_step,
            formulation=self._settings.formulation,
            steps=steps,
            drop_last=drop_last,
        )

    def learning_rate(self, epoch: int) -> float | None:  # noqa: ARG002
        return None

    def validate(self, framework: Framework, network: Any) -> dict[str, float]:
        return {"val/loss": mean_loss(framework, network, self.validation())}

    def request(self, batch_size: int, index: int) -> tuple[Array, ...]:
        rows = (np.arange(batch_size) + index * batch_size) % len(self._features)
        return (np.ascontiguousarray(self._features[rows]),)

    def answer(self, framework: Framework, network: Any, request: tuple[Any, ...]) -> Array:
        return self._decode(framework, network, request[0], 1, self._settings.inference_words)

    def derived(
        self,
        metrics: Mapping[str, float],
        state: TrainingState,  # noqa: ARG002
    ) -> dict[str, float]:
        """Return pictures a second: captions a second over captions a picture."""
        if "train/examples_per_second" not in metrics:
            return {}
        each = len(self._training) / len(np.unique(self._data.caption_image[self._training]))
        return {"train/images_per_second": metrics["train/examples_per_second"] / each}

    def quality(self, framework: Framework, network: Any) -> dict[str, float]:
        """Return BLEU-1…4 (0–100) on held-out pictures, by greedy decoding and by beam search."""
        from sacrebleu.metrics import BLEU

        images = self._captioned_images()[: self._settings.bleu_images or None]
        references = [self._data.references(int(image)) for image in images]
        transposed = [
            [captions[i] if i < len(captions) else None for captions in references]
            for i in range(max(map(len, references)))
        ]
        metrics = {}
        for suffix, beams in {"": 1, "_beam": self._settings.beams}.items():
            answers = self._captions(framework, network, images, beams)
            for n in range(1, 5):
                bleu = BLEU(max_ngram_order=n, tokenize="none", force=True)
                score = bleu.corpus_score(answers, transposed).score
                metrics[f"val/bleu{n}{suffix}"] = score
            self._answers["beam" if suffix else "greedy"] = answers
        return metrics

    def save_artifacts(self, framework: Framework, network: Any, output: Output) -> None:
        """Save captions with their pictures, and the decoder for MLflow."""
        self._data.vocabulary.save(self._cell.path / "vocabulary.json")
        output.artifact("vocabulary.json")
        if self._settings.data == "synthetic":
            return
        images = self._captioned_images()
        if len(images):
            title = f"{framework.name}, block {self._cell.block}"
            samples.write(self._cell.path, self._data, images, self._answers, title)
            output.artifact("captions.html")
        weights = self._cell.inputs.get("weights") or "random"
        logged_model.save(
            self._cell,
            framework,
            network,
            batch(self.spec, np.full(2, self.spec.length), np.random.default_rng(0)).inputs,
            output,
            title="captioning",
            description=dataclasses.asdict(self.spec),
            text=f"Decoder of captions, trained in {framework.name} in block {self._cell.block}. "
            f"It takes features of DenseNet-201, weights {weights}.",
        )

    def _captioned_images(self) -> Array:
        """Return the held-out pictures that have a caption with a known word."""
        captions = self._data.captions_of("validation", self._broken)
        return np.unique(self._data.caption_image[captions])

    def _captions(self, framework: Framework, network: Any, images: Array, beams: int) -> list[str]:
        captions: list[str] = []
        for first in range(0, len(images), DECODE_IMAGES):
            rows = np.ascontiguousarray(self._features[images[first : first + DECODE_IMAGES]])
            ids = self._decode(framework, network, rows, beams, self.spec.length)
            captions += [self._data.vocabulary.decode(row) for row in ids]
        return captions

    def _decode(
        self, framework: Framework, network: Any, rows: Array, beams: int, words: int
    ) -> Array:
        start, end = self._cell.inputs["start"], self._cell.inputs["end"]
        return decode(framework, network, rows, start=start, end=end, words=words, beams=beams)
