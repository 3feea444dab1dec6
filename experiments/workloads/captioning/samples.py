"""Sample captions with their pictures, as an HTML page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.datasets.captions import CaptionData
from experiments.datasets.images import Image
from models.contract import Array

COUNT = 8
SIDE = 160
STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem;color:#1c2430;background:#fff}"
    "table{border-collapse:collapse}"
    "td,th{padding:.5rem .9rem;border-bottom:1px solid #dde3ea;text-align:left;vertical-align:top}"
    "img{width:160px;image-rendering:pixelated;border-radius:4px}th{color:#5a6675;font-weight:600}"
)


@dataclass(frozen=True)
class Row:
    """Picture with a reference caption and the captions of the decoder by name."""

    picture: Path
    reference: str
    answers: Mapping[str, str]


def rows(data: CaptionData, images: Array, answers: Mapping[str, list[str]]) -> list[Row]:
    """Return the first held-out pictures, the same in every framework and block."""
    count = min([COUNT, len(images), *map(len, answers.values())])
    return [
        Row(
            Path(data.source, data.images[int(image)]),
            data.references(int(image))[0],
            {name: captions[position] for name, captions in answers.items()},
        )
        for position, image in enumerate(images[:count])
    ]


def write(folder: Path, rows: list[Row], title: str) -> None:
    """Write `captions.html`."""
    names = list(rows[0].answers) if rows else []
    head = "".join(
        f"<th>{html.escape(name)}</th>" for name in ["picture", "reference caption", *names]
    )
    body = []
    for row in rows:
        captions = (row.reference, *row.answers.values())
        cells = "".join(f"<td>{html.escape(caption)}</td>" for caption in captions)
        source = f"data:image/png;base64,{_png(row.picture)}"
        body.append(f'<tr><td><img alt="" src="{source}"></td>{cells}</tr>')
    heading = html.escape(title)
    (folder / "captions.html").write_text(
        f"<!doctype html><meta charset='utf-8'><title>{heading}</title><style>{STYLE}</style>"
        f"<h1>{heading}</h1>{_note(rows)}<table><tr>{head}</tr>{''.join(body)}</table>"
    )


def _note(rows: list[Row]) -> str:
    """Explain that a model writes one caption under every picture, mostly in a short training."""
    names = rows[0].answers if len(rows) > 1 else ()
    return "".join(
        f"<p>{html.escape(name)} writes the same caption under every picture: so far it follows "
        "the words and not the picture. Train more epochs.</p>"
        for name in names
        if len({row.answers[name] for row in rows}) == 1
    )


def _png(path: Path) -> str:
    buffer = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").resize((SIDE, SIDE)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
