"""Which paths a logged model opens: any in a program of one's own, on a server only those below a folder named for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from experiments.workloads import served

Answer = Callable[..., list[str]]
REFUSED = f"path: {served.NO_SUCH_PATH}"


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a picture, and with links to one beside it."""
    for name in (*served.SERVING, served.FOLDER):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for path in (
        tmp_path / "secret.png",
        folder / "one.png",
        folder / "more" / "two.png",
        tmp_path / "pictures2.png",
    ):
        Image.new("RGB", (8, 8), "navy").save(path)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "note.txt").write_text("no picture")
    return folder


def errors(*paths: object) -> list[str]:
    """What a client reads of each row."""

    def answer(found: list[Image.Image]) -> list[dict[str, str]]:
        return [{"caption": "a picture"} for _ in found]

    return list(
        served.answered(pd.DataFrame({"path": paths}), answer, {"caption": ""})[served.ERROR]
    )


def outside(pictures: Path) -> list[str]:
    above = pictures.parent
    return [
        *(
            str(above / "secret.png"),
            str(above / "nowhere.png"),
            "/etc/passwd",
            "/",
            "../secret.png",
            "more/../../secret.png",
        ),
        *(
            "link.png",
            "out/secret.png",
            "out/nowhere.png",
            str(pictures / "link.png"),
            str(above / "pictures2.png"),
        ),
        "one\0.png",
    ]


def test_a_program_that_is_no_server_opens_any_path(pictures: Path) -> None:
    found = errors(
        str(pictures / "one.png"), str(pictures / "link.png"), str(pictures / "nowhere.png")
    )
    assert found == ["", "", "path: missing"]


@pytest.mark.parametrize("name", served.SERVING)
def test_a_server_opens_none_and_does_not_tell_which_exist(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "true")
    assert set(errors(str(pictures / "one.png"), "one.png", *outside(pictures))) == {REFUSED}


@pytest.mark.parametrize("serving", [True, False])
def test_below_the_folder_that_is_named_paths_are_opened(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, serving: bool
) -> None:
    if serving:
        monkeypatch.setenv(served.SERVING[0], "/model")
    monkeypatch.setenv(served.FOLDER, str(pictures))
    inside = errors(
        str(pictures / "one.png"),
        "one.png",
        "more/two.png",
        "more/../one.png",
        "nowhere.png",
        "note.txt",
        ".",
    )
    assert inside == ["", "", "", "", "path: missing", "path: not an image", "path: not a file"]
    assert set(errors(*outside(pictures))) == {REFUSED}
    assert all(found.startswith("path: ") for found in errors("loop.png", "a" * 5_000))


def test_the_folder_may_be_a_link_itself(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pictures.parent / "alias").symlink_to(pictures)
    monkeypatch.setenv(served.FOLDER, str(pictures.parent / "alias"))
    assert errors("one.png", str(pictures / "one.png"), "link.png") == ["", "", REFUSED]
