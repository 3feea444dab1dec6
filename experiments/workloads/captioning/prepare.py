"""Index of the data set, extractions that are still to be made, and warnings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from experiments.contract import STEP_SECONDS, DatasetInfo, Job, Prepared, Progress, Workload
from experiments.datasets import captions, synthetic
from experiments.datasets.captions import CaptionData
from experiments.studies.captioning import Settings
from experiments.workloads import steps
from experiments.workloads.captioning import features
from tracking import plain
from tracking.errors import ErrorCode, UsageError


def prepare(settings: Settings, progress: Progress) -> Prepared:
    """Index the data and plan the extraction.

    Raises:
        UsageError: For data, weights or a cache that cannot be used.
    """
    cache = Path(settings.cache).resolve()
    data = _data(settings, cache, progress)
    steps.check(settings, len(data.captions_of("train")), "training captions", data.name)
    vocabulary = json.dumps(data.vocabulary.entries, ensure_ascii=False)
    broken = json.dumps({"images": dict(data.broken), "rows": data.dropped}, indent=1)
    files = {"vocabulary.json": vocabulary, "broken_images.json": broken}
    inputs = {"index": str(data.folder), "start": data.vocabulary.start, "end": data.vocabulary.end}
    if settings.data == "synthetic":
        warning = "synthetic features and captions: times are real, losses and BLEU mean nothing"
        return Prepared(
            _info(data, settings),
            {**inputs, "features": str(data.folder / features.ARRAY)},
            warnings=(warning,),
            tags={"features": "synthetic"},
            files=files,
        )

    (weights, digest), warnings = features.resolve(settings.weights, settings.seed), []
    if weights == "random":
        why = " because no ImageNet checkpoint is available" * (settings.weights == "auto")
        warnings.append(
            f"DenseNet-201 has random weights{why}: compare speed and memory, not caption quality"
        )
    if data.broken:
        warnings.append(
            f"{len(data.broken)} pictures cannot be read and are left out (broken_images.json)"
        )
    folders = {
        name: features.folder_of(cache, data, digest, settings.image_size, name)
        for name in settings.frameworks
    }
    inputs |= {"weights": weights, "image_size": settings.image_size}
    baseline = folders[settings.frameworks[0]]
    return Prepared(
        _info(data, settings),
        {**inputs, "features": str(baseline / features.ARRAY)},
        before=tuple(
            Job("extract", name, {**inputs, "features": str(folder)})
            for name, folder in folders.items()
            if not (folder / "complete").exists()
        ),
        warnings=tuple(warnings),
        tags={"weights": weights, "features": baseline.name},
        files=files,
        left_out=tuple(
            plain.line(f"{data.source}/{path}: {reason}") for path, reason in data.broken
        ),
    )


def after_extraction(settings: Settings, prepared: Prepared) -> tuple[str, ...]:
    """Return a warning about pictures that broke while they were read.

    Raises:
        UsageError: If they are too many.
    """
    broken = features.read_progress(Path(prepared.inputs["features"]).parent)[1]
    if settings.data == "synthetic" or not broken:
        return ()
    data = CaptionData.open(Path(prepared.inputs["index"]))
    if len(broken) > settings.max_broken_images * len(data.images):
        image, reason = next(iter(broken.items()))
        raise UsageError(
            ErrorCode.UNREADABLE,
            f"{len(broken)} of {len(data.images)} pictures in {data.source} cannot be read, "
            f"the first {data.images[image]}: {reason}; "
            "repair them or allow more with max_broken_images",
        )
    return (
        f"{len(broken)} pictures broke while they were read and were left out (broken_images.json)",
    )


def _data(settings: Settings, cache: Path, progress: Progress) -> CaptionData:
    if not settings.data:
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"preset={settings.preset} needs its data: data=FOLDER, "
            "or data=synthetic to time only its decoder",
        )
    if settings.data == "synthetic":
        training_captions = (settings.steps_per_epoch or 200) * settings.batch_size
        needed = int(training_captions / captions.TRAINING_SHARE)
        total = max(64, needed + settings.batch_size)
        return synthetic.synthetic(
            vocabulary=settings.vocabulary,
            length=settings.length,
            captions=total,
            images=min(1_024, total // 2),
            seed=settings.seed,
            cache=cache,
        )
    return captions.index(
        settings.data,
        cache=cache,
        seed=settings.seed,
        images=settings.images,
        own_split=settings.split == "own",
        max_broken=settings.max_broken_images,
        progress=progress,
    )


def _info(data: CaptionData, settings: Settings) -> DatasetInfo:
    counts = {
        "images": len(data.images),
        "captions": len(data.caption_image),
        "training_captions": len(data.captions_of("train")),
        "vocabulary": data.vocabulary.size,
        "longest_caption_words": data.length,
        "broken_images": len(data.broken),
    }
    columns = {"image": "string", "caption": "string"}
    source = data.format if settings.data in ("scenes", "synthetic") else data.source
    return DatasetInfo(data.name, data.digest, source, counts, columns)


def shortened(
    settings: Settings, prepared: Prepared, findings: Sequence[Mapping[str, str]]
) -> Settings:
    """Return the settings with as many steps as the slowest framework trains in `training_seconds`.

    If even the fewest take longer, these. Synthetic data are as many as the steps need: their
    number stays.

    Args:
        settings: Settings of a campaign.
        prepared: Its data.
        findings: Of the checks of all frameworks; without a time of a step nothing changes.
    """
    seconds = [float(of[STEP_SECONDS]) for of in findings if STEP_SECONDS in of]
    if settings.data == "synthetic" or not seconds:
        return settings
    examples = prepared.dataset.counts["training_captions"]
    most = settings.steps_per_epoch or examples // settings.batch_size
    affordable = settings.training_seconds / max(seconds) / settings.epochs
    shorter = settings
    for steps_per_epoch in steps.choices(most):
        candidate = replace(settings, steps_per_epoch=steps_per_epoch)
        with suppress(UsageError):
            steps.check(candidate, examples, "examples", "the data")
            shorter = candidate
        if steps_per_epoch <= affordable:
            break
    return shorter


def measured_in_a_row(settings: Settings, prepared: Prepared) -> int:
    return steps.measured_in_a_row(settings, prepared.dataset.counts["training_captions"])


WORKLOAD = Workload(
    prepare=prepare,
    shortened=shortened,
    measured_in_a_row=measured_in_a_row,
    after_extraction=after_extraction,
)
