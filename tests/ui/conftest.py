"""Real browser before a group's server, on which dana has run a small campaign."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import debian
from tests.conftest import QUICK
from tests.deploy.group import Group, add_teams

SIZE = {"width": 1400, "height": 900}
# On its own machine MLflow's assistant opens itself over a third of the page, once.
NO_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
WAIT_MS = 30_000


@dataclass(frozen=True)
class Campaign:
    """Ids of dana's campaign, and of the run of its first cell in the first framework."""

    frameworks: tuple[str, str]
    experiment: str
    run: str
    cell: str


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        args = ["--no-sandbox"] if os.geteuid() == 0 else []
        path = debian.path_of("chromium")
        with playwright.chromium.launch(executable_path=path, args=args) as chromium:
            yield chromium


@pytest.fixture(scope="module")
def newcomer(group: Group) -> Group:
    """Server with a team that has dana only: other tests fill the experiments of the others."""
    add_teams(group, {"images": "dana"})
    return group


@pytest.fixture
def page(browser: Browser, newcomer: Group) -> Iterator[Page]:
    """Page of dana; the test fails if the server could not answer a request."""
    words = {"username": "dana", "password": newcomer.password("dana")}
    options = {"base_url": newcomer.uri, "http_credentials": words, "viewport": SIZE}
    with browser.new_context(**options) as context:  # type: ignore[arg-type]
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(f"try {{ {NO_ASSISTANT} }} catch (e) {{}}")
        opened, statuses = context.new_page(), list[int]()
        opened.on("response", lambda answer: statuses.append(answer.status))
        yield opened
        assert max(statuses, default=200) < 500


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Function that fails on an error of the page, and saves a screenshot if requested."""
    folder: Path | None = request.config.getoption("screenshots")

    def look(page: Page, name: str) -> None:
        assert page.get_by_text("Something went wrong").count() == 0
        assert page.get_by_text("Page Not Found").count() == 0
        page.mouse.move(SIZE["width"] / 2, 2)  # away from whatever it would highlight
        page.wait_for_timeout(1_000)  # charts unfold, and what they ask for is answered
        if folder:
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(128).save(folder / f"{name}.png", optimize=True)

    return look


@pytest.fixture(scope="module")
def campaign(
    newcomer: Group, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Campaign:
    """Campaign of two blocks: too few for a verdict, enough for every page.

    Its frameworks are real ones for the screenshots of the documentation.
    """
    shown = request.config.getoption("screenshots")
    frameworks = ("pytorch", "tensorflow") if shown else ("toy", "toy+twin")
    folder = tmp_path_factory.mktemp("campaign")
    settings = QUICK | {
        "frameworks": ",".join(frameworks),
        "blocks": "2",
        "journal": str(folder / "journal"),
        "cache": str(folder / "cache"),
        "figures": "true",
        "save_model": "first",
    }
    options = [f"--{name}={text}" for name, text in settings.items()]
    done = newcomer.call("dana", "captioning", *options, cwd=folder)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    query = {"experiment_name": "images/captioning"}
    answer = newcomer.ask("dana", "GET", "/api/2.0/mlflow/experiments/get-by-name", params=query)
    experiment = answer.json()["experiment"]["experiment_id"]
    conditions = ("kind = 'campaign'", f"framework = '{frameworks[0]}' and tags.block = '1'")
    run, cell = (newest(newcomer, experiment, f"tags.{condition}") for condition in conditions)
    return Campaign(frameworks, experiment, run, cell)


def newest(group: Group, experiment: str, condition: str) -> str:
    """Return the id of the newest run that MLflow's filter selects."""
    query = {
        "experiment_ids": [experiment],
        "filter": condition,
        "order_by": ["attributes.start_time DESC"],
        "max_results": 1,
    }
    (run,) = group.ask("dana", "POST", "/api/2.0/mlflow/runs/search", json=query).json()["runs"]
    return str(run["info"]["run_id"])
