"""Sample captions with their pictures, as an HTML page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
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


def write(
    folder: Path,
    data: CaptionData,
    images: Array,
    captions: Mapping[str, Sequence[str]],
    title: str,
) -> None:
    """Write `captions.html` with the first held-out pictures.

    Args:
        folder: Folder of the file.
        data: Data set.
        images: Held-out pictures, the same in every framework and block.
        captions: Way of decoding -> caption of each picture, maybe of fewer.
        title: Title of the page.
    """
    import pandas as pd

    count = min([COUNT, len(images), *map(len, captions.values())])
    shown = [int(image) for image in images[:count]]
    columns = {
        "picture": [_image(Path(data.source, data.images[image])) for image in shown],
        "reference caption": [html.escape(data.references(image)[0]) for image in shown],
    }
    notes = ""
    for name, texts in captions.items():
        columns[name] = [html.escape(text) for text in texts[:count]]
        if count > 1 and len(set(columns[name])) == 1:
            notes += (
                f"<p>{name} writes the same caption under every picture: so far it follows the "
                "words and not the picture. Train more epochs.</p>"
            )
    with pd.option_context("display.max_colwidth", None):
        table = pd.DataFrame(columns).to_html(index=False, escape=False, border=0)
    heading = html.escape(title)
    (folder / "captions.html").write_text(
        f"<!doctype html><meta charset='utf-8'><title>{heading}</title><style>{STYLE}</style>"
        f"<h1>{heading}</h1>{notes}{table}"
    )


def _image(path: Path) -> str:
    content = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").resize((SIDE, SIDE)).save(content, "PNG")
    text = base64.b64encode(content.getvalue()).decode()
    return f'<img alt="" src="data:image/png;base64,{text}">'
