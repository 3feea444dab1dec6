"""`input=native`: what the frameworks' own pipelines read, against Pillow, and how they do it."""

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
from experiments.workloads.classification.prepare import prepare as looked_at
from tests.conftest import ROOT, wait_for
from tests.models.children import run_in

RNG = np.random.default_rng(3)
# In levels of 0…255. Pillow rounds after each of the two passes of a resize, half a level each; TensorFlow never rounds,
# torchvision rounds as often as Pillow, by coefficients of its own. 0.01 is for float32.
RESIZED = {"pytorch": 2.01, "keras-torch": 2.01, "tensorflow": 1.01, "keras-tensorflow": 1.01}
EQUAL = 0.01
GREY = 0.55  # Pillow rounds the grey value of each pixel; the frameworks' weights add up to 0.9999
SIDE, EXIF_ORIENTATION = 24, 0x0112


def scene(width: int, height: int) -> Image.Image:
    """Colours that change smoothly, as in a photograph, with an edge: no side of it looks like another."""
    across, down = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 2, height))
    waves = np.stack([np.sin(across + down), np.cos(2 * across - down), np.sin(down * across)], -1)
    pixels = (
        127.5 + 90 * waves + 30 * (across > 2)[..., None] + RNG.normal(0, 4, (height, width, 3))
    )
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def plain(folder: Path) -> None:
    """What the frameworks decode: JPEG and PNG of 8 bits, large, small and of the wanted size, grey, and turned."""
    scene(SIDE, SIDE).save(folder / "exact.png")
    scene(SIDE, SIDE).save(folder / "exact.jpg", quality=80)
    scene(97, 61).save(folder / "large.jpg", quality=90)
    scene(61, 97).save(folder / "large.png")
    scene(9, 13).save(folder / "small.jpg", quality=95, subsampling=0)
    scene(50, 30).convert("L").save(folder / "grey.jpg")
    scene(50, 30).convert("L").save(folder / "grey.png")
    scene(60, 40).save(folder / "progressive.jpg", progressive=True)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        scene(40, 20).save(folder / f"turned{orientation}.jpg", exif=exif)


def odd(folder: Path) -> None:
    """What some framework reads otherwise, or not at all."""
    scene(50, 30).convert("CMYK").save(folder / "cmyk.jpg")
    see_through = scene(50, 30).convert("RGBA")
    see_through.putalpha(Image.linear_gradient("L").resize((50, 30)))
    see_through.save(folder / "see_through.png")
    scene(50, 30).convert("P").save(folder / "palette.png")
    Image.fromarray(RNG.integers(0, 65_536, (30, 50), np.uint16)).save(folder / "sixteen.png")
    scene(50, 30).save(folder / "frame.gif")
    scene(50, 30).save(folder / "bitmap.bmp")


def folders(place: Path, channels: int = 3) -> Labelled:
    for name, fill in (("odd", odd), ("plain", plain)):
        if not (place / name).exists():
            (place / name).mkdir(parents=True)
            fill(place / name)
    return prepare(
        str(place),
        side=SIDE,
        channels=channels,
        cache=place.parent / "cache",
        progress=lambda *_: None,
    )


def by_pillow(path: Path, channels: int = 3) -> np.ndarray:
    upright = (
        ImageOps.exif_transpose(Image.open(path))
        .convert("RGB")
        .convert({1: "L", 3: "RGB"}[channels])
    )
    return np.asarray(upright.resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float64).reshape(
        SIDE, SIDE, channels
    )


READ = """
import json, sys
from pathlib import Path
import numpy as np
from experiments.datasets.labelled import batches
from experiments.datasets.labelled.data import Labelled
from models.contract import ModelError
from models.frameworks import open_framework

framework = open_framework(sys.argv[1], device="cpu", threads=1, precision="float32", seed=0)
data, grey = (Labelled.open(Path(folder)) for folder in sys.argv[2:4])
rows = np.concatenate([data.training, data.validation])


def epoch(data, workers, *draw):
    return list(framework.read(batches.files(data, rows[::-1] if draw else rows, 3, *draw), workers))


def pixels(data, found):
    return (np.concatenate([np.asarray(one.inputs[0]) for one in found]) * data.deviation + data.mean) * 255


def nodes():
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    asked = next(iter(framework._readers.values())).dataset(batches.files(data, rows, 3))._variant_tensor
    graph = GraphDef.FromString(tf.raw_ops.DatasetToGraphV2(input_dataset=asked, external_state_policy=1).numpy())
    return sorted({node.op for part in (graph.node, *(one.node_def for one in graph.library.function)) for node in part})


def failure():
    try:
        epoch(data, 0)
    except ModelError as error:
        return str(error)
    return "nothing"


found = epoch(data, 2)
labels = np.concatenate([np.asarray(one.targets) for one in found])
moved, again = (epoch(data, 2, "crop+mirror", np.random.default_rng(1)) for _ in range(2))
drawn = batches.files(data, rows[::-1], 3, "crop+mirror", np.random.default_rng(1))
shared = list(batches.read(data, drawn))
np.savez(sys.argv[4], rows=rows, labels=labels, plain=pixels(data, found), grey=pixels(grey, epoch(grey, 0)),
         moved=pixels(data, moved), again=pixels(data, again), shared=pixels(data, shared))
told = {"nodes": nodes() if "tensorflow" in sys.argv[1] else []}
path = Path(data.files[rows[-1 - len(rows) % 3]].decode())  # of the last whole batch
content = path.read_bytes()
path.write_bytes(content[: len(content) // 2])
told["cut"] = failure()
path.unlink()
told["gone"] = failure()
print(json.dumps({**told, "path": str(path)}))
"""


