"""Weights from a draw, a file, or not at all."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from models import spec, weights
from models.contract import ModelError
from tests.models.children import run_python

decoder = spec("caption_decoder")
SIZES = decoder.CaptionDecoderSpec(vocabulary=11, length=4, features=6, width=5, hidden=3)


def test_random_follows_its_seed() -> None:
    first, again, other = (weights.digest(weights.load("random", "caption_decoder", SIZES, seed)) for seed in (0, 0, 1))
    assert first == again != other


def test_digest_sees_names_shapes_and_values_but_not_order() -> None:
    a, b = np.arange(6.0), np.ones(2)
    digest = weights.digest({"a": a, "b": b})
    assert weights.digest({"b": b, "a": a}) == digest
    for changed in ({"a": a + 1e-12, "b": b}, {"a": a.reshape(2, 3), "b": b}, {"c": a, "b": b}, {"a": a.astype("f4"), "b": b}):
        assert weights.digest(changed) != digest


def test_files_are_read_back(tmp_path: Path) -> None:
    drawn = weights.load("random", "caption_decoder", SIZES)
    weights.save(drawn, tmp_path / "drawn.safetensors")
    assert weights.digest(weights.load(str(tmp_path / "drawn.safetensors"), "caption_decoder", SIZES)) == weights.digest(drawn)


def test_a_state_dict_of_another_process_is_read(tmp_path: Path) -> None:
    """A .pth as torchvision publishes it: old names, BatchNorm's counters."""
    dense = spec("densenet201")
    small, _ = dense.probe(np.random.default_rng(0))
    drawn = weights.load("random", "densenet201", small)
    weights.save(drawn, tmp_path / "drawn.safetensors")
    script = """
import re, sys, torch
from safetensors.torch import load_file
state = {re.sub(r"(norm|conv)([12])[.]", r"\\1.\\2.", name): tensor for name, tensor in load_file(sys.argv[1]).items()}
state["features.norm0.num_batches_tracked"] = torch.tensor(3)
torch.save(state, sys.argv[2])
"""
    run_python("-c", script, str(tmp_path / "drawn.safetensors"), str(tmp_path / "published.pth"))
    assert weights.digest(weights.load(str(tmp_path / "published.pth"), "densenet201", small)) == weights.digest(drawn)


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


def test_a_file_of_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    weights.save({"conv1.weight": np.ones((2, 2))}, path)
    with pytest.raises(ModelError, match=r"other\.safetensors: not a caption_decoder of these sizes: weights: 'image\.weight'"):
        weights.load(str(path), "caption_decoder", SIZES)


@pytest.mark.parametrize(("name", "said"), [("absent.pth", "no such file"), ("weights.h5", "must be random, imagenet or a file")])
def test_what_is_not_a_file_of_weights(name: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        weights.load(name, "caption_decoder", SIZES)


def test_garbage_is_not_safetensors(tmp_path: Path) -> None:
    (tmp_path / "noise.safetensors").write_bytes(b"not at all")
    with pytest.raises(ModelError, match="not a safetensors file"):
        weights.load(str(tmp_path / "noise.safetensors"), "caption_decoder", SIZES)


def test_imagenet_has_no_captions() -> None:
    with pytest.raises(ModelError, match="torchvision has none for caption_decoder; use weights=random or a local file"):
        weights.load("imagenet", "caption_decoder", SIZES)


def test_imagenet_comes_from_the_cache_or_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens on discard: refused at once, everywhere
    dense = spec("densenet201").Spec()
    with pytest.raises(ModelError, match=r"c1103571\.pth is not there and .* use weights=random or the path") as raised:
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
    run_python("-c", script)
