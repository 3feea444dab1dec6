"""A real browser before a group's server, on which dana has run a small campaign."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests import debian
from tests.conftest import QUICK
from tests.deploy.group import Group

SIZE = {"width": 1400, "height": 900}
# On its own machine MLflow's assistant opens itself over a third of the page, once.
NO_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
WAIT_MS = 30_000


@dataclass(frozen=True)
class Campaign:
    """Ids of dana's campaign, and of the run of its first cell in the first framework."""

    experiment: str
    run: str
    cell: str


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        alone = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=debian.path_of("chromium"), args=alone)
        yield started
        started.close()


@pytest.fixture(scope="module")
def newcomer(group: Group) -> Group:
    """The server, and on it a team of dana's alone: other tests fill the experiments of the others."""
    for given in (
        {"action": "add_team", "team": "images"},
        {"action": "add_user", "user": "dana", "team": "images"},
    ):
        done = group.admin(**given)
        assert done.returncode == 0, done.stdout + done.stderr
    return group


@pytest.fixture(scope="module")
def as_dana(browser: Browser, newcomer: Group) -> Iterator[BrowserContext]:
    words = {"username": "dana", "password": newcomer.password("dana")}
    context = browser.new_context(base_url=newcomer.uri, http_credentials=words, viewport=SIZE)  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(f"try {{ {NO_ASSISTANT} }} catch (e) {{}}")
    yield context
    context.close()


@pytest.fixture
def page(as_dana: BrowserContext) -> Iterator[Page]:
    """A page of dana's; the test fails if the server could not answer one of its requests."""
    opened, failed = as_dana.new_page(), list[str]()
    opened.on(
        "response", lambda answer: failed.append(answer.url) if answer.status >= 500 else None
    )
    yield opened
    assert failed == []
    opened.close()


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Fails where the page shows an error; leaves a screenshot, in few colours, where those are asked for."""
    folder: Path | None = request.config.getoption("screenshots")

    def look(page: Page, name: str) -> None:
        assert page.get_by_text("Something went wrong").count() == 0
        assert page.get_by_text("Page Not Found").count() == 0
        page.mouse.move(SIZE["width"] / 2, 2)  # away from whatever it would highlight
        page.wait_for_timeout(1_000)  # charts unfold, and what they ask for is answered
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        picture.quantize(128).save(folder / f"{name}.png", optimize=True)

    return look


@pytest.fixture(scope="module")
def frameworks(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Pages are filled by the toy's campaign as by any; the pictures of the documentation show one of real frameworks."""
    return (
        ("pytorch", "tensorflow")
        if request.config.getoption("screenshots")
        else ("toy", "toy+twin")
    )


@pytest.fixture(scope="module")
def campaign(
    browser: Browser,
    newcomer: Group,
    frameworks: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Campaign:
    """Two frameworks in two blocks: too few for a verdict, enough for every page."""
    assert browser.is_connected()  # without one there is nothing to measure for
    folder = tmp_path_factory.mktemp("campaign")
    own = {
        "frameworks": ",".join(frameworks),
        "blocks": "2",
        "journal": str(folder / "journal"),
        "cache": str(folder / "cache"),
    }
    done = newcomer.call(
        "dana",
        "captioning",
        *(f"--{name}={text}" for name, text in {**QUICK, **own, "figures": "true"}.items()),
        cwd=folder,
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    named = {"experiment_name": "images/captioning"}
    found = newcomer.ask(
        "dana", "GET", "/api/2.0/mlflow/experiments/get-by-name", params=named
    ).json()["experiment"]["experiment_id"]
    conditions = ("kind = 'campaign'", f"framework = '{frameworks[0]}' and tags.block = '1'")
    run, cell = (newest(newcomer, found, f"tags.{condition}") for condition in conditions)
    return Campaign(found, run, cell)


def newest(group: Group, experiment: str, condition: str) -> str:
    """The id of the newest run that MLflow's filter selects."""
    wanted = {
        "experiment_ids": [experiment],
        "filter": condition,
        "order_by": ["attributes.start_time DESC"],
        "max_results": 1,
    }
    (run,) = group.ask("dana", "POST", "/api/2.0/mlflow/runs/search", json=wanted).json()["runs"]
    return str(run["info"]["run_id"])
