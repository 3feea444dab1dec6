"""Pages of the site that are not files of docs/, and the links between pages."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from experiments import metrics as catalogue
from experiments import studies
from experiments.cli import commands
from experiments.config import settings

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/.

    Args:
        files: Of the site.
        config: Of MkDocs.

    Returns:
        The same files with the pages of `ROOT_PAGES` and the generated reference.
    """
    pages = {
        page: re.sub(r"(\]\()docs/", r"\1", (ROOT / name).read_text(encoding="utf-8"))
        for name, page in ROOT_PAGES.items()
    }
    pages |= {
        "reference/settings.md": render_settings(),
        "reference/metrics.md": render_metrics(),
    }
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links to the pages of `ROOT_PAGES`, and reduce links to source code to their text.

    Args:
        markdown: Source of the page.
        page: Page of the site.
        config: Of MkDocs.
        files: Of the site.

    Returns:
        The source with its final links.
    """
    folder = (Path(config.docs_dir) / page.file.src_uri).parent

    def replace(link: re.Match[str]) -> str:
        target = link["target"]
        if "://" in target or files.get_file_from_path(
            (Path(page.file.src_uri).parent / target).as_posix()
        ):
            return link[0]
        is_root_page = page.file.src_uri in ROOT_PAGES.values()
        path = ROOT / target if is_root_page else (folder / target).resolve()
        if not (path.exists() and path.is_relative_to(ROOT)):
            return link[0]  # a page of docs/, or a broken link: MkDocs warns
        if root_page := ROOT_PAGES.get(path.relative_to(ROOT).as_posix()):
            parents = "../" * page.file.src_uri.count("/")
            return f"[{link['text']}]({parents}{root_page}{link['anchor'] or ''})"
        return link[0] if path.is_relative_to(config.docs_dir) else link["text"]

    return _LINK.sub(replace, markdown)


def render_settings() -> str:
    """Return the page of settings: first those of all experiments, then a section for each."""
    shared = settings.for_users(settings.CampaignSettings)
    shared_by_name = {field.name: field for field in shared}
    parts = [
        "# Settings",
        "Generated from the definitions in the code. `-P NAME=VALUE` with `mlflow run`, "
        "`--NAME VALUE` on the command line.",
        "## Every experiment",
        *_render_groups(shared, settings.CampaignSettings),
    ]
    for name in studies.available():
        study = studies.load(name)
        fields = [
            field
            for field in settings.for_users(study.settings)
            if _differs(field, shared_by_name.get(field.name))
        ]
        parts += [
            f"## {name}",
            study.title,
            *_render_groups(fields, study.settings),
            "Presets:",
            _render_presets(study.presets),
        ]
    for name in commands.available():
        command = commands.load(name)
        fields = settings.for_users(command.settings)
        parts += [f"## {name}", command.title, *_render_groups(fields, command.settings)]
    return "\n\n".join(parts) + "\n"


def _differs(field: dataclasses.Field[Any], shared: dataclasses.Field[Any] | None) -> bool:
    return shared is None or (field.default, field.metadata) != (shared.default, shared.metadata)


def _render_groups(fields: Sequence[dataclasses.Field[Any]], kind: type[Any]) -> Iterator[str]:
    """Yield a titled table for each group of settings.

    Args:
        fields: Settings.
        kind: Dataclass of the settings, with their types.
    """
    hints = typing.get_type_hints(kind)
    header = ("setting", "type", "default", "accepts", "meaning")
    for group in dict.fromkeys(field.metadata["group"] for field in fields):
        rows = [
            _setting_row(field, hints[field.name])
            for field in fields
            if field.metadata["group"] == group
        ]
        yield f"**{group.capitalize()}**\n\n{_render_table(header, rows)}"


def _setting_row(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    rules = field.metadata
    bounds = f"{rules['minimum']:,} to {rules['maximum']:,}" if rules["maximum"] is not None else ""
    choices = ", ".join(f"`{choice}`" if choice else "none" for choice in rules["choices"])
    default = settings.to_text(field.default)
    kind = "PATH" if rules["path"] else _type_name(hint)
    default_cell = f"`{default}`" if default else ""
    return f"`{field.name}`", kind, default_cell, choices or bounds, rules["help"]


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"{_type_name(typing.get_args(hint)[0])},…"
    return {int: "INTEGER", float: "NUMBER", bool: "true|false", str: "TEXT"}[hint]


def _render_presets(presets: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, values in presets.items():
        texts = [f"`{key}={settings.to_text(value)}`" for key, value in values.items()]
        rows.append((f"`{name}`", ", ".join(texts) or "the defaults"))
    return _render_table(("preset", "sets"), rows)


def render_metrics() -> str:
    """Return the page of metrics, in the order of a report, then the rules for all others."""
    header = (
        "metric",
        "meaning",
        "unit",
        "compared as",
        "better",
        "margin",
        "headline of",
        "in MLflow",
    )
    prefixes = ", ".join(f"`{prefix}`" for prefix in catalogue.HIDDEN)
    parts = [
        "# Metrics",
        "Generated from `experiments/metrics.py`: which metrics are judged, and how. A metric "
        "under `inference/` or `inference/batch_N/` is judged like the metric without this "
        "prefix. An empty margin is that of the comparison.",
        _render_table(header, map(_metric_row, catalogue.KNOWN)),
        "## Other metrics",
        "The first pattern that matches a name decides. A name without a match is compared as a "
        "ratio, and neither direction is better.",
        _render_table(header, map(_metric_row, catalogue.PATTERNS)),
        "## Not judged",
        f"Names that begin with one of these are recorded and not judged: {prefixes}.",
    ]
    return "\n\n".join(parts)


def _metric_row(metric: catalogue.Metric) -> tuple[str, ...]:
    margin = "" if metric.margin is None else f"{metric.margin:g}"
    return (
        f"`{metric.metric}`",
        metric.label,
        metric.unit,
        metric.kind,
        metric.better,
        margin,
        metric.headline[0] if metric.headline else "",
        {"plain": "", "milliseconds": "in milliseconds", "no": "hidden"}[metric.shown],
    )


def _render_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
