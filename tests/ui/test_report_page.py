"""The report in a real browser: wide, on a phone, in the dark and on paper nothing is cut off."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from experiments.comparison import compare
from experiments.comparison.analyses import Evidence
from experiments.comparison.judgement import write
from experiments.sweep import results
from tests.experiments.comparison.campaigns import LATENCY, frame
from tests.experiments.comparison.steps import raw_runs
from tests.experiments.sweep.test_results import small_study

LONG = "Read with care: " + "a_setting_without_any_space_" * 6
# A4 at 96 dots an inch, less the margins.
PAPER = {"width": 688, "height": 1017}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = frame(
        factors={"tensorflow": 1.2},
        spread=0.03,
        tags={"cpu": "2 × Xeon", "version.torch": "2.13", "warnings": LONG},
    )
    comparison = compare(table, baseline="pytorch", primary=[LATENCY])
    raw = raw_runs(table)
    folder = tmp_path_factory.mktemp("report")
    return write(
        Evidence(comparison, table, raw, link=lambda run: f"about:blank#{run}"),
        folder,
        "Captioning · demo",
    )


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(f"file://{report}")
    yield page
    page.close()


def _cut_off(page: Page, selector: str) -> list[str]:
    """The text of what is wider than the box that it stands in."""
    told: list[str] = page.locator(selector).evaluate_all(
        "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent.trim().slice(0, 60))"
    )
    return told


def _pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("L"), float)


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_wider_than_the_page(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert _cut_off(page, ".answer, .card, .warning, .lead, .scroll:has(table)") == []
    edge = _pixels(page.screenshot(full_page=True))[:, -6:]
    assert edge.min() > 250, "something is drawn up to the right edge"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_a_figure_shows_that_more_of_it_lies_aside(
    page: Page, scheme: Literal["light", "dark"]
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 900})
    figure = page.locator("figure").first
    box = figure.locator(".scroll")
    assert (
        figure.locator("figcaption").evaluate("one => getComputedStyle(one, '::after').content")
        == '" · swipe sideways"'
    )

    def shades() -> list[float]:
        """How far the left and the right edge, where nothing is drawn in most rows, are from the ground."""
        seen = _pixels(box.screenshot())
        return [abs(float(np.median(seen[:, at])) - float(np.median(seen))) for at in (0, -1)]

    at_first = shades()
    box.evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    at_the_end = shades()
    assert at_first[0] < 5 < at_first[1]
    assert at_the_end[1] < 5 < at_the_end[0]


def test_on_a_phone_a_row_is_a_card_that_names_its_values(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    row = page.locator("tr", has=page.locator("td", has_text="median inference latency")).first
    names = row.locator("td").evaluate_all(
        "all => all.map(one => getComputedStyle(one, '::before').content)"
    )
    assert names[:3] == ['"outcome"', '"pytorch"', '"tensorflow"']
    assert '"b > a in a block"' in names, "a character that is written by its number"
    tops = row.locator("td").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
    assert tops == sorted(set(tops)), "one below the other"
    assert page.locator("tr.head").first.is_hidden()


RUNS = "details:has(> summary:text-is('Every run that counts'))"


def test_rows_are_filtered_by_words(page: Page) -> None:
    section = page.locator(RUNS)
    section.locator("summary").click()
    rows = section.locator("tr:not(.head)")
    assert rows.count() == 16
    section.get_by_role("searchbox").fill("tensorflow")
    assert [one.is_visible() for one in rows.all()].count(True) == 8
    section.get_by_role("searchbox").fill("tensorflow c1-3")
    assert [one.is_visible() for one in rows.all()].count(True) == 1
    section.get_by_role("searchbox").fill("")
    assert [one.is_visible() for one in rows.all()].count(True) == 16
    assert page.locator(".filter:visible").count() == 1, "short tables have none"


def test_without_scripts_all_is_there_but_the_filters(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{report}")
    assert page.locator(".filter").count() == 0
    assert page.locator(".said").is_visible()
    page.locator(f"{RUNS} > summary").click()
    row = page.locator(f"{RUNS} tr", has_text="c1-3-tensorflow")
    assert row.locator("a").get_attribute("href") == "about:blank#c1-3-tensorflow"
    context.close()


def test_the_answer_is_on_the_first_screen(page: Page) -> None:
    for width in (1400, 390):
        page.set_viewport_size({"width": width, "height": 900})
        box = page.locator(".said").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 600


def test_the_dark_preference_reaches_figures_and_warnings(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    assert _pixels(page.screenshot()).mean() < 80
    for selector in ("figure img", ".warning", ".card", "td .pill"):
        shown = _pixels(page.locator(selector).first.screenshot())
        assert np.median(shown) < 110, selector
        assert np.ptp(shown) > 90, f"{selector}: letters can be told from their ground"


def test_a_sweeps_page_is_dark_where_that_is_preferred(browser: Browser, tmp_path: Path) -> None:
    results.write_page(small_study(3), tmp_path, "A sweep", ["3 trials."])
    page = browser.new_page(color_scheme="dark")
    page.goto((tmp_path / "sweep.html").as_uri())
    assert _pixels(page.screenshot()).mean() < 80
    for selector in ("h1", ".plotly-graph-div", "table"):
        shown = _pixels(page.locator(selector).first.screenshot())
        assert np.median(shown) < 110, selector
        assert np.ptp(shown) > 90, f"{selector}: letters can be told from their ground"
    page.close()


def test_on_paper_nothing_is_cut_off_and_no_page_is_nearly_blank(page: Page) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size(PAPER)  # type: ignore[arg-type]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    assert _cut_off(page, ".scroll, .answer, .card, .warning") == []
    tallest = max(
        page.locator("figure").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().height)"
        )
    )
    assert tallest < PAPER["height"], "a figure fits on a page"
    height = page.evaluate("document.documentElement.scrollHeight")
    pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert pages <= 1 + 1.4 * height / PAPER["height"], (
        "figures kept whole leave at most a third of the paper empty"
    )
