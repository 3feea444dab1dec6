"""In the parent, before any cell: the data set's index, the features still to be extracted, and the warnings."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.contract import DatasetInfo, Job, Prepared, Progress, Workload
from experiments.datasets import captions, synthetic
from experiments.datasets.captions import CaptionData
from experiments.studies.captioning import Settings
from experiments.workloads import steps
from experiments.workloads.captioning import features
from experiments.workloads.captioning.features import Source
from models import frameworks
from tracking import plain
from tracking.errors import WrongCall


def prepare(settings: Settings, progress: Progress) -> Prepared:
    """Indexes the data and plans the extraction. Raises WrongCall for data, weights or a cache that cannot serve."""
    _check_autolog(settings)
    cache = Path(settings.cache).resolve()
    data = _data(settings, cache, progress)
    steps.check(settings, len(data.captions_of("train")), "training captions", data.name)
    common = {"index": str(data.folder), "start": data.vocabulary.start, "end": data.vocabulary.end}
    if settings.data == "synthetic":
        warning = "synthetic features and captions: times are real, losses and BLEU mean nothing"
        inputs = {**common, "features": str(data.folder / "features.npy")}
        return Prepared(
            _info(data),
            inputs,
            warnings=(warning,),
            tags={"features": "synthetic"},
            files=_files(data),
        )

    source, warnings = _weights(settings)
    entries = {
        name: features.entry(cache, data, source, settings.image_size, name)
        for name in settings.frameworks
    }
    shared = {"weights": source.text, "image_size": settings.image_size}
    jobs = tuple(
        Job("extract", name, {**common, **shared, "features": str(entry.folder)})
        for name, entry in entries.items()
        if not entry.complete
    )
    baseline = entries[settings.frameworks[0]]
    if data.broken:
        warnings = (
            *warnings,
            f"{len(data.broken)} pictures cannot be read and are left out (broken_images.json)",
        )
    return Prepared(
        _info(data),
        {**common, **shared, "features": str(baseline.array)},
        before=jobs,
        warnings=warnings,
        tags={"weights": source.text, "features": baseline.key},
        files=_files(data),
        left_out=tuple(
            plain.line(f"{data.source}/{path}: {reason}") for path, reason in data.broken
        ),
    )


def after_extraction(settings: Settings, prepared: Prepared) -> tuple[str, ...]:
    """Warnings about pictures that broke while they were read. Raises WrongCall if they are too many."""
    if settings.data == "synthetic":
        return ()
    data = CaptionData.open(Path(prepared.inputs["index"]))
    broken = features.broken(Path(prepared.inputs["features"]).parent)
    if broken and len(broken) > settings.max_broken_images * len(data.images):
        image, reason = next(iter(broken.items()))
        raise WrongCall(
            f"{len(broken)} of {len(data.images)} pictures in {data.source} cannot be read, "
            f"the first {data.images[image]}: {reason}; mend them or allow more with max_broken_images"
        )
    return (
        (
            f"{len(broken)} pictures broke while they were read and were left out (broken_images.json)",
        )
        if broken
        else ()
    )


def _data(settings: Settings, cache: Path, progress: Progress) -> CaptionData:
    if not settings.data:
        raise WrongCall(
            f"preset={settings.preset} needs its data: data=FOLDER, or data=synthetic to time its decoder alone"
        )
    if settings.data == "synthetic":
        captions_needed = int(
            (settings.steps_per_epoch or 200) * settings.batch_size / captions.TRAINING_SHARE
        )
        total = max(64, captions_needed + settings.batch_size)
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


def _weights(settings: Settings) -> tuple[Source, tuple[str, ...]]:
    source = features.resolve(settings.weights, settings.seed)
    if source.text != "random":
        return source, ()
    why = "" if settings.weights == "random" else " because no ImageNet checkpoint can be had here"
    return source, (
        f"DenseNet-201 has RANDOM weights{why}: compare speed and memory, do not read caption quality from this",
    )


def _check_autolog(settings: Settings) -> None:
    have = frameworks.having(lambda one: one.fits)
    plain = [name for name in settings.frameworks if name not in have]
    if settings.autolog == "mlflow" and plain:
        raise WrongCall(
            f"autolog=mlflow records a framework's own fit, nothing of {plain[0]}; choose {', '.join(have)} or leave it out"
        )


def _info(data: CaptionData) -> DatasetInfo:
    counts = {
        "images": len(data.images),
        "captions": len(data.caption_image),
        "training_captions": len(data.captions_of("train")),
        "vocabulary": data.vocabulary.size,
        "longest_caption_words": data.length,
        "broken_images": len(data.broken),
    }
    return DatasetInfo(
        data.name, data.digest, data.source, counts, {"image": "string", "caption": "string"}
    )


def _files(data: CaptionData) -> dict[str, str]:
    left_out = {"images": dict(data.broken), "rows": data.dropped}
    vocabulary = (data.folder / "vocabulary.json").read_text(encoding="utf-8")
    return {"vocabulary.json": vocabulary, "broken_images.json": json.dumps(left_out, indent=1)}


WORKLOAD = Workload(prepare=prepare, after_extraction=after_extraction)
