"""The card of a report as a picture, for a chat or a slide: text alone, so that it costs next to nothing."""

from __future__ import annotations

import io
import textwrap
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from experiments.comparison.report.card import AnswerCard
from experiments.comparison.report.figures.canvas import BAD, DOTS_AN_INCH, GOOD, INK, SOFT, WIDTH_INCHES, styled

_TINTS = {"better": GOOD, "worse": BAD}
_COLUMNS = {9.0: 104, 15.0: 62}
_LEFT, _LINE = 0.35, 1.5
Text = tuple[str, float, dict[str, Any]]


def picture(card: AnswerCard) -> bytes:
    """A PNG file, as high as its text."""
    texts = _texts(card)
    heights = [(text.count("\n") + 1) * size * _LINE / 72 + 0.06 for text, size, _ in texts]
    inches = sum(heights) + 2 * _LEFT
    with styled():
        canvas = Canvas(figsize=(WIDTH_INCHES, inches), dpi=DOTS_AN_INCH)
        top = inches - _LEFT
        for (text, size, style), height in zip(texts, heights, strict=True):
            canvas.text(_LEFT / WIDTH_INCHES, top / inches, text, fontsize=size, va="top", linespacing=1.3, **style)
            top -= height
        png = io.BytesIO()
        FigureCanvasAgg(canvas).print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return png.getvalue()


def _texts(card: AnswerCard) -> list[Text]:
    soft, ink = {"color": SOFT}, {"color": INK}
    found: list[Text] = [(_folded(card.title, 9.0), 9.0, soft), (_folded(card.question, 9.0), 9.0, soft)]
    found.append((_folded(card.answer, 15.0), 15.0, {**ink, "weight": "bold"}))
    found += [(_folded(card.caution, 9.0), 9.0, {"color": BAD})] if card.caution else []
    for one in card.outcomes:
        told = _folded(f"{one.label}: {one.effect} · {one.basis}", 9.0)
        found.append((told, 9.0, {"color": _TINTS.get(one.style, INK)}))
    found += [(_folded(f"{card.left_out} more outcomes in the report", 9.0), 9.0, soft)] if card.left_out else []
    if card.advice:
        found.append((_folded(f"{card.advice.what}: {card.advice.command}", 9.0), 9.0, {**ink, "family": "DejaVu Sans Mono"}))
    return [*found, *((_folded(f"{name}: {text}", 9.0), 9.0, soft) for name, text in card.facts.items())]


def _folded(text: str, size: float) -> str:
    return "\n".join(textwrap.wrap(text, _COLUMNS[size])) or " "
