"""The documentation as a site: it builds without a warning, its reference has what the code has, its simulations are right."""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import models.testing
from experiments import metrics as catalogue
from experiments import studies
from experiments.cli import entries
from experiments.config import settings
from tests import documented
from tests.conftest import ROOT

STATISTICS = ROOT / "docs" / "explanation" / "statistics.md"
SIMULATIONS = re.findall(
    r"^## (.*?)$(?:(?!^## ).)*?```python\n(.*?)```\n\n```text\n(.*?)```",
    STATISTICS.read_text(),
    re.M | re.S,
)


def build(checkout: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the documented build; `--quiet` would hide the warnings that `--strict` counts."""
    (command,) = {
        one.words for one in documented.commands() if one.words[:2] == ("mkdocs", "build")
    }
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=checkout,
        env={**os.environ, "PATH": scripts, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    "page", ["README.md", pytest.param("docs/comparison.md", marks=pytest.mark.slow)]
)
def test_a_link_that_leads_nowhere_fails_the_build(page: str, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(
        ROOT,
        checkout,
        ignore=shutil.ignore_patterns(".*", "build", "__pycache__", "mlruns", "mlflow.db"),
    )
    with (checkout / page).open("a", encoding="utf-8") as file:
        file.write("\n[gone](docs/gone.md)\n")
    done = build(checkout, tmp_path / "site")
    assert done.returncode == 1, done.stderr
    assert [
        line
        for line in done.stderr.splitlines()
        if line.startswith("WARNING") and "gone.md" not in line
    ] == []
    assert done.stderr.count("gone.md") == 1


def words(page: Path) -> str:
    """The text of a page, without its marks."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def rows(page: Path) -> dict[str, str]:
    """The first cell of every row → the whole row. A name that stands twice has both rows."""
    found: dict[str, str] = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page.read_text(), re.DOTALL):
        cells = [
            html.unescape(re.sub(r"<[^>]+>", "", cell))
            for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)
        ]
        if cells:
            found[cells[0]] = found.get(cells[0], "") + " ".join(cells)
    return found


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {
        page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        for page in (ROOT / "docs").rglob("*.md")
    }
    assert {page for page in pages if not (site / page).exists()} == set()
    assert "Replicates are processes" in words(site / "index.html"), "README is its first page"
    assert "A framework" in words(site / "contributing.html")


def test_the_reference_has_every_setting_with_its_meaning(site: Path) -> None:
    shown = rows(site / "reference" / "settings.html")
    kinds = [entries.load(name).settings for name in entries.available()]
    fields = [field for kind in kinds for field in settings.for_users(kind)]
    assert len({field.name for field in fields}) > 100
    missing = {
        field.name
        for field in fields
        if field.metadata["help"].replace("`", "") not in shown.get(field.name, "")
    }
    assert missing == set()
    assert "1 to 10,000" in shown["blocks"]
    assert {
        name
        for name in studies.available()
        for preset in studies.load(name).presets
        if preset not in shown
    } == set()


def test_the_reference_has_every_metric_that_is_judged(site: Path) -> None:
    shown = rows(site / "reference" / "metrics.html")
    for one in (*catalogue.KNOWN, *catalogue.BY_SUFFIX):
        assert one.label in shown[one.metric]
        assert one.kind in shown[one.metric]
    assert "headline" in words(site / "reference" / "metrics.html")


def test_schema_has_every_metric_of_the_catalogue() -> None:
    text = (ROOT / "docs" / "schema.md").read_text()
    assert [metric.metric for metric in catalogue.KNOWN if f"`{metric.metric}`" not in text] == []


def test_links_to_source_code_are_text_and_those_to_pages_stay(site: Path) -> None:
    """The site has no copy of the checkout: a link into it would lead nowhere."""
    reliability = (site / "reliability.html").read_text()
    assert "tracking/limits.py" in words(site / "reliability.html")
    assert 'limits.py"' not in reliability
    assert 'href="server.html' in (site / "index.html").read_text()
    assert 'src="report.png"' in (site / "index.html").read_text()
    assert 'href="security.html"' in (site / "changelog.html").read_text()


REFERENCE_PAGES = ("compare", "contracts", "models")


@pytest.mark.parametrize("page", REFERENCE_PAGES)
def test_reference_example_prints_what_the_page_shows(page: str) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.S)
    code, printed = example
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (printed, "")


def test_reference_describes_every_public_name(site: Path) -> None:
    names = {
        "compare": ["compare", "Result", "figure", "save", "to_frame", "Row"],
        "contracts": ["Study", "Workload", "Treatment", "Prepared", "Task", "Output"],
        "models": [*models.testing.__all__, "Framework", "Batch", "OptimizerConfig"],
    }
    for page in REFERENCE_PAGES:
        html_text = (site / "reference" / f"{page}.html").read_text()
        headings = re.findall(r'<h\d id="([\w.]+)"', html_text)
        last_parts = {heading.rpartition(".")[2] for heading in headings}
        assert set(names[page]) - {"ContractRun", "contract_run"} <= last_parts


@pytest.mark.parametrize(
    ("title", "code", "printed"), SIMULATIONS, ids=[title for title, _, _ in SIMULATIONS]
)
def test_a_simulation_prints_what_the_page_says(title: str, code: str, printed: str) -> None:
    """Seeded, so the shares are those of the page; a point of 4,000 campaigns may move with a library's arithmetic."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    number = r"[-+]?\d+(?:\.\d+)?"
    assert re.sub(number, "#", output.getvalue()) == re.sub(number, "#", printed)
    said = [float(one) for one in re.findall(number, printed)]
    assert [float(one) for one in re.findall(number, output.getvalue())] == pytest.approx(
        said, abs=1.0
    )
