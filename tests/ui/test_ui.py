"""Tests of MLflow's pages in a browser: a campaign and its report, hostile texts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from playwright.sync_api import Page, expect

from tests.deploy.group import Group
from tests.deploy.test_teams import campaign as drawn
from tests.ui.conftest import Campaign, newest
from tracking.links import MODEL_TRAINING
from tracking.records import Record, RunOpened
from tracking.store import NOTE, Store

pytestmark = pytest.mark.slow
Seen = Callable[[Page, str], None]
TITLE = "Image captioning: DenseNet-201 features, merge LSTM decoder"
SCRIPT = (
    "<script>document.title='owned'; window.owned=1</script>"
    """<img src=x onerror="window.owned=1">"""
)


def test_experiments_lead_to_the_newest_result(page: Page, campaign: Campaign, seen: Seen) -> None:
    page.goto("/#/experiments")
    page.get_by_placeholder("Search experiments").fill("images")
    page.keyboard.press("Enter")
    expect(page.get_by_text("speech/captioning")).to_have_count(0)
    row = page.get_by_role("row").filter(has_text="images/captioning")
    expect(row).to_contain_text(TITLE)
    seen(page, "experiments")
    page.get_by_role("link", name="images/captioning", exact=True).click()
    expect(page).to_have_url(re.compile(f"experiments/{campaign.experiment}/"))
    page.goto(list_of_runs(campaign.experiment))
    unfold_description(page)
    expect(page.get_by_text("Newest result")).to_be_visible()
    seen(page, "experiment")
    with page.expect_popup() as opened:  # MLflow opens the links of a description beside it
        page.get_by_role("link", name=TITLE).click()
    expect(opened.value).to_have_url(re.compile(f"runs/{campaign.run}"))
    opened.value.close()


def test_description_leads_to_a_list_and_charts_of_cells(
    page: Page, campaign: Campaign, seen: Seen
) -> None:
    page.goto(list_of_runs(campaign.experiment))
    expect(page.get_by_role("link", name=re.compile(r"^captioning demo · "))).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("block 1"))).to_have_count(0)
    unfold_description(page)
    with page.expect_popup() as opened:
        page.get_by_role("link", name="one run per cell").click()
    cells = opened.value
    for name in (f"{campaign.frameworks[0]} · block 1", f"{campaign.frameworks[1]} · block 2"):
        link = re.compile(rf"^{re.escape(name)}( · |$)")
        expect(cells.get_by_role("link", name=link)).to_be_visible()
    for column in ("train/examples_per_second", "framework", "block", "outcome"):
        expect(cells.get_by_role("columnheader", name=column).first).to_be_visible()
    seen(cells, "runs")
    cells.goto(cells.url.replace("/runs?", "/runs?compareRunsMode=CHART&"))
    expect(cells.locator(".js-plotly-plot").first).to_be_visible()
    expect(cells.get_by_text("primary outcomes").first).to_be_visible()
    seen(cells, "charts")
    cells.close()


def test_pages_of_runs_models_and_the_report(page: Page, campaign: Campaign, seen: Seen) -> None:
    tags = {
        "framework": campaign.frameworks[0],
        "team": "images",
        "user": "dana",
        "parity": "equal",
    }
    models = [f"captioning-demo-{name.replace('+', '-')}-20" for name in campaign.frameworks]
    for name, (address, texts) in {
        "run": (
            run_page(campaign.experiment, campaign.cell),
            [
                f"{campaign.frameworks[0]} · block 1",
                "Finished",
                "scenes (",
                "run once in a separate process",
            ]
            + [re.compile(rf"{tag}\s*:\s*{re.escape(text)}") for tag, text in tags.items()],
        ),
        "system-metrics": (
            run_page(campaign.experiment, campaign.cell, "/system-metrics"),
            ["cpu_utilization_percentage"],
        ),
        "models": (
            list_of_runs(campaign.experiment).replace("/runs?", "/models?"),
            [*models, "Ready"],
        ),
        "report": (
            run_page(campaign.experiment, campaign.run, "/artifacts/report.html"),
            ["figures", "comparison.csv", "comparison.json", "report.md"],
        ),
    }.items():
        page.goto(address)
        for text in texts:
            expect(page.get_by_text(text).first).to_be_visible()
        if name == "report":
            report = page.frame_locator("iframe")
            expect(report.get_by_role("heading", name=TITLE)).to_be_visible()
            figure = report.locator("figure img").first
            assert figure.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
        seen(page, name)
    page.goto(run_page(campaign.experiment, campaign.cell))
    expect(page.get_by_text("train/examples_per_second").first).to_be_attached()
    expect(page.get_by_text("check/initial_loss")).to_have_count(0)


def test_script_of_a_run_does_not_execute(page: Page, newcomer: Group, tmp_path: Path) -> None:
    dialogs = list[str]()
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.set_content(f"<p>{SCRIPT}</p>")
    page.wait_for_function("window.owned")  # unescaped it does

    place = "images/grid"
    with patch.dict(os.environ, newcomer.environment("dana")):
        store = Store(newcomer.uri)
        records = [hostile(at, place) for at in drawn("images", "dana", "m", 1.2, seed=0)]
        assert store.apply(records, tmp_path) == []
        experiment = store.experiment_id(place)
        store._client.set_experiment_tag(experiment, NOTE, f"A description {SCRIPT}")
        others = store.experiment_id("images/comparisons")
    options = (f"--experiment={place}", "--strata=machine,model", f"--output={tmp_path}")
    done = newcomer.call("dana", "compare", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    (report,) = tmp_path.glob("*/report.html")
    comparison = newest(newcomer, others, "tags.kind = 'comparison'")
    cell = newest(newcomer, experiment, "tags.kind = 'cell'")
    for address, text in {
        report.as_uri(): "window.owned=1",
        run_page(others, comparison, "/artifacts/report.html"): "",
        run_page(others, comparison, "/artifacts/report.md"): "window.owned=1",
        run_page(others, comparison): f"comparison · {place}",
        run_page(experiment, cell): "window.owned=1",
        list_of_runs(experiment): "window.owned=1",
        "/#/experiments": place,
    }.items():
        page.goto("about:blank")  # or the page of the artifacts keeps its selection
        page.goto(address)
        shown = page if text else page.frame_locator("iframe")
        expect(shown.get_by_text(text or "window.owned=1").first).to_be_visible()
        if address == list_of_runs(experiment):
            unfold_description(page)
            expect(page.get_by_text("Newest result")).to_be_visible()
        page.wait_for_timeout(500)
        state = "[typeof window.owned, document.title === 'owned']"
        assert all(frame.evaluate(state) == ["undefined", False] for frame in page.frames)
        assert dialogs == []


def hostile(record: Record, place: str) -> Record:
    """Return the record with a script in all its texts."""
    if not isinstance(record, RunOpened):
        return record
    shown = ("model", "dataset", "machine", "framework", "commit")
    tags = {"model": "drawn", "dataset": "drawn", **record.tags}
    tags |= {key: tags[key] + SCRIPT for key in shown if key in tags}
    return replace(
        record,
        experiment=place,
        name=record.name + SCRIPT,
        tags={**tags, NOTE: SCRIPT},
        params={**record.params, "note": SCRIPT},
    )


def unfold_description(page: Page) -> None:
    page.locator("[data-component-id='mlflow.experiment.metadata_editor.expand_button']").click()


def list_of_runs(experiment: str) -> str:
    return f"/#/experiments/{experiment}/runs?{MODEL_TRAINING}"


def run_page(experiment: str, run: str, tab: str = "") -> str:
    return f"/#/experiments/{experiment}/runs/{run}{tab}?{MODEL_TRAINING}"
