"""Wrong calls of every experiment: one line that names what is wrong, before anything is measured; exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import studies
from experiments.config.console import Display
from experiments.config.settings import parse
from experiments.run import preparation
from models.errors import ModelError
from tests.conftest import Place
from tracking.errors import UsageError

QUICK = {"threads": "1", "device": "cpu", "figures": "false"}
TINY = {"size": "tiny", "batch_size": "4", "steps": "9", "models": "deepspeech2"}
OF_STUDY = {
    "captioning": {
        "images": "40",
        "image_size": "32",
        "batch_size": "8",
        "epochs": "2",
        "steps_per_epoch": "4",
        "warmup_steps": "1",
        "data": "scenes",
    },
    "training_speed": TINY,
    "graph": {**TINY, "models": "bert"},
    "lstm": {**TINY, "models": "caption_decoder"},
    "conv_algorithm": {"size": "tiny", "models": "deepspeech2", "batch_sizes": "4", "steps": "3"},
    "overhead": {"models": "lenet", "frameworks": "pytorch"},
    "grid": {"models": "mobilenet_v2", "batch_sizes": "1,3", "image_sizes": "64"},
}
# Study -> what is given, and the part of the line that names the value and what would be right.
WRONG = {
    "captioning": [
        ({"data": "/nowhere/at/all"}, "no folder /nowhere/at/all"),
        (
            {"frameworks": "pytorch,tensorfloww"},
            "no framework 'tensorfloww'; did you mean tensorflow",
        ),
        ({"preset": "coco-paper", "data": ""}, "preset=coco-paper needs its data: data=FOLDER"),
        ({"preset": "huge"}, "no preset 'huge'; have demo"),
        ({"batchsize": "3"}, "no setting 'batchsize'; did you mean batch_size?"),
        ({"batch_size": "100000"}, "batch_size=100000 is more than the"),
        ({"steps_per_epoch": "100000"}, "steps_per_epoch=100000 is more than"),
        ({"warmup_steps": "8"}, "warmup_steps=8 leaves none of the 8 steps"),
        ({"timing": "free", "window_steps": "9"}, "window_steps=9: a window is longer than the"),
        ({"cache": "/proc/cache"}, "cannot write in /proc/cache"),
        ({"journal": "/proc/journal"}, "cannot write in /proc/journal"),
        ({"weights": "/no/such/file.pth"}, "/no/such/file.pth"),
        ({"weights": "/etc/hostname"}, "ending in .safetensors"),
    ],
    "classification": [
        ({"model": "resnet19"}, "model=resnet19: no such model of images; did you mean resnet18"),
        ({"model": "caption_decoder"}, "model=caption_decoder: it takes no images"),
        ({"model": "inception_v3"}, "image_size=32: inception_v3 needs images of at least 75"),
        ({"data": "/nowhere"}, "data=/nowhere: there is no such file or folder"),
        ({"preset": "original"}, "preset=original needs its data: data=FOLDER"),
        ({"augmentation": "crop+mirror"}, "a mirrored numeral of digits is none"),
        ({"momentum": "0.9"}, "momentum and weight decay are those of sgd"),
        ({"batch_size": "2000"}, "batch_size=2000 is more than the 1528"),
        ({"thresholds": "97"}, "thresholds=97.0 is too large; at most 1"),
        ({"aa": "true", "input": "memory,stream"}, "several groups of cells have no controls"),
    ],
    "grid": [
        ({"models": "lenet"}, "lenet takes only images of 28"),
        (
            {"models": "caption_decoder"},
            "models=caption_decoder: it takes no images; have densenet201",
        ),
        (
            {"image_sizes": "32", "batch_sizes": "8,1"},
            "batch_sizes=1: mobilenet_v2 cannot train on fewer than 2",
        ),
        ({"least_steps": "4"}, "least_steps=4 is too small; at least 12"),
        ({"phases": "training"}, "phases=training is not known; choose inference, train"),
        ({"memory_limit": "much"}, "memory_limit=much is not a size; write 2GiB, 500MB or none"),
    ],
    "overhead": [
        ({"harnesses": "bare"}, "harnesses: there is no 'bare'; have evenhand"),
        ({"frameworks": "tensorflow+xla"}, "frameworks=tensorflow+xla: it has no plain loop"),
        (
            {"models": "resnet18", "image_side": "32", "batch_sizes": "1"},
            "batch_sizes=1: resnet18 cannot train on fewer than 2",
        ),
        ({"models": "inception_v3"}, "image_side=40: inception_v3 needs images of at least 75"),
    ],
    "training_speed": [
        ({"models": "deepspeech3"}, "no model 'deepspeech3'"),
        (
            {"frameworks": "pytorch,keras-torch"},
            "ctc=sparse: keras-torch cannot use TensorFlow's losses; take ctc=scan",
        ),
        (
            {"models": "mobilenet_v2", "batch_size": "1"},
            "batch_size=1: mobilenet_v2 cannot train on fewer than 2",
        ),
        (
            {"models": "resnet50,bert", "data": "lines"},
            "resnet50 trains on random inputs alone; name others",
        ),
        (
            {"models": "bert", "data": "/nowhere/at/all"},
            "data=/nowhere/at/all: there is no such file or folder",
        ),
        (
            {"models": "bert", "data": "lines", "lengths": "varying"},
            "lines.txt, line 1: has 21 tokens",
        ),
        (
            {"models": "gnmt", "data": "lines"},
            "looked for a text file of sentence, tab, translation",
        ),
        ({"models": "bert", "data": "lines"}, "3 examples for bert; at least 4"),
    ],
    "conv_algorithm": [
        (
            {"algorithms": "profiled"},
            "algorithms=profiled: there is none on cpu; have plain, onednn",
        ),
        ({"data": "speech"}, "data=speech is not known; choose synthetic"),
        (
            {"models": "resnet18", "batch_sizes": "1"},
            "batch_size=1: resnet18 cannot train on fewer than 2",
        ),
        ({"models": "resnet18", "shapes": "varying"}, "shapes=varying: pictures are of one size"),
    ],
    "graph": [
        (
            {"frameworks": "pytorch,pytorch+compile"},
            "frameworks: tensorflow, whose optimizers are switched off",
        ),
        ({"without": "folding"}, "without=folding is not known; choose pruning"),
    ],
    "lstm": [
        ({"models": "resnet18"}, "models=resnet18: it has no LSTM; have deepspeech2, gnmt"),
        (
            {"implementations": "cudnn"},
            "implementations: there is no 'cudnn'; have block, block-v2, layer",
        ),
        (
            {"precision": "bfloat16"},
            "precision=bfloat16: TensorFlow's block and block-v2 take float32",
        ),
        ({"frameworks": "keras-torch"}, "frameworks=keras-torch: its LSTMs are not compared here"),
    ],
}


@pytest.mark.parametrize(
    ("study", "given", "part"),
    [(study, given, part) for study, calls in WRONG.items() for given, part in calls],
)
def test_one_line_names_what_is_wrong(
    study: str,
    given: dict[str, str],
    part: str,
    tmp_path: Path,
    shared_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines").mkdir()
    Path("lines/lines.txt").write_text("word " * 19 + "\nanother\nthird\n")
    module = studies.load(study)
    places = {"cache": str(shared_cache), "journal": str(tmp_path / "journal")}
    asked = {**QUICK, **OF_STUDY.get(study, {}), **places, **given}
    with pytest.raises((UsageError, ModelError)) as caught:
        preparation.prepare_data(study, parse(module.settings, module.presets, asked), Display())
    assert part in str(caught.value)
    assert str(caught.value).isprintable()
    assert not list((tmp_path / "journal").glob("*/*"))


@pytest.mark.parametrize(
    "given",
    [
        {"data": "/nowhere"},
        {"device": "cuda"},
        {"resume": "last"},
        {"preset": "huge"},
    ],
    ids=str,
)
def test_the_command_ends_with_code_2_and_measures_nothing(
    place: Place, given: dict[str, str]
) -> None:
    """The rest is held to the same by the command line's own tests: what raises these errors ends in this way."""
    if given.get("device") == "cuda" and Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    done = place.run(**given)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    assert not list(place.journal.glob("*/records.jsonl"))
