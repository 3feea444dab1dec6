"""Tests of the report in a real browser: wide, on a phone, in the dark and on paper."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser, Page

from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from experiments.sweep import results
from tests.conftest import ROOT
from tests.experiments.comparison.campaigns import LATENCY, RATE, frame
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.sweep.test_results import HEAD, small_study

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
    for at, values in enumerate(noise.T):
        table[f"custom/wait_{at}_seconds"] = values
    table["train/total_seconds"] = table["train/first_step_seconds"] = noise[:, 0]
    spec = ComparisonSpec(baseline="pytorch", primary=[LATENCY])
    figure = {"what": "throughput", "published": "23 images/s", "metric": RATE}
    options = ReportOptions(
        "Captioning · demo",
        [figure] * 7,
        "A paper, 2024",
        notes=["A note."],
        link=lambda run: f"about:blank#{run}",
    )
    folder = tmp_path_factory.mktemp("report")
    result = answer(spec, table, folder, options, lambda _: raw_runs(table, maximum=8))
    assert result.report is not None
    return result.report


# Picture of the README, and the text in it that names the structure of the page that it shows.
PICTURE, SHOWN, STRUCTURE = "report.png", {"width": 1400, "height": 1180}, "evenhand:report"


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(f"file://{report}")
    yield page
    page.close()


def _cut_off(page: Page, selector: str) -> list[str]:
    """Return the text of elements that are wider than their box."""
    texts: list[str] = page.locator(selector).evaluate_all(
        "all => all.filter(element => element.scrollWidth > element.clientWidth + 1)"
        ".map(element => element.textContent.trim().slice(0, 60))"
    )
    return texts


def _pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("L"), float)


@pytest.mark.parametrize("width", [1400, 390])
def test_content_fits_the_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.locator("details").evaluate_all("all => all.forEach(part => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert _cut_off(page, ".answer, .card, .warning, .scroll:has(table)") == []
    edge = _pixels(page.screenshot(full_page=True))[:, -6:]
    assert edge.min() > 250, "something is drawn up to the right edge"


@pytest.mark.parametrize(("width", "maximum"), [(1400, 3_900), (390, 8_600)])
def test_page_is_short(page: Page, width: int, maximum: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollHeight") <= maximum
    assert page.locator(".warning").count() == 1
    assert page.locator("details[open]").count() == 0


def test_rows_of_verdicts_are_low_and_their_numbers_aligned(page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    rows = page.locator("h2:text-is('Verdicts') ~ .scroll").first.locator("tr:has(td)")
    assert rows.count() == 12
    heights = rows.evaluate_all("all => all.map(row => row.getBoundingClientRect().height)")
    assert max(heights) < 60, "a row has one or two lines"
    assert page.locator("tr:has(code)").count() > 0, "a row has a reason"
    assert page.locator("td:has-text('total training time'):visible").count() == 0
    for at in (2, 3, 4):
        points = rows.locator(f"td:nth-child({at}) .part").evaluate_all(
            "all => all.map(part => part.getBoundingClientRect().left)"
        )
        assert len(points) >= 10
        assert np.ptp(points) < 1, "decimal points stand below each other"


def test_figures_stand_side_by_side_and_fill_the_width(page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    boxes = page.locator("figure").evaluate_all(
        "all => all.map(figure => figure.getBoundingClientRect().toJSON())"
    )
    assert len({box["top"] for box in boxes}) < len(boxes)
    assert max(box["right"] for box in boxes) - min(box["left"] for box in boxes) > 1_250


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figure_on_phone_shows_where_it_continues(
    page: Page, scheme: Literal["light", "dark"]
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 900})
    figure = page.locator("figure").first
    box = figure.locator(".scroll")

    def shades() -> list[float]:
        """Return how far the edges, where most rows are empty, are from the ground."""
        pixels = _pixels(box.screenshot())
        return [abs(float(np.median(pixels[:, at])) - float(np.median(pixels))) for at in (0, -1)]

    at_start = shades()
    box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    at_end = shades()
    assert at_start[0] < 5 < at_start[1]
    assert at_end[1] < 5 < at_end[0]


def test_row_on_phone_is_a_card_that_names_its_values(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    row = page.locator("tr", has=page.locator("td", has_text="median inference latency")).first
    names = row.locator("td").evaluate_all(
        "cells => cells.map(cell => getComputedStyle(cell, '::before').content)"
    )
    assert names[:3] == ['"outcome"', '"pytorch"', '"tensorflow"']
    tops = row.locator("td").evaluate_all(
        "cells => cells.map(cell => cell.getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)
    assert len(set(tops)) < len(tops), "short values stand side by side"
    page.set_viewport_size({"width": 600, "height": 900})
    wide, verdict = (
        page.locator("td", has=page.locator(inside)).first.evaluate("cell => cell.clientWidth")
        for inside in ("xpath=self::*[contains(., 'median inference latency')]", ".pill + small")
    )
    assert verdict == wide, "a reason has the whole width"
    assert page.locator("tr.head").first.is_hidden()


def test_rows_are_filtered_by_words(page: Page) -> None:
    section = page.locator(RUNS)
    section.locator("summary").click()
    rows = section.locator("tr:not(.head)")
    assert rows.count() == 16
    section.get_by_role("searchbox").fill("tensorflow")
    assert [row.is_visible() for row in rows.all()].count(True) == 8
    section.get_by_role("searchbox").fill("tensorflow c1-3")
    assert [row.is_visible() for row in rows.all()].count(True) == 1
    section.get_by_role("searchbox").fill("")
    assert [row.is_visible() for row in rows.all()].count(True) == 16
    assert page.locator(".filter:visible").count() == 1


def test_page_without_scripts_lacks_only_the_filters(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{report}")
    assert page.locator(".filter").count() == 0
    assert page.locator(".headline").first.is_visible()
    page.locator(f"{RUNS} > summary").click()
    row = page.locator(f"{RUNS} tr", has_text="c1-3-tensorflow")
    assert row.locator("a").get_attribute("href") == "about:blank#c1-3-tensorflow"
    context.close()


def test_answer_is_on_the_first_screen(page: Page) -> None:
    for width in (1400, 390):
        page.set_viewport_size({"width": width, "height": 900})
        box = page.locator(".headline").last.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 600


def test_dark_preference_reaches_figures_and_warnings(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    assert _pixels(page.screenshot()).mean() < 80
    for selector in ("figure img", ".warning", ".card", "td .pill"):
        pixels = _pixels(page.locator(selector).first.screenshot())
        assert np.median(pixels) < 110, selector
        assert np.ptp(pixels) > 90, selector


def test_page_of_sweep_is_dark(browser: Browser, tmp_path: Path) -> None:
    results.write_page(small_study(3), tmp_path, HEAD, {})
    page = browser.new_page(color_scheme="dark")
    page.goto((tmp_path / "sweep.html").as_uri())
    assert _pixels(page.screenshot()).mean() < 80
    for selector in ("h1", "figure img", "table"):
        pixels = _pixels(page.locator(selector).first.screenshot())
        assert np.median(pixels) < 110, selector
        assert np.ptp(pixels) > 90, selector
    page.close()


def test_paper_shows_everything_without_blank_pages(page: Page) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size(PAPER)  # type: ignore[arg-type]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    assert _cut_off(page, ".scroll, .answer, .card, .warning") == []
    tallest = max(
        page.locator("figure").evaluate_all(
            "all => all.map(figure => figure.getBoundingClientRect().height)"
        )
    )
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
