"""Weights from a draw, a file, or not at all."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models import spec, weights
from models.contract import ErrorCode, ModelError
from tests.models.children import forked_processes, result_of, run_in

decoder = spec("caption_decoder")
SIZES = decoder.Spec(vocabulary=11, length=4, features=6, width=5, hidden=3)


def test_digest_depends_on_names_shapes_and_values_only() -> None:
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
    """Write a .pth as torchvision does: old names, BatchNorm's counters."""
    between = path.with_suffix(".safetensors")
    weights.write_safetensors(drawn, between)
    script = """
import re, sys, torch
from safetensors.torch import load_file
tensors = load_file(sys.argv[1])
names = {name: re.sub(r"(norm|conv)([12])[.]", r"\\1.\\2.", name) for name in tensors}
state = {names[name]: tensor for name, tensor in tensors.items()}
state["features.norm0.num_batches_tracked"] = torch.tensor(3)
torch.save(state, sys.argv[2])
"""
    run_in("pytorch", "-c", script, str(between), str(path))


def test_state_dicts_and_imagenet_are_read_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    small, _ = spec("densenet201").probe(np.random.default_rng(0))
    drawn = weights.load("random", "densenet201", small)
    cache = tmp_path / "hub/checkpoints"
    cache.mkdir(parents=True)
    published = cache / "densenet201-c1103571.pth"
    publish(drawn, published)
    with forked_processes():
        loaded = weights.load(str(published), "densenet201", small)
        headless = weights.load("imagenet", "densenet201", replace(small, classes=None))
    assert weights.digest(loaded) == weights.digest(drawn)
    assert set(drawn) - set(headless) == {"classifier.weight", "classifier.bias"}
    assert weights.digest(headless) == weights.digest({name: drawn[name] for name in headless})


def write_file(path: Path, header: str, data: bytes = b"", size: int | None = None) -> Path:
    header_bytes = len(header.encode()) if size is None else size
    path.write_bytes(struct.pack("<Q", header_bytes) + header.encode() + data)
    return path


