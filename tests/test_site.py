"""Documentation as a site: built without a warning, complete reference, right simulations."""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built by the documented command, which fails on broken links."""
    folder = tmp_path_factory.mktemp("site")
    (command,) = {
        command.words
        for command in documented.commands()
        if command.words[:2] == ("mkdocs", "build")
    }
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": scripts, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--strict" in command
    return folder


def words(page: Path) -> str:
    """Return the text of a page, without its marks."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def rows(page: Path) -> dict[str, str]:
    """Return the text of rows by their first cell; a name in two rows has both."""
    texts: dict[str, str] = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page.read_text(), re.DOTALL):
        cells = [
            html.unescape(re.sub(r"<[^>]+>", "", cell))
            for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)
        ]
        if cells:
            texts[cells[0]] = texts.get(cells[0], "") + " ".join(cells)
    return texts


def test_site_has_every_page(site: Path) -> None:
    pages = {
        page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        for page in (ROOT / "docs").rglob("*.md")
    }
    assert {page for page in pages if not (site / page).exists()} == set()
    assert "Replicates are processes" in words(site / "index.html"), "README is its first page"
    assert "A framework" in words(site / "contributing.html")


def test_reference_has_every_setting(site: Path) -> None:
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


def test_reference_has_every_metric(site: Path) -> None:
    shown = rows(site / "reference" / "metrics.html")
    for metric in (*catalogue.KNOWN, *catalogue.PATTERNS):
        assert metric.label in shown[metric.metric]
        assert metric.kind in shown[metric.metric]
    assert "headline" in words(site / "reference" / "metrics.html")


def test_schema_has_every_metric_of_the_catalogue() -> None:
    text = (ROOT / "docs" / "schema.md").read_text()
    assert [metric.metric for metric in catalogue.KNOWN if f"`{metric.metric}`" not in text] == []


def test_links_to_source_code_become_text(site: Path) -> None:
    """Keep links to pages: the site has no copy of the checkout."""
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
        "models": ["Framework", "Batch", "OptimizerConfig"],
    }
    for page in REFERENCE_PAGES:
        html_text = (site / "reference" / f"{page}.html").read_text()
        headings = re.findall(r'<h\d id="([\w.]+)"', html_text)
        last_parts = {heading.rpartition(".")[2] for heading in headings}
        assert set(names[page]) <= last_parts


@pytest.mark.parametrize(
    ("title", "code", "printed"), SIMULATIONS, ids=[title for title, _, _ in SIMULATIONS]
)
def test_simulation_prints_the_output_of_the_page(title: str, code: str, printed: str) -> None:
    """Compare numbers within a point: a library's arithmetic may move one of 4,000 campaigns."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    number = r"[-+]?\d+(?:\.\d+)?"
    assert re.sub(number, "#", output.getvalue()) == re.sub(number, "#", printed)
    results, expected = (
        [float(text) for text in re.findall(number, source)]
        for source in (output.getvalue(), printed)
    )
    assert results == pytest.approx(expected, abs=1.0)
