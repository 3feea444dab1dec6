"""`input=native`: pictures as the frameworks' pipelines read them, against Pillow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image, ImageOps

from experiments.datasets.labelled.data import Labelled, prepare
from experiments.studies import classification
from experiments.workloads.classification.prepare import prepare as prepare_study
from tests.conftest import ROOT, wait_for
from tests.models.children import run_in

RNG = np.random.default_rng(3)
# In levels of 0…255. Pillow rounds after each of the two passes of a resize, half a level each;
# TensorFlow never rounds, torchvision rounds as often as Pillow, by other coefficients. 0.01 is for
# float32.
RESIZED = {"pytorch": 2.01, "keras-torch": 2.01, "tensorflow": 1.01, "keras-tensorflow": 1.01}
EQUAL = 0.01
GREY = 0.55  # Pillow rounds the grey value of each pixel; the frameworks' weights add up to 0.9999
SIDE, EXIF_ORIENTATION = 24, 0x0112


def scene(width: int, height: int) -> Image.Image:
    """Return colours that change smoothly, with an edge: no two sides look alike."""
    across, down = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 2, height))
    waves = np.stack([np.sin(across + down), np.cos(2 * across - down), np.sin(down * across)], -1)
    pixels = 127.5 + 90 * waves + 30 * (across > 2)[..., None]
    pixels += RNG.normal(0, 4, (height, width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def plain(folder: Path) -> None:
    """Write pictures that the frameworks decode: JPEG and PNG of 8 bits."""
    scene(SIDE, SIDE).save(folder / "exact.png")
    scene(SIDE, SIDE).save(folder / "exact.jpg", quality=80)
    scene(97, 61).save(folder / "large.jpg", quality=90)
    scene(61, 97).save(folder / "large.png")
    scene(9, 13).save(folder / "small.jpg", quality=95, subsampling=0)
    for ending in ("jpg", "png"):
        scene(50, 30).convert("L").save(folder / f"grey.{ending}")
    scene(60, 40).save(folder / "progressive.jpg", progressive=True)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        scene(40, 20).save(folder / f"turned{orientation}.jpg", exif=exif)


def odd(folder: Path) -> None:
    """Write pictures that some framework reads otherwise, or not at all."""
    names = {"cmyk.jpg": "CMYK", "palette.png": "P", "frame.gif": "RGB", "bitmap.bmp": "RGB"}
    for name, mode in names.items():
        scene(50, 30).convert(mode).save(folder / name)
    transparent = scene(50, 30).convert("RGBA")
    transparent.putalpha(Image.linear_gradient("L").resize((50, 30)))
    transparent.save(folder / "transparent.png")
    Image.fromarray(RNG.integers(0, 65_536, (30, 50), np.uint16)).save(folder / "sixteen.png")


def prepared(folder: Path, channels: int = 3) -> Labelled:
    for name, fill in (("odd", odd), ("plain", plain)):
        if not (folder / name).exists():
            (folder / name).mkdir(parents=True)
            fill(folder / name)
    options = {"side": SIDE, "channels": channels, "cache": folder.parent / "cache"}
    return prepare(str(folder), progress=lambda *_: None, **options)  # type: ignore[arg-type]


def read_with_pillow(path: Path, channels: int = 3) -> np.ndarray:
    upright = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    converted = upright.convert({1: "L", 3: "RGB"}[channels])
    resized = converted.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float64).reshape(SIDE, SIDE, channels)


READ = """
import json, sys
from pathlib import Path
import numpy as np
from experiments.datasets.labelled import batches
from experiments.datasets.labelled.data import Labelled
from models.contract import ModelError
from models.frameworks import lean_import, open_framework

with lean_import(sys.argv[1]):  # as a cell does
    framework = open_framework(sys.argv[1], device="cpu", threads=1, precision="float32", seed=0)
data, grey = (Labelled.open(Path(folder)) for folder in sys.argv[2:4])
rows = np.concatenate([data.training, data.validation])


def epoch(data, workers, *draw):
    files = batches.files(data, rows[::-1] if draw else rows, 3, *draw)
    return list(framework.read(files, workers))


def pixels(data, epoch):
    inputs = np.concatenate([np.asarray(batch.inputs[0]) for batch in epoch])
    return (inputs * data.deviation + data.mean) * 255


def nodes():
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    reader = next(iter(framework._readers.values()))
    dataset = reader.dataset(batches.files(data, rows, 3))._variant_tensor
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset, external_state_policy=1).numpy()
    graph = GraphDef.FromString(text)
    parts = (graph.node, *(function.node_def for function in graph.library.function))
    return sorted({node.op for part in parts for node in part})


def failure():
    try:
        epoch(data, 0)
    except ModelError as error:
        return str(error)
    return ""


shared_epoch = epoch(data, 2)
labels = np.concatenate([np.asarray(batch.targets) for batch in shared_epoch])
moved, again = (epoch(data, 2, "crop+mirror", np.random.default_rng(1)) for _ in range(2))
drawn = batches.files(data, rows[::-1], 3, "crop+mirror", np.random.default_rng(1))
shared = list(batches.read(data, drawn))
np.savez(sys.argv[4], rows=rows, labels=labels, plain=pixels(data, shared_epoch),
         grey=pixels(grey, epoch(grey, 0)), moved=pixels(data, moved), again=pixels(data, again),
         shared=pixels(data, shared))