@dataclass(frozen=True)
class Found:
    """What one framework read. plain … shared: pixels in levels of 0…255, a row each of `rows`; files: of every row."""

    framework: str
    told: dict[str, Any]
    arrays: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    files: list[Path]
    plain: list[bool]


@pytest.fixture(
    scope="module",
    params=[
        "pytorch",
        "tensorflow",
        *(pytest.param(f"keras-{one}", marks=pytest.mark.slow) for one in ("torch", "tensorflow")),
    ],
)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    place = tmp_path_factory.mktemp("native")
    data, grey = (folders(place / "data", channels) for channels in (3, 1))
    files = sorted((place / "data" / "odd").iterdir()) + sorted(
        (place / "data" / "plain").iterdir()
    )
    plain = [file.parent.name == "plain" for file in files]
    expected = {
        name: np.stack(
            [
                by_pillow(file, channels) if plain[row] else one.images[row]
                for row, file in enumerate(files)
            ]
        )
        for name, one, channels in (("plain", data, 3), ("grey", grey, 1))
    }
    given = (request.param, str(data.folder), str(grey.folder), str(place / "found.npz"))
    told = json.loads(run_in(request.param, "-c", READ, *given).stdout.splitlines()[-1])
    return Found(request.param, told, dict(np.load(place / "found.npz")), expected, files, plain)


def test_pictures_are_those_of_pillow(found: Found) -> None:
    """Each file against Pillow; those that frameworks read otherwise come from the cache, as in the shared way."""
    assert len(found.files) == 22
    for at, row in enumerate(found.arrays["rows"][:21]):  # whole batches of three
        exact = not found.plain[row] or found.files[row].name.startswith("exact")
        bound = EQUAL if exact else RESIZED[found.framework]
        assert np.abs(found.arrays["plain"][at] - found.expected["plain"][row]).max() <= bound, (
            found.files[row]
        )
        assert found.arrays["labels"][at] == found.plain[row]


def test_a_network_of_one_channel_gets_grey_pictures(found: Found) -> None:
    for at, row in enumerate(found.arrays["rows"][:21]):
        bound = RESIZED[found.framework] + GREY if found.plain[row] else EQUAL
        assert np.abs(found.arrays["grey"][at] - found.expected["grey"][row]).max() <= bound, (
            found.files[row]
        )


def test_crops_and_mirrors_are_those_of_the_shared_way_and_repeat(found: Found) -> None:
    np.testing.assert_array_equal(found.arrays["moved"], found.arrays["again"])
    assert (
        np.abs(found.arrays["moved"] - found.arrays["shared"][:21]).max()
        <= RESIZED[found.framework]
    )


def test_no_python_runs_for_a_picture_in_tensorflow(found: Found) -> None:
    """The whole data set as a graph: TensorFlow's own operations, none that calls back into Python."""
    nodes = found.told["nodes"]
    if "tensorflow" in found.framework:
        operations = {"ReadFile", "DecodeJpeg", "ScaleAndTranslate", "ParallelMapDatasetV2"}
        assert operations <= set(nodes)
    assert not [name for name in nodes if "Py" in name or "Generator" in name]


def test_a_file_damaged_since_the_start_is_named_in_one_line(found: Found) -> None:
    library = "torchvision" if "torch" in found.framework else "TensorFlow"
    for said in (found.told["cut"], found.told["gone"]):
        assert said.startswith(f"{found.told['path']}: cannot be decoded by {library}: ")
        assert said.endswith("; mend or remove it")
        assert "\n" not in said


def test_pictures_that_no_framework_decodes_are_counted_in_a_warning(tmp_path: Path) -> None:
    data = folders(tmp_path / "data")
    others = int(np.count_nonzero(data.files[data.training] == b""))
    assert 0 < others < len(data.training)
    given = {
        "data": str(tmp_path / "data"),
        "cache": str(tmp_path / "cache"),
        "image_size": SIDE,
        "batch_size": 2,
    }
    for ways, wanted in ((("stream",), 0), (("stream", "native"), 1)):
        settings = classification.Settings(
            **given, model="resnet18", frameworks=("pytorch",), input=ways
        )
        said = [
            line
            for line in looked_at(settings, lambda *_: None).warnings
            if line.startswith("input=native: ")
        ]
        assert len(said) == wanted
        assert all(
            f" {others} of {len(data.training)} training images are no plain JPEG or PNG" in line
            for line in said
        )


READING = """
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
def test_a_halted_worker_of_dataloader_ends_with_a_cell_that_is_killed(tmp_path: Path) -> None:
    """As where cells take turns: the whole process group is halted, and a worker that is cannot look for its parent."""
    command = [sys.executable, "-c", READING, str(folders(tmp_path / "data").folder)]
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
