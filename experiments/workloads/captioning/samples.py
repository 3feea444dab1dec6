"""Sample captions with their pictures, for the eye: an HTML page and a PNG sheet."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.datasets.captions import CaptionData
from experiments.datasets.images import Image, ImageDraw
from models.contract import Array

COUNT = 8
SIDE = 160
STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem;color:#1c2430;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.5rem .9rem;border-bottom:1px solid #dde3ea;text-align:left;vertical-align:top}"
    "img{width:160px;image-rendering:pixelated;border-radius:4px}th{color:#5a6675;font-weight:600}"
)


@dataclass(frozen=True)
class Row:
    """A picture, what people said of it and what the decoder says."""

    picture: Path
    reference: str
    answers: Mapping[str, str]


def rows(data: CaptionData, images: Array, answers: Mapping[str, list[str]]) -> list[Row]:
    """The first held-out pictures: the same in every framework and block."""
    return [
        Row(
            Path(data.source, data.images[int(image)]),
            data.references(int(image))[0],
            {name: found[i] for name, found in answers.items()},
        )
        for i, image in enumerate(images[:COUNT])
        if all(i < len(found) for found in answers.values())
    ]


def write(folder: Path, found: list[Row], title: str) -> None:
    """`captions.html` and `captions.png` in the folder."""
    _write_html(folder / "captions.html", found, title)
    _write_png(folder / "captions.png", found)


def _write_html(path: Path, found: list[Row], title: str) -> None:
    names = list(found[0].answers) if found else []
    head = "".join(
        f"<th>{html.escape(name)}</th>" for name in ["picture", "reference caption", *names]
    )
    body = []
    for row in found:
        cells = "".join(
            f"<td>{html.escape(text)}</td>" for text in (row.reference, *row.answers.values())
        )
        body.append(
            f'<tr><td><img alt="" src="data:image/png;base64,{_png(row.picture)}"></td>{cells}</tr>'
        )
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><title>{html.escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{_alike(found)}<table><tr>{head}</tr>{''.join(body)}</table>"
    )


def _alike(found: list[Row]) -> str:
    """Says so where a model writes one caption under every picture: it looks like an error, and is mostly a short training."""
    names = found[0].answers if len(found) > 1 else ()
    same = [name for name in names if len({row.answers[name] for row in found}) == 1]
    told = "writes the same caption under every picture: so far it follows the words and not the picture. Train more epochs"
    return "".join(f"<p>{html.escape(name)} {told}.</p>" for name in same)


def _write_png(path: Path, found: list[Row]) -> None:
    sheet = Image.new("RGB", (1_100, max(1, len(found)) * (SIDE + 16) + 16), "white")
    draw = ImageDraw.Draw(sheet)
    for index, row in enumerate(found):
        top = 16 + index * (SIDE + 16)
        sheet.paste(_thumbnail(row.picture), (16, top))
        lines = [
            f"reference: {row.reference}",
            *(f"{name}: {text}" for name, text in row.answers.items()),
        ]
        for number, line in enumerate(lines):
            draw.text((SIDE + 40, top + 12 + 44 * number), line[:110], fill="#1c2430", font_size=18)
    sheet.save(path)


def _thumbnail(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB").resize((SIDE, SIDE))


def _png(path: Path) -> str:
    buffer = io.BytesIO()
    _thumbnail(path).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