result = {"nodes": nodes() if "tensorflow" in sys.argv[1] else []}
path = Path(data.files[rows[-1 - len(rows) % 3]].decode())  # of the last whole batch
content = path.read_bytes()
path.write_bytes(content[: len(content) // 2])
result["cut"] = failure()
path.unlink()
result["missing"] = failure()
print(json.dumps({**result, "path": str(path)}))
"""


@dataclass(frozen=True)
class Reading:
    """Pictures as a framework read them.

    Attributes:
        result: Of the script.
        arrays: Pixels in levels of 0…255, a row for each of `rows`.
        expected: Pixels by Pillow, of every row.
        files: File of every row.
    """

    framework: str
    result: dict[str, Any]
    arrays: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    files: list[Path]

    def is_plain(self, row: int) -> bool:
        return self.files[row].parent.name == "plain"


KERAS = [pytest.param(f"keras-{name}", marks=pytest.mark.slow) for name in ("torch", "tensorflow")]


@pytest.fixture(scope="module", params=["pytorch", "tensorflow", *KERAS])
def reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reading:
    folder = tmp_path_factory.mktemp("native")
    data, grey = (prepared(folder / "data", channels) for channels in (3, 1))
    files = [
        path for name in ("odd", "plain") for path in sorted((folder / "data" / name).iterdir())
    ]
    expected = {}
    for name, cached, channels in (("plain", data, 3), ("grey", grey, 1)):
        rows = [
            read_with_pillow(path, channels) if path.parent.name == "plain" else cached.images[row]
            for row, path in enumerate(files)
        ]
        expected[name] = np.stack(rows)
    arguments = (request.param, str(data.folder), str(grey.folder), str(folder / "pixels.npz"))
    result = json.loads(run_in(request.param, "-c", READ, *arguments).splitlines()[-1])
    arrays = dict(np.load(folder / "pixels.npz"))
    return Reading(request.param, result, arrays, expected, files)


def test_pictures_are_those_of_pillow(reading: Reading) -> None:
    """Compare each file; those that frameworks read otherwise come from the cache."""
    assert len(reading.files) == 22
    for number, row in enumerate(reading.arrays["rows"][:21]):  # whole batches of three
        is_plain, path = reading.is_plain(row), reading.files[row]
        is_resized = is_plain and not path.name.startswith("exact")
        bound = RESIZED[reading.framework] if is_resized else EQUAL
        error = np.abs(reading.arrays["plain"][number] - reading.expected["plain"][row]).max()
        assert error <= bound, path
        assert reading.arrays["labels"][number] == is_plain
        bound = RESIZED[reading.framework] + GREY if is_plain else EQUAL
        error = np.abs(reading.arrays["grey"][number] - reading.expected["grey"][row]).max()
        assert error <= bound, path


def test_crops_and_mirrors_are_those_of_shared_input_and_repeat(reading: Reading) -> None:
    np.testing.assert_array_equal(reading.arrays["moved"], reading.arrays["again"])
    error = np.abs(reading.arrays["moved"] - reading.arrays["shared"][:21]).max()
    assert error <= RESIZED[reading.framework]


def test_tensorflow_reads_pictures_without_python(reading: Reading) -> None:
    """Look for operations that call back into Python in the graph of the data set."""
    nodes = reading.result["nodes"]
    if "tensorflow" in reading.framework:
        operations = {"ReadFile", "DecodeJpeg", "ScaleAndTranslate", "ParallelMapDatasetV2"}
        assert operations <= set(nodes)
    assert not [name for name in nodes if "Py" in name or "Generator" in name]


def test_file_damaged_since_the_start_is_named_in_one_line(reading: Reading) -> None:
    library = "torchvision" if "torch" in reading.framework else "TensorFlow"
    for text in (reading.result["cut"], reading.result["missing"]):
        assert text.startswith(f"{reading.result['path']}: ")
        assert library in text
        assert "\n" not in text


def test_pictures_that_no_framework_decodes_are_counted_in_a_warning(tmp_path: Path) -> None:
    data = prepared(tmp_path / "data")
    others = int(np.count_nonzero(data.files[data.training] == b""))
    assert 0 < others < len(data.training)
    counts = f" {others} of {len(data.training)} "
    for inputs in (("stream",), ("stream", "native")):
        settings = classification.Settings(
            data=str(tmp_path / "data"),
            cache=str(tmp_path / "cache"),
            image_size=SIDE,
            batch_size=2,
            model="resnet18",
            frameworks=("pytorch",),
            input=inputs,
        )
        warnings = prepare_study(settings, lambda *_: None).warnings
        assert sum(counts in line for line in warnings) == ("native" in inputs)


ITERATE = """
import multiprocessing, sys, time
from pathlib import Path
from experiments.datasets.labelled import batches
from experiments.datasets.labelled.data import Labelled
from models.frameworks import open_framework

framework = open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
data = Labelled.open(Path(sys.argv[1]))
read = iter(framework.read(batches.files(data, data.training, 2), 1))
next(read)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_halted_worker_of_dataloader_ends_with_its_cell(tmp_path: Path) -> None:
    """Halt the process group as for turns: a halted worker cannot look for its parent."""
    command = [sys.executable, "-c", ITERATE, str(prepared(tmp_path / "data").folder)]
    cell = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
    )
    assert cell.stdout
    workers = [psutil.Process(int(pid)) for pid in cell.stdout.readline().split()]
    assert len(workers) == 1
    os.killpg(cell.pid, signal.SIGSTOP)
    wait_for(lambda: workers[0].status() == psutil.STATUS_STOPPED, 60)
    cell.kill()
    cell.wait()
    wait_for(lambda: not workers[0].is_running() or workers[0].status() == psutil.STATUS_ZOMBIE, 30)
