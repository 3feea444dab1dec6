"""Weights from a draw, a file, or not at all."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models import spec, weights
from models.contract import ModelError
from tests.models.children import run_in

decoder = spec("caption_decoder")
SIZES = decoder.Spec(vocabulary=11, length=4, features=6, width=5, hidden=3)


def test_random_follows_its_seed() -> None:
    first, again, other = (
        weights.digest(weights.load("random", "caption_decoder", SIZES, seed)) for seed in (0, 0, 1)
    )
    assert first == again != other


def test_digest_sees_names_shapes_and_values_but_not_order() -> None:
    a, b = np.arange(6.0), np.ones(2)
    digest = weights.digest({"a": a, "b": b})
    assert weights.digest({"b": b, "a": a}) == digest
    for changed in (
        {"a": a + 1e-12, "b": b},
        {"a": a.reshape(2, 3), "b": b},
        {"c": a, "b": b},
        {"a": a.astype("f4"), "b": b},
    ):
        assert weights.digest(changed) != digest


def publish(drawn: Mapping[str, np.ndarray], path: Path) -> None:
    """A .pth as torchvision publishes it: old names, BatchNorm's counters."""
    between = path.with_suffix(".safetensors")
    weights.write_safetensors(drawn, between)
    script = """
import re, sys, torch
from safetensors.torch import load_file
state = {re.sub(r"(norm|conv)([12])[.]", r"\\1.\\2.", name): tensor for name, tensor in load_file(sys.argv[1]).items()}
state["features.norm0.num_batches_tracked"] = torch.tensor(3)
torch.save(state, sys.argv[2])
"""
    run_in("pytorch", "-c", script, str(between), str(path))


def test_a_state_dict_of_another_process_is_read(tmp_path: Path) -> None:
    dense = spec("densenet201")
    small, _ = dense.probe(np.random.default_rng(0))
    drawn = weights.load("random", "densenet201", small)
    publish(drawn, tmp_path / "published.pth")
    assert weights.digest(
        weights.load(str(tmp_path / "published.pth"), "densenet201", small)
    ) == weights.digest(drawn)


class Bomb:
    def __init__(self, fuse: str) -> None:
        self.fuse = fuse

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (eval, (f"open({self.fuse!r}, 'w')", ""))


def test_no_pickle_is_executed(tmp_path: Path) -> None:
    fuse = tmp_path / "exploded"
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w") as archive:  # the layout of torch.save
        archive.writestr("bomb/data.pkl", pickle.dumps(Bomb(str(fuse)), protocol=2))
        archive.writestr("bomb/version", "3\n")
    with pytest.raises(ModelError, match=r"bomb\.pth': not a state_dict of tensors alone"):
        weights.load(str(tmp_path / "bomb.pth"), "caption_decoder", SIZES)
    assert not fuse.exists()


def write_safetensors(
    path: Path, header: str, data: bytes = b"", promised: int | None = None
) -> Path:
    size = len(header.encode()) if promised is None else promised
    path.write_bytes(struct.pack("<Q", size) + header.encode() + data)
    return path


