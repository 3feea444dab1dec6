"""Pages of the site outside docs/: README, CONTRIBUTING, CHANGELOG, and generated reference."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
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
    """Add the pages that are no files of docs/."""
    texts = {
        page: re.sub(r"(\]\()docs/", r"\1", (ROOT / name).read_text(encoding="utf-8"))
        for name, page in ROOT_PAGES.items()
    }
    for page, text in {
        **texts,
        "reference/settings.md": all_settings(),
        "reference/metrics.md": metrics(),
    }.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the pages of `ROOT_PAGES`; a link to source code becomes its text."""
    folder = (Path(config.docs_dir) / page.file.src_uri).parent

    def replace(link: re.Match[str]) -> str:
        target = link["target"]
        if "://" in target or files.get_file_from_path(
            (Path(page.file.src_uri).parent / target).as_posix()
        ):
            return link[0]
        path = (
            ROOT / target
            if page.file.src_uri in ROOT_PAGES.values()
            else (folder / target).resolve()
        )
        if not (path.exists() and path.is_relative_to(ROOT)):
            return link[0]  # a page of docs/, or nothing: MkDocs warns
        if other := ROOT_PAGES.get(path.relative_to(ROOT).as_posix()):
            up = "../" * page.file.src_uri.count("/")
            return f"[{link['text']}]({up}{other}{link['anchor'] or ''})"
        return link[0] if path.is_relative_to(config.docs_dir) else link["text"]

    return _LINK.sub(replace, markdown)


def all_settings() -> str:
    """Return the page of settings: those of all experiments once, then a table for each."""
    common = settings.for_users(settings.CampaignSettings)
    by_name = {field.name: field for field in common}
    parts = [
        "# Settings",
        "Generated from the definitions in the code. `-P NAME=VALUE` with `mlflow run`, "
        "`--NAME VALUE` on the command line.",
        "## Every experiment",
        *_tables(common, settings.CampaignSettings),
    ]
    for name in studies.available():
        study = studies.load(name)
        fields = settings.for_users(study.settings)
        other = [field for field in fields if _differs(field, by_name.get(field.name))]
        parts += [
            f"## {name}",
            study.title,
            *_tables(other, study.settings),
            "Presets:",
            _presets(study.presets),
        ]
    for name, command in {name: commands.load(name) for name in commands.available()}.items():
        parts += [
            f"## {name}",
            command.title,
            *_tables(settings.for_users(command.settings), command.settings),
        ]
    return "\n\n".join(parts) + "\n"


def _differs(field: dataclasses.Field[Any], common: dataclasses.Field[Any] | None) -> bool:
    return common is None or (field.default, field.metadata) != (common.default, common.metadata)


def _tables(fields: Sequence[dataclasses.Field[Any]], kind: type[Any]) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    for group in dict.fromkeys(field.metadata["group"] for field in fields):
        rows = [
            _setting(field, hints[field.name])
            for field in fields
            if field.metadata["group"] == group
        ]
        yield f"**{group.capitalize()}**\n\n" + _table(
            ("setting", "type", "default", "accepts", "meaning"), rows
        )


def _setting(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    rules = field.metadata
    bounds = f"{rules['minimum']:,} to {rules['maximum']:,}" if rules["maximum"] is not None else ""
    accepts = (
        ", ".join(f"`{choice}`" if choice else "none" for choice in rules["choices"]) or bounds
    )
    default = settings.to_text(field.default)
    kind = "PATH" if rules["path"] else _type_name(hint)
    return f"`{field.name}`", kind, f"`{default}`" if default else "", accepts, rules["help"]


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"{_type_name(typing.get_args(hint)[0])},…"
    return {int: "INTEGER", float: "NUMBER", bool: "true|false", str: "TEXT"}[hint]


def _presets(presets: Mapping[str, Mapping[str, Any]]) -> str:
    return _table(
        ("preset", "sets"),
        [
            (
                f"`{name}`",
                ", ".join(f"`{key}={settings.to_text(value)}`" for key, value in values.items())
                or "the defaults",
            )
            for name, values in presets.items()
        ],
    )


def metrics() -> str:
    """Return the page of metrics, in the order of a report, then the rules for all others."""
    header = ("metric", "meaning", "unit", "compared as", "better", "margin", "headline of")
    return "\n\n".join(
        [
            "# Metrics",
            "Generated from `experiments/metrics.py`: which metrics are judged, and how. A metric "
            "under `inference/` or `inference/batch_N/` is judged like the one without this "
            "prefix. An empty margin is that of the comparison.",
            _table(header, map(_metric, catalogue.KNOWN)),
            "## Other metrics",
            "The first pattern that matches a name decides. A name without a match is compared "
            "as a ratio, and neither direction is better.",
            _table(header, map(_metric, catalogue.BY_SUFFIX)),
            "## Not judged",
            "Names that begin with one of these are recorded and not judged: "
            + ", ".join(f"`{prefix}`" for prefix in catalogue.HIDDEN)
            + ".",
        ]
    )


def _metric(metric: catalogue.Metric) -> tuple[str, ...]:
    margin = "" if metric.margin is None else f"{metric.margin:g}"
    return (
        f"`{metric.metric}`",
        metric.label,
        metric.unit,
        metric.kind,
        metric.better,
        margin,
        metric.headline[0] if metric.headline else "",
    )


def _table(header: Sequence[str], rows: Any) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
