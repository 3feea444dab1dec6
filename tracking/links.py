"""Addresses, descriptions and tags that MLflow's UI shows."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

from mlflow.utils.git_utils import get_git_branch, get_git_repo_url
from mlflow.utils.mlflow_tags import (
    MLFLOW_EXPERIMENT_PRIMARY_METRIC_GREATER_IS_BETTER,
    MLFLOW_EXPERIMENT_PRIMARY_METRIC_NAME,
    MLFLOW_GIT_BRANCH,
    MLFLOW_GIT_COMMIT,
    MLFLOW_GIT_DIFF,
    MLFLOW_GIT_DIRTY,
    MLFLOW_GIT_REPO_URL,
    MLFLOW_LOGGED_ARTIFACTS,
    MLFLOW_SOURCE_NAME,
    MLFLOW_SOURCE_TYPE,
    MLFLOW_USER,
)

from tracking import technical
from tracking.provenance import ROOT
from tracking.records import RunKind
from tracking.store import NOTE, Store

# Beginning of the paragraph of an experiment's description that names its newest result.
NEWEST = "Newest result"
# Tag of an experiment by which the UI shares the columns and charts of its list of runs.
VIEWS, OUR_VIEW = "mlflow.sharedViewState.", "evenhand"
# Order by which the UI lists the runs of a campaign one by one, the newest first, instead of
# folded below it: all have the same source.
FLAT = "tags.`mlflow.source.name`"
# Without this the UI opens its view for language models.
MODEL_TRAINING = "workflowType=machine_learning"


def describe_experiment(
    store: Store, name: str, text: str = "", newest: str = "", *, replace: bool = True
) -> None:
    """Set the description of an experiment in the UI: a text and, below it, the newest result.

    Args:
        text: Used only if the experiment has no text yet.
        replace: Whether `newest` takes the place of an earlier result.
    """
    note = store.experiment_tags(name).get(NOTE, "")
    paragraphs = [paragraph for paragraph in note.split("\n\n") if paragraph]
    results = [paragraph for paragraph in paragraphs if paragraph.startswith(NEWEST)]
    texts = [paragraph for paragraph in paragraphs if paragraph not in results] or [text]
    if newest and (replace or not results):
        results = [newest]
    store.tag_experiment(name, {NOTE: "\n\n".join(filter(None, [*texts, *results]))})


def share_view(
    store: Store,
    name: str,
    columns: Sequence[str],
    charts: Sequence[str],
    kind: RunKind,
    *,
    greater_is_better: bool = False,
) -> str:
    """Return the UI's address of an experiment's runs of one kind.

    Args:
        columns: Such as `tags.X`, `params.X`, `metrics.X`.
        charts: Metrics with which the charts begin; the first is the experiment's primary metric.
        greater_is_better: Of the primary metric.
    """
    parts = [column.split(".", 1) for column in columns]
    chart = {"type": "BAR", "metricSectionId": OUR_VIEW, "runsCountToCompare": 20}
    prefixes = dict.fromkeys(key.rpartition("/")[0] for key in charts)
    sections = [(OUR_VIEW, "primary outcomes"), *zip(prefixes, prefixes, strict=True)]
    state = {
        "searchFilter": f"tags.kind = '{kind}'",
        "orderByKey": FLAT,
        "orderByAsc": True,
        "selectedColumns": [f"{kind}.`{key}`" for kind, key in parts],
        "compareRunCharts": [
            {**chart, "uuid": key, "metricKey": key, "displayName": key} for key in charts
        ],
        "compareRunSections": [
            {"uuid": key, "name": title, "display": True} for key, title in sections
        ],
        "isAccordionReordered": True,
    }
    tags = {f"{VIEWS}{OUR_VIEW}": json.dumps(state)}
    if charts:
        tags[MLFLOW_EXPERIMENT_PRIMARY_METRIC_NAME] = charts[0]
        tags[MLFLOW_EXPERIMENT_PRIMARY_METRIC_GREATER_IS_BETTER] = str(greater_is_better)
    store.tag_experiment(name, tags)
    place = f"#/experiments/{store.experiment_id(name)}/runs"
    return f"{place}?viewStateShareKey={OUR_VIEW}&{MODEL_TRAINING}"


def page(store: Store, experiment: str, run_id: str) -> str:
    """Return the address of a run for a browser, or the command that opens the UI first."""
    place = link(store, experiment, run_id)
    if store.uri.startswith("http"):
        return f"{store.uri}/{place}"
    command = f"mlflow ui --backend-store-uri {store.uri}"
    return f"{command}   then open   http://127.0.0.1:5000/{place}"


def link(store: Store, experiment: str, run_id: str) -> str:
    """Return the address of a run in the UI, below the server's."""
    return f"#/experiments/{store.experiment_id(experiment)}/runs/{run_id}?{MODEL_TRAINING}"


def address(uri: str, run_id: str) -> str:
    """Return the address of a run by its id, without a password; empty without a server."""
    parts = urlsplit(uri)
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    return f"{place}/#/runs/{run_id}" if parts.scheme.startswith("http") else ""


def list_of(store: Store, experiment: str, run_id: str) -> str:
    """Return the UI's address, below the server's, of the list of a campaign's runs."""
    condition = quote(f"tags.campaign = '{run_id}'")
    place = f"#/experiments/{store.experiment_id(experiment)}/runs?searchFilter={condition}"
    return f"{place}&orderByKey={quote(FLAT)}&orderByAsc=true&{MODEL_TRAINING}"


def source(
    entry_point: str, commit: str, changes: str = "", folder: Path | None = None
) -> dict[str, str]:
    """Return the tags of the UI's columns `Created by` and `Source`, and of the code's version.

    Args:
        entry_point: Name of the study or command.
        commit: Of `provenance.commit()`.
        changes: What differs from the commit, of which the beginning is recorded.
        folder: Of the code; None: this project.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    tags = {
        MLFLOW_USER: user,
        MLFLOW_SOURCE_NAME: f"evenhand {entry_point}",
        MLFLOW_SOURCE_TYPE: "PROJECT" if "MLFLOW_RUN_ID" in os.environ else "LOCAL",
    }
    if not commit:
        return tags
    head, _, digest = commit.partition("+")
    optional = {
        MLFLOW_GIT_BRANCH: get_git_branch(str(folder or ROOT)),
        MLFLOW_GIT_REPO_URL: get_git_repo_url(str(folder or ROOT)),  # without a password
        MLFLOW_GIT_DIFF: changes[: technical.CHARACTERS],
    }
    tags |= {MLFLOW_GIT_COMMIT: head, MLFLOW_GIT_DIRTY: str(bool(digest)).lower()}
    return tags | {name: text for name, text in optional.items() if text}


def table_tag(path: str) -> dict[str, str]:
    """Return the tag by which the UI shows an artifact of `log_table`'s format as a table."""
    return {MLFLOW_LOGGED_ARTIFACTS: json.dumps([{"path": path, "type": "table"}])}


def schema(columns: Mapping[str, str]) -> str:
    """Return MLflow's JSON of a data set's columns, for the UI.

    Args:
        columns: MLflow's data type by the name of the column.
    """
    entries = [{"type": kind, "name": name, "required": True} for name, kind in columns.items()]
    return json.dumps({"mlflow_colspec": entries})