def test_bfloat16_becomes_the_same_values_in_float32(tmp_path: Path) -> None:
    """Every bfloat16 is a float32 whose lower half is zero."""
    drawn = weights.load("random", "caption_decoder", SIZES)
    cut = {
        name: (array.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, array in drawn.items()
    }
    parts, data = {}, b""
    for name, array in cut.items():
        part = (array.view(np.uint32) >> 16).astype("<u2").tobytes()
        parts[name] = {
            "dtype": "BF16",
            "shape": array.shape,
            "data_offsets": (len(data), len(data) + len(part)),
        }
        data += part
    path = write_safetensors(tmp_path / "half.safetensors", json.dumps(parts), data)
    assert weights.digest(weights.load(str(path), "caption_decoder", SIZES)) == weights.digest(cut)


FOREIGN = "not a safetensors file"
HUGE = '{"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 0]}}'


def header_of(kind: str, size: int) -> str:
    return json.dumps(
        {"image.weight": {"dtype": kind, "shape": [2], "data_offsets": [0, 2 * size]}}
    )


@pytest.mark.parametrize(
    ("header", "data", "promised", "named"),
    [
        ("{}", b"", 2**63, FOREIGN),
        ("{}" + " " * (11 << 20), b"", None, FOREIGN),
        (HUGE % "4294967296, 4294967296", b"", None, FOREIGN),
        (HUGE % "0, 4611686018427387904", b"", None, FOREIGN),
        ('{"a": ' * 2_000, b"", None, FOREIGN),
        ("not at all", b"", 7, FOREIGN),
        (header_of("F8_E4M3", 1), bytes(2), None, r"'image\.weight' is of the type F8_E4M3"),
        (header_of("F8_E5M2", 1), bytes(2), None, r"'image\.weight' is of the type F8_E5M2"),
        (header_of("C64", 8), bytes(16), None, r"'image\.weight' is of the type C64"),
        (
            header_of("I64", 8),
            bytes(16),
            None,
            r"not a caption_decoder of these sizes: weights: 'image\.weight' has shape",
        ),
    ],
    ids=[
        "promise",
        "blanks",
        "overflow",
        "empty",
        "nested",
        "noise",
        "F8_E4M3",
        "F8_E5M2",
        "C64",
        "shape",
    ],
)
def test_a_file_that_does_not_fit_is_one_line(
    tmp_path: Path, header: str, data: bytes, promised: int | None, named: str
) -> None:
    path = write_safetensors(tmp_path / "bomb.safetensors", header, data, promised)
    with pytest.raises(
        ModelError, match=rf"bomb\.safetensors'?: {named}" if named[0] == "n" else named
    ) as raised:
        weights.load(str(path), "caption_decoder", SIZES)
    assert str(raised.value).isprintable()


def test_weights_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    drawn = weights.load("random", "caption_decoder", SIZES)
    weights.write_safetensors(
        {**drawn, "image.bias": drawn["image.bias"].astype(np.int8)}, tmp_path / "whole.safetensors"
    )
    with pytest.raises(ModelError, match=r"'image\.bias' holds int8"):
        weights.load(str(tmp_path / "whole.safetensors"), "caption_decoder", SIZES)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("absent.pth", "no such file"),
        ("weights.h5", "must be random, imagenet or"),
        ("imagenet", "has none for caption_decoder"),
    ],
)
def test_what_is_not_a_source_of_weights(source: str, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        weights.load(source, "caption_decoder", SIZES)


HOSTILE = """
import sys, torch
from collections.abc import Mapping
from pathlib import Path
from models import weights
from models.contract import ModelError
folder = Path(sys.argv[1])
torch.save({"image.weight": torch.zeros(10**6)}, folder / "old.pth", _use_new_zipfile_serialization=False)
old = (folder / "old.pth").read_bytes()
(folder / "old.pth").write_bytes(old.replace((10**6).to_bytes(4, "little"), (2**30).to_bytes(4, "little")))
torch.save({"image.weight": torch.zeros(1).expand(10**6, 10**6)}, folder / "view.pth")
torch.save({3: torch.zeros(1)}, folder / "number.pth")
torch.save({"image.weight": torch.eye(3).to_sparse()}, folder / "sparse.pth")
for name in ("view.pth", "number.pth", "sparse.pth"):
    try:
        weights._convert(folder / name, folder / "out.safetensors")
    except ModelError as error:
        print(error)
"""


def test_state_dicts_that_cannot_be_are_one_line(tmp_path: Path) -> None:
    """4 GiB in a file of 4 MB; a view of a terabyte on four bytes, a name that is none, a tensor without places for its zeros."""
    view, number, sparse = run_in("pytorch", "-c", HOSTILE, str(tmp_path)).stdout.splitlines()
    assert (
        f"weights '{tmp_path}/view.pth': 4,000,000,000,000 bytes of tensors in a file of " in view
    )
    assert number == f"weights '{tmp_path}/number.pth': not a state_dict of tensors alone"
    assert sparse == f"weights '{tmp_path}/sparse.pth': not a state_dict of tensors alone"
    with pytest.raises(
        ModelError, match=r"^weights '.*old\.pth': not a state_dict of tensors alone: "
    ) as raised:
        weights.load(str(tmp_path / "old.pth"), "caption_decoder", SIZES)
    assert str(raised.value).isprintable()


CHECKPOINT = """
import sys
from collections.abc import Mapping
from pathlib import Path
from experiments.cell.checkpoint import Checkpoint, TrainingState
from models import spec, weights
from models.contract import OptimizerConfig
from models.frameworks import open_framework
from tracking.errors import EvenhandError
folder = Path(sys.argv[1]) / "checkpoint"
framework = open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
sizes = spec("caption_decoder").Spec(vocabulary=11, length=4, features=6, width=5, hidden=3)
network = framework.build("caption_decoder", sizes)
optimizer = framework.optimizer(network, OptimizerConfig("adam", 0.1))
checkpoint = Checkpoint(folder, {"seed": 0})
for name, content in (("past.json", b"[" * 100_000), ("past.json", b"{}"), ("weights.safetensors", bytes([255]) * 99)):
    checkpoint.save(framework, network, optimizer, TrainingState(seconds=[1.0]))
    assert checkpoint.load(framework, network, optimizer).seconds == [1.0]
    (folder / name).write_bytes(content)
    try:
        checkpoint.load(framework, network, optimizer)
    except EvenhandError as error:
        print(error)
"""


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    said = run_in("pytorch", "-c", CHECKPOINT, str(tmp_path)).stdout.splitlines()
    assert len(said) == 3
    assert all(line.startswith(f"the checkpoint in {tmp_path}/checkpoint ") for line in said)
    assert all(line.endswith("; remove it to start this cell again") for line in said)


def test_imagenet_comes_from_the_cache_without_its_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    small, _ = spec("densenet201").probe(np.random.default_rng(0))
    drawn = weights.load("random", "densenet201", small)
    cache = tmp_path / "hub/checkpoints"
    cache.mkdir(parents=True)
    publish(drawn, cache / "densenet201-c1103571.pth")
    found = weights.load("imagenet", "densenet201", replace(small, classes=None))
    assert set(drawn) - set(found) == {"classifier.weight", "classifier.bias"}
    assert weights.digest(found) == weights.digest({name: drawn[name] for name in found})


def test_imagenet_that_is_nowhere_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv(
        "https_proxy", "http://127.0.0.1:9"
    )  # nothing listens on discard: refused at once, everywhere
    dense = spec("densenet201").Spec()
    with pytest.raises(
        ModelError, match=r"c1103571\.pth is not there and .* use weights=random or the path"
    ) as raised:
        weights.load("imagenet", "densenet201", dense)
    assert "\n" not in str(raised.value)


def test_random_densenet_neither_explodes_nor_vanishes() -> None:
    script = """
import numpy as np
from models import spec, weights
from models.frameworks import open_framework
framework = open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
sizes = spec("densenet201").Spec(classes=None)
network = framework.build("densenet201", sizes)
framework.load_weights(network, weights.load("random", "densenet201", sizes))
images = np.random.default_rng(0).standard_normal((2, 64, 64, 3)).astype(np.float32)
images[1] = images[1, 0, 0]  # noise, and one colour
features = framework.infer(network, (images,))
assert features.shape == (2, 1920) and 0.1 < features.std() < 10, features.std()
assert np.linalg.norm(features[0] - features[1]) > 0.1 * np.linalg.norm(features[0])
"""
    run_in("pytorch", "-c", script)
