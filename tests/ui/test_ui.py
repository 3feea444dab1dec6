"""Tests of MLflow's pages in a browser: log-in, a campaign and its report, hostile texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, expect

from tests.deploy.group import Group
from tests.deploy.test_teams import campaign as drawn
from tests.ui.conftest import Campaign, newest
from tracking.links import MODEL_TRAINING
from tracking.records import Record, RunOpened
from tracking.store import NOTE, Store

Seen = Callable[[Page, str], None]
TITLE = "Image captioning: DenseNet-201 features, merge LSTM decoder"
SCRIPT = (
    "<script>document.title='owned'; window.owned=1</script>"
    """<img src=x onerror="window.owned=1">"""
)


@pytest.mark.parametrize("words", [None, ("dana", "a guess"), ("nobody", "a guess")], ids=str)
def test_wrong_password_shows_nothing(
    browser: Browser, nginx: tuple[str, Path], words: tuple[str, str] | None
) -> None:
    credentials: Any = words and {"username": words[0], "password": words[1]}
    with browser.new_context(ignore_https_errors=True, http_credentials=credentials) as context:
        page = context.new_page()
        try:
            answer = page.goto(nginx[0])
            assert answer is not None
            assert answer.status == 401
        except Error as error:  # Chromium's answer to a refused password
            assert "ERR_INVALID_AUTH_CREDENTIALS" in str(error)  # noqa: PT017
        assert not {"Experiments", "images"} & set(re.findall(r"\w+", page.inner_text("body")))


def test_dana_logs_in_through_tls(
    browser: Browser, newcomer: Group, nginx: tuple[str, Path]
) -> None:
    words: Any = {"username": "dana", "password": newcomer.password("dana")}
    with browser.new_context(ignore_https_errors=True, http_credentials=words) as context:
        page = context.new_page()
        page.goto(f"{nginx[0]}/#/experiments")
        expect(page.get_by_role("link", name="images/captioning", exact=True)).to_be_visible()
        expect(page.get_by_text("dana", exact=True)).to_be_visible()


def test_experiments_lead_to_the_newest_result(page: Page, campaign: Campaign, seen: Seen) -> None:
    page.goto("/#/experiments")
    page.get_by_placeholder("Search experiments").fill("images")
    page.keyboard.press("Enter")
    expect(page.get_by_text("speech/captioning")).to_have_count(0)
    for name, text in {
        "images/captioning": TITLE,
        "images/grid": "A grid on synthetic tensors",
        "images/comparisons": "Comparisons",
    }.items():
        expect(
            page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
        ).to_contain_text(text)
    seen(page, "experiments")

    page.get_by_role("link", name="images/captioning", exact=True).click()
    expect(page).to_have_url(re.compile(f"experiments/{campaign.experiment}/"))
    page.goto(f"/#/experiments/{campaign.experiment}/runs?{MODEL_TRAINING}")
    unfold_description(page)
    expect(page.get_by_text("Newest result")).to_be_visible()
    seen(page, "experiment")
    with page.expect_popup() as opened:  # MLflow opens the links of a description beside it
        page.get_by_role("link", name=TITLE).click()
    expect(opened.value.get_by_role("heading", name="captioning demo")).to_be_visible()
    expect(opened.value).to_have_url(
        re.compile(f"experiments/{campaign.experiment}/runs/{campaign.run}")
    )
    opened.value.close()


def unfold_description(page: Page) -> None:
    page.locator("[data-component-id='mlflow.experiment.metadata_editor.expand_button']").click()


@pytest.mark.slow
def test_page_compare_shows_the_chosen_outcome(
    page: Page, newcomer: Group, campaign: Campaign, frameworks: tuple[str, str], seen: Seen
) -> None:
    """Choose framework and outcome: the page begins with what the database returns first."""
    cells = [
        newest(newcomer, campaign.experiment, f"tags.framework = '{name}' and tags.block = '1'")
        for name in frameworks
    ]
    runs, experiments = json.dumps(cells), json.dumps([campaign.experiment])
    page.goto(f"/#/compare-runs?runs={runs}&experiments={experiments}")
    page.get_by_role("button", name="Clear All").click()
    chosen = ["framework", "train/examples_per_second"]
    for at, name in enumerate(chosen):
        page.get_by_role("combobox").nth(at).click()
        page.keyboard.type(name)
        page.locator(f"[class*=select-item-option][title='{name}']").last.click()
        page.keyboard.press("Escape")
    expect(page.locator(".parcoords .axis-title")).to_have_text(chosen)
    seen(page, "compare")


@pytest.mark.slow
def test_list_of_runs(
    page: Page, campaign: Campaign, frameworks: tuple[str, str], seen: Seen
) -> None:
    page.goto(f"/#/experiments/{campaign.experiment}/runs?{MODEL_TRAINING}")
    first, second = frameworks
    expect(page.get_by_role("link", name=re.compile(r"^captioning demo · "))).to_be_visible()
    for column in ("Run Name", "Created", "Dataset", "Duration", "Source", "Models"):
        expect(page.get_by_role("columnheader", name=column).first).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("block 1"))).to_have_count(0)
    seen(page, "campaigns")

    unfold_description(page)
    with page.expect_popup() as opened:
        page.get_by_role("link", name="one run per cell").click()
    cells = opened.value
    for name in (f"{first} · block 1", f"{second} · block 2"):
        expect(
            cells.get_by_role("link", name=re.compile(rf"^{re.escape(name)}( · |$)"))
        ).to_be_visible()
    for column in ("train/examples_per_second", "framework", "block", "outcome"):
        expect(cells.get_by_role("columnheader", name=column).first).to_be_visible()
    seen(cells, "runs")
    cells.get_by_label("Chart view").or_(cells.get_by_test_id("experiment-runs-mode-switch-chart"))
    cells.goto(cells.url.replace("/runs?", "/runs?compareRunsMode=CHART&"))
    expect(cells.locator(".js-plotly-plot").first).to_be_visible()
    expect(cells.get_by_text("primary outcomes").first).to_be_visible()
    titles = cells.locator("h4, [role=heading]").all_inner_texts()
    seen(cells, "charts")
    cells.close()
    assert titles, titles

    page.get_by_text(re.compile(r"^scenes \(")).first.click()
    panel = page.get_by_role("dialog")
    for text in ("scenes", "Training", "image", "caption"):
        expect(panel.get_by_text(text).first).to_be_visible()
    seen(page, "dataset")


def test_page_of_a_run(
    page: Page, campaign: Campaign, frameworks: tuple[str, str], seen: Seen
) -> None:
    page.goto(run_page(campaign.experiment, campaign.cell))
    expect(page.get_by_role("heading", name=f"{frameworks[0]} · block 1")).to_be_visible()
    part = "run once in a separate process"
    for text in ("dana", "Finished", "evenhand captioning", "captioning-demo", "scenes (", part):
        expect(page.get_by_text(text).first).to_be_visible()
    for tag in (
        f"framework: {frameworks[0]}",
        "team: images",
        "user: dana",
        "block: 1",
        "parity: equal",
    ):
        expect(page.get_by_text(re.compile(tag.replace(": ", r"\s*:\s*"))).first).to_be_visible()
    seen(page, "run")
    expect(page.get_by_text("train/examples_per_second").first).to_be_attached()
    expect(page.get_by_text("inference/latency_milliseconds_p50").first).to_be_attached()
    expect(page.get_by_text("check/initial_loss")).to_have_count(0)
    expect(page.get_by_text("batch_size", exact=True)).to_be_attached()


@pytest.mark.slow
def test_tabs_of_metrics(page: Page, campaign: Campaign, seen: Seen) -> None:
    page.goto(run_page(campaign.experiment, campaign.cell, "/model-metrics"))
    page.get_by_placeholder("Search metric charts").fill("loss")
    expect(page.get_by_role("heading", name="loss", exact=True).first).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    seen(page, "model-metrics")
    page.goto(run_page(campaign.experiment, campaign.cell, "/system-metrics"))
    expect(page.get_by_text("cpu_utilization_percentage").first).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    expect(page.locator(".js-plotly-plot").nth(5)).to_be_attached()
    seen(page, "system-metrics")


@pytest.mark.slow
def test_models_of_an_experiment(
    page: Page, campaign: Campaign, frameworks: tuple[str, str], seen: Seen
) -> None:
    page.goto(f"/#/experiments/{campaign.experiment}/models?{MODEL_TRAINING}")
    for name in frameworks:
        model = f"captioning-demo-{name.replace('+', '-')}-20"
        expect(page.get_by_role("link", name=model)).to_have_count(1)
    expect(page.get_by_text("Ready")).to_have_count(2)
    expect(page.get_by_role("link", name=f"{frameworks[1]} · block 1")).to_be_attached()
    seen(page, "models")


def test_report_in_the_artifact_viewer(page: Page, campaign: Campaign, seen: Seen) -> None:
    page.goto(run_page(campaign.experiment, campaign.run, "/artifacts/report.html"))
    report = page.frame_locator("iframe")
    expect(report.get_by_role("heading", name=TITLE)).to_be_visible()
    expect(report.get_by_role("heading", name="Verdicts")).to_be_visible()
    expect(report.get_by_text("training throughput").first).to_be_visible()
    figure = report.locator("figure img").first
    expect(figure).to_be_visible()
    assert figure.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    for name in ("figures", "comparison.csv", "comparison.json", "report.md"):
        expect(page.get_by_text(name, exact=True)).to_be_visible()
    seen(page, "report")


def test_script_of_a_run_does_not_execute(
    page: Page, newcomer: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialogs = list[str]()
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto("about:blank")
    page.set_content(f"<p>{SCRIPT}</p>")
    page.wait_for_function("window.owned")  # unescaped it does

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "dana")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", newcomer.password("dana"))
    store, place = Store(newcomer.uri), "images/grid"
    assert (
        store.apply(
            [hostile(record, place) for record in drawn("images", "dana", "m", 1.2, seed=0)],
            tmp_path,
        )
        == []
    )
    store._client.set_experiment_tag(store.experiment_id(place), NOTE, f"A description {SCRIPT}")
    done = newcomer.call(
        "dana",
        "compare",
        f"--experiment={place}",
        "--strata=machine,model",
        f"--output={tmp_path}",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    (report,) = tmp_path.glob("*/report.html")
    page.goto(report.as_uri())
    expect(page.get_by_text("window.owned=1").first).to_be_visible()
    untouched(page, dialogs)

    experiment = store.experiment_id(place)
    beside = store.experiment_id("images/comparisons")
    comparison, cell = (
        newest(newcomer, beside, "tags.kind = 'comparison'"),
        newest(newcomer, experiment, "tags.kind = 'cell'"),
    )
    page.goto(run_page(beside, comparison, "/artifacts/report.html"))
    expect(page.frame_locator("iframe").get_by_text("window.owned=1").first).to_be_visible()
    untouched(page, dialogs)
    page.get_by_text("report.md", exact=True).click()
    expect(page.get_by_text("window.owned=1").first).to_be_visible()
    untouched(page, dialogs)
    page.goto(run_page(beside, comparison))
    expect(page.get_by_role("heading", name=f"comparison · {place}")).to_be_visible()
    untouched(page, dialogs)
    page.goto(run_page(experiment, cell))
    expect(page.get_by_role("heading", name="window.owned=1")).to_be_visible()
    untouched(page, dialogs)
    page.goto(f"/#/experiments/{experiment}/runs?{MODEL_TRAINING}")
    expect(page.get_by_role("link", name="window.owned=1").first).to_be_visible()
    unfold_description(page)
    expect(page.get_by_text("Newest result")).to_be_visible()
    untouched(page, dialogs)
    page.goto("/#/experiments")
    expect(page.get_by_role("link", name=place, exact=True).first).to_be_visible()
    untouched(page, dialogs)


def hostile(record: Record, place: str) -> Record:
    """Return the record with a script in all its texts."""
    if not isinstance(record, RunOpened):
        return record
    tags = {
        key: text
        + (SCRIPT if key in ("model", "dataset", "machine", "framework", "commit") else "")
        for key, text in record.tags.items()
    }
    params = {**record.params, "note": SCRIPT}
    return replace(
        record,
        experiment=place,
        name=record.name + SCRIPT,
        tags={**tags, "mlflow.note.content": SCRIPT},
        params=params,
    )


def untouched(page: Page, dialogs: list[str]) -> None:
    """Check that no script has run, in the page or in its frames."""
    page.wait_for_timeout(500)
    for frame in page.frames:
        assert frame.evaluate("[typeof window.owned, document.title === 'owned']") == [
            "undefined",
            False,
        ]
    assert dialogs == []


def run_page(experiment: str, run: str, tab: str = "") -> str:
    return f"/#/experiments/{experiment}/runs/{run}{tab}?{MODEL_TRAINING}"
