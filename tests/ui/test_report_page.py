"""Tests of the report in a real browser: wide, on a phone, in the dark and on paper."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser, Locator, Page

from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from experiments.sweep import results
from tests.conftest import ROOT
from tests.experiments.comparison.campaigns import LATENCY, RATE, frame
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.sweep.test_results import SWEEP, small_study

LONG = "Read with care: " + "a_setting_without_any_space_" * 6
# A4 at 96 dots an inch, less the margins.
PAPER = {"width": 688, "height": 1017}
RUNS = "details:has(> summary > b:text-is('Every run that counts'))"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a campaign with as many outcomes, facts and figures as a real one."""
    tags = {f"version.package_{at}": "2.13" for at in range(30)} | {"warnings": LONG}
    took_turns = {"pairing": "interleaved"}
    table = frame(factors={"tensorflow": 1.2}, spread=0.03, tags=tags, params=took_turns)
    noise = np.random.default_rng(0).normal(1, 0.05, (len(table), 6))
    table[[f"custom/wait_{at}_seconds" for at in range(6)]] = noise
    table["train/total_seconds"] = table["train/first_step_seconds"] = noise[:, 0]
    spec = ComparisonSpec(baseline="pytorch", primary=[LATENCY])
    figures = [{"what": "throughput", "published": "23 images/s", "metric": RATE}] * 7
    options = ReportOptions("Captioning · demo", figures, "A paper, 2024", notes=["A note."])
    folder = tmp_path_factory.mktemp("report")
    result = answer(spec, table, folder, options, lambda _: raw_runs(table, maximum=8))
    assert result.report is not None
    return result.report


# Picture of the README, and the text in it that names the structure of the page that it shows.
PICTURE, SHOWN, STRUCTURE = "report.png", {"width": 1400, "height": 1180}, "evenhand:report"


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    with browser.new_page() as page:
        page.goto(f"file://{report}")
        yield page


def _of_each(elements: Locator, expression: str) -> list[Any]:
    """Return the values of a JavaScript expression for each `element`."""
    values: list[Any] = elements.evaluate_all(f"all => all.map(element => {expression})")
    return values


def _cut_off(page: Page, selector: str) -> int:
    """Return how many elements are wider than their box."""
    return sum(_of_each(page.locator(selector), "element.scrollWidth > element.clientWidth + 1"))


def _pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("L"), float)


@pytest.mark.parametrize(("width", "maximum"), [(1400, 3_900), (390, 8_600)])
def test_page_is_short_and_fits_the_width(page: Page, width: int, maximum: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollHeight") <= maximum
    assert page.locator(".warning").count() == 1
    assert page.locator("details[open]").count() == 0
    answer = page.locator(".headline").last.bounding_box()
    assert answer is not None
    assert answer["y"] + answer["height"] < 600, "the answer is on the first screen"
    _of_each(page.locator("details"), "element.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert _cut_off(page, ".answer, .card, .warning, .scroll:has(table)") == 0
    edge = _pixels(page.screenshot(full_page=True))[:, -6:]
    assert edge.min() > 250, "something is drawn up to the right edge"


@pytest.mark.slow
def test_wide_screen_has_low_rows_aligned_numbers_and_figures_side_by_side(page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    rows = page.locator("h2:text-is('Verdicts') ~ .scroll").first.locator("tr:has(td)")
    assert max(_of_each(rows, "element.getBoundingClientRect().height")) < 60, "one or two lines"
    for at in (2, 3, 4):
        parts = rows.locator(f"td:nth-child({at}) .part")
        points = _of_each(parts, "element.getBoundingClientRect().left")
        assert len(points) >= 10
        assert np.ptp(points) < 1, "decimal points stand below each other"
    boxes = _of_each(page.locator("figure"), "element.getBoundingClientRect().toJSON()")
    assert len({box["top"] for box in boxes}) < len(boxes)
    assert max(box["right"] for box in boxes) - min(box["left"] for box in boxes) > 1_250


@pytest.mark.slow
def test_rows_are_filtered_by_words(page: Page) -> None:
    section = page.locator(RUNS)
    section.locator("summary").click()
    for words, count in {"": 16, "tensorflow": 8, "tensorflow c1-3": 1}.items():
        section.get_by_role("searchbox").fill(words)
        assert section.locator("tr:not(.head):visible").count() == count
    assert page.locator(".filter:visible").count() == 1


@pytest.mark.slow
def test_dark_preference_reaches_all_parts(browser: Browser, report: Path, tmp_path: Path) -> None:
    results.write_page(small_study(3), tmp_path, SWEEP, [], [], {})
    for path, selectors in {
        report: ("figure img", ".warning", ".card", "td .pill"),
        tmp_path / "sweep.html": ("h1", "figure img", "table"),
    }.items():
        page = browser.new_page(color_scheme="dark")  # the browser closes it
        page.goto(path.as_uri())
        assert _pixels(page.screenshot()).mean() < 80
        for selector in selectors:
            pixels = _pixels(page.locator(selector).first.screenshot())
            assert np.median(pixels) < 110, selector
            assert np.ptp(pixels) > 90, selector


@pytest.mark.slow
def test_paper_shows_everything_without_blank_pages(page: Page) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size(PAPER)  # type: ignore[arg-type]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    assert _cut_off(page, ".scroll, .answer, .card, .warning") == 0
    tallest = max(_of_each(page.locator("figure"), "element.getBoundingClientRect().height"))
    assert tallest < PAPER["height"], "a figure fits on a page"
    height = page.evaluate("document.documentElement.scrollHeight")
    pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert pages <= 1 + 1.4 * height / PAPER["height"], (
        "figures kept whole leave at most a third of the paper empty"
    )


def _structure(page: Page) -> str:
    """Return a digest of the head of a page: its elements, and the names of its parts."""
    parts: list[str] = page.locator("main").evaluate(
        """main => [...main.querySelectorAll("section.answer, section.answer *, h2, summary, th")]
        .map(part => [part.tagName, part.className,
            part.matches("dt, h2, summary, th") ? part.textContent.trim() : ""].join(" "))"""
    )
    return hashlib.sha256("\n".join(dict.fromkeys(parts)).encode()).hexdigest()[:16]


@pytest.mark.slow
def test_picture_of_the_readme_has_the_structure_of_a_report(
    page: Page, browser: Browser, request: pytest.FixtureRequest
) -> None:
    """Fail if reports look otherwise than the README's picture.

    With `--screenshots=docs --report=PATH` it is retaken first, from the report of a demo. The
    structure that it carries is that of this module's report, which is the same on every machine.
    """
    structure, path = _structure(page), ROOT / "docs" / PICTURE
    folder, report = (request.config.getoption(name) for name in ("screenshots", "report"))
    if folder and report:
        demo, path = browser.new_page(viewport=SHOWN), folder / PICTURE  # type: ignore[arg-type]
        demo.goto(report.resolve().as_uri())
        picture = Image.open(io.BytesIO(demo.screenshot())).convert("RGB").quantize(128)
        demo.close()
        texts = PngInfo()
        texts.add_text(STRUCTURE, structure)
        picture.save(path, optimize=True, pnginfo=texts)
    with Image.open(path) as picture:
        assert picture.size == tuple(SHOWN.values())
        assert picture.info.get(STRUCTURE) == structure, "retake it as CONTRIBUTING.md says"