def test_bfloat16_becomes_the_same_values_in_float32(tmp_path: Path) -> None:
    """A bfloat16 is a float32 whose lower half is zero."""
    cut, parts, data = {}, {}, b""
    for name, array in weights.load("random", "caption_decoder", SIZES).items():
        cut[name] = (array.view(np.uint32) & 0xFFFF0000).view(np.float32)
        part = (array.view(np.uint32) >> 16).astype("<u2").tobytes()
        offsets = len(data), len(data) + len(part)
        parts[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": offsets}
        data += part
    path = write_file(tmp_path / "half.safetensors", json.dumps(parts), data)
    assert weights.digest(weights.load(str(path), "caption_decoder", SIZES)) == weights.digest(cut)


HUGE = '{"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 0]}}'


def header_of(kind: str, size: int) -> str:
    part = {"dtype": kind, "shape": [2], "data_offsets": [0, 2 * size]}
    return json.dumps({"image.weight": part})


@pytest.mark.parametrize(
    ("header", "data", "size", "code"),
    [
        ("{}", b"", 2**63, ErrorCode.UNREADABLE),
        ("{}" + " " * (11 << 20), b"", None, ErrorCode.UNREADABLE),
        (HUGE % "4294967296, 4294967296", b"", None, ErrorCode.UNREADABLE),
        (HUGE % "0, 4611686018427387904", b"", None, ErrorCode.UNREADABLE),
        ('{"a": ' * 2_000, b"", None, ErrorCode.UNREADABLE),
        ("not at all", b"", 7, ErrorCode.UNREADABLE),
        (header_of("F8_E4M3", 1), bytes(2), None, ErrorCode.UNSUPPORTED),
        (header_of("C64", 8), bytes(16), None, ErrorCode.UNSUPPORTED),
        (header_of("I64", 8), bytes(16), None, ErrorCode.NOT_EQUAL),
    ],
    ids=["size", "blanks", "overflow", "empty", "nested", "noise", "F8_E4M3", "C64", "shape"],
)
def test_file_that_does_not_fit_is_one_line(
    tmp_path: Path, header: str, data: bytes, size: int | None, code: ErrorCode
) -> None:
    path = write_file(tmp_path / "bomb.safetensors", header, data, size)
    with pytest.raises(ModelError, match=r"bomb\.safetensors") as refused:
        weights.load(str(path), "caption_decoder", SIZES)
    assert refused.value.code is code
    assert str(refused.value).isprintable()


def test_weights_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    drawn = weights.load("random", "caption_decoder", SIZES)
    whole = {**drawn, "image.bias": drawn["image.bias"].astype(np.int8)}
    weights.write_safetensors(whole, tmp_path / "whole.safetensors")
    with pytest.raises(ModelError, match=r"'image\.bias'.* int8") as refused:
        weights.load(str(tmp_path / "whole.safetensors"), "caption_decoder", SIZES)
    assert refused.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(
    ("source", "code"),
    [("absent.pth", ErrorCode.NOT_FOUND), ("weights.h5", ErrorCode.INVALID_VALUE)],
)
def test_unknown_sources_are_refused(source: str, code: ErrorCode) -> None:
    with pytest.raises(ModelError, match=source) as refused:
        weights.load(source, "caption_decoder", SIZES)
    assert refused.value.code is code


HOSTILE = """
import pickle, torch, zipfile
from pathlib import Path
from models import weights
from models.contract import ModelError
folder = Path(FOLDER)

class Bomb:
    def __reduce__(self):
        return eval, (f"open({str(folder / 'exploded')!r}, 'w')", "")

with zipfile.ZipFile(folder / "bomb.pth", "w") as archive:  # the layout of torch.save
    archive.writestr("bomb/data.pkl", pickle.dumps(Bomb(), protocol=2))
    archive.writestr("bomb/version", "3\\n")
tensors = {
    "view": {"image.weight": torch.zeros(1).expand(10**6, 10**6)},
    "number": {3: torch.zeros(1)},
    "sparse": {"image.weight": torch.eye(3).to_sparse()},
}
for name, state in tensors.items():
    torch.save(state, folder / f"{name}.pth")
result = {}
for name in ("bomb", *tensors):
    try:
        weights._convert(str(folder / f"{name}.pth"), str(folder / "out.safetensors"))
    except ModelError as error:
        result[name] = [error.code, str(error)]
"""
CHECKPOINT = """
from pathlib import Path
from experiments.cell.checkpoint import Checkpoint, TrainingState
from models import spec
from models.contract import OptimizerConfig
from models.frameworks import open_framework
from tracking.errors import EvenhandError
folder = Path(FOLDER) / "checkpoint"
framework = open_framework("pytorch", device="cpu", threads=1, precision="float32", seed=0)
sizes = spec("caption_decoder").Spec(vocabulary=11, length=4, features=6, width=5, hidden=3)
network = framework.build("caption_decoder", sizes)
optimizer = framework.optimizer(network, OptimizerConfig("adam", 0.1))
checkpoint, result = Checkpoint(folder, {"seed": 0}), []
damages = {"past.json": b"[" * 100_000, "weights.safetensors": bytes([255]) * 99}
for name, content in damages.items():
    checkpoint.save(framework, network, optimizer, TrainingState(seconds=[1.0]))
    assert checkpoint.load(framework, network, optimizer).seconds == [1.0]
    (folder / name).write_bytes(content)
    try:
        checkpoint.load(framework, network, optimizer)
    except EvenhandError as error:
        result.append([error.code, str(error)])
"""


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    """A pickle with code, a view of a terabyte, a wrong name, no storage; damaged checkpoints."""
    hostile, checkpoints = (
        result_of("pytorch", f"FOLDER = {str(tmp_path)!r}\n{script}")
        for script in (HOSTILE, CHECKPOINT)
    )
    assert not (tmp_path / "exploded").exists()
    assert hostile.keys() == {"bomb", "view", "number", "sparse"}
    for name, (code, text) in hostile.items():
        assert code == ErrorCode.UNREADABLE
        assert f"{tmp_path}/{name}.pth" in text
        assert "\n" not in text
        assert "weights_only" not in text, "no advice to run the file's code"
    assert "4,000,000,000,000 bytes" in hostile["view"][1]
    assert len(checkpoints) == 2
    for _, text in checkpoints:
        assert f"{tmp_path}/checkpoint" in text
        assert "\n" not in text
