"""The captioning study from the command line to the tracking store, with real frameworks and a real store."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments.config import settings as settings_
from experiments.datasets.captions import index
from experiments.studies import captioning
from experiments.workloads import served
from experiments.workloads.captioning import samples
from tests.conftest import Place, titled, toy_costs, wait_for
from tracking.records import JIT_COMPILE, JIT_PLANNED, StoredRun
from tracking.store import Store


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, empty_store: Path
) -> tuple[Place, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("campaign")
    shutil.copy(empty_store, folder / "mlflow.db")
    (shared_cache / "parity").mkdir(exist_ok=True)
    (
        folder / "cache"
    ).mkdir()  # of its own, so that the features are extracted here; what is proven once is proven
    (folder / "cache" / "parity").symlink_to(shared_cache / "parity")
    place = Place(folder, folder / "cache", f"sqlite:///{folder}/mlflow.db")
    return place, place.run(blocks="1", inference_requests="80", team="vision", figures="true")


@pytest.fixture(scope="module")
def runs(finished: tuple[Place, subprocess.CompletedProcess[str]]) -> dict[str, StoredRun]:
    return {titled(run): run for run in Store(finished[0].uri).runs("captioning")}


def artifact(place: Place, run: StoredRun, name: str) -> Path:
    """MLflow's default store keeps artifacts below the working folder."""
    return next(place.folder.glob(f"mlruns/*/{run.run_id}/artifacts/{name}"))


def test_a_block_ends_without_a_verdict_and_says_so(
    finished: tuple[Place, subprocess.CompletedProcess[str]],
) -> None:
    _, done = finished
    assert done.returncode == 3, done.stdout + done.stderr
    assert "a verdict needs 6" in done.stdout
    assert "RANDOM weights" in done.stdout
    assert "report.html" in done.stdout
    assert "mlflow ui --backend-store-uri sqlite:" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_all_runs_finished(runs: dict[str, StoredRun]) -> None:
    campaign = runs["captioning demo"]
    settings = r"images=40, image_size=32, batch_size=8, \d+ more"
    assert re.fullmatch(rf"captioning demo · {settings} · [\d-]+ [\d:]+", campaign.name)
    cells = [run for run in runs.values() if run.tags["kind"] == "cell"]
    for run in runs.values():
        assert run.status == "FINISHED"
        assert run is campaign or run.tags["campaign"] == campaign.run_id
        assert run.tags["team"] == "vision"
        assert len(run.tags["machine"]) == 8
        assert run.tags["version.torch"].startswith("2.")
    for run in cells:
        name = rf"{run.tags['treatment']} · block {run.tags['block']} · {settings}"
        assert re.fullmatch(name, run.name)
    assert len({run.tags["settings_hash"] for run in cells}) == 1


def test_every_setting_is_a_param_of_every_cell(runs: dict[str, StoredRun]) -> None:
    wanted = set(settings_.as_text(captioning.Settings())) - settings_.silent(captioning.Settings)
    empty = {
        "team",
        "primary",
        "partition",
        "gres",
        "vary",
        "pythons",
    }  # MLflow keeps no empty text
    for run in runs.values():
        assert wanted - set(run.params) <= empty
    assert runs["tensorflow · block 1"].params["framework"] == "tensorflow"
    assert runs["tensorflow · block 1"].params["formulation"] == "sequence"


def test_both_frameworks_log_the_same_keys(runs: dict[str, StoredRun]) -> None:
    """What both log, apart from what names one of them, is the same; and what the reader is promised is among it."""
    a, b = runs["pytorch · block 1"], runs["tensorflow · block 1"]
    # What ends between two readings of the sensors has none, and says so.
    windows = {f"not_available.{prefix}sensors": f"{prefix}cpu/" for prefix in ("", "inference/")}
    unread = {tag: sensed for tag, sensed in windows.items() if tag in a.tags or tag in b.tags}
    now_and_then = ("live/", "inference/memory/", *unread.values())
    assert {name for name in a.metrics if not name.startswith(now_and_then)} == {
        name for name in b.metrics if not name.startswith(now_and_then)
    }
    for run, (tag, sensed) in itertools.product((a, b), windows.items()):
        assert (tag in run.tags) != any(name.startswith(sensed) for name in run.metrics), (
            "read, or said that it was not"
        )
    assert "cpu/utilization_percent_mean" in b.metrics, (
        "TensorFlow's first step alone, which is traced, takes several readings"
    )
    assert set(a.params) == set(b.params)
    of_tensorflow = {JIT_COMPILE, JIT_PLANNED}
    assert set(a.tags) - set(unread) == set(b.tags) - set(unread) - of_tensorflow
    wanted = {
        "model/trainable_parameters",
        "train/step_seconds",
        "train/first_step_seconds",
        "train/total_seconds",
        "train/examples_per_second",
        "train/images_per_second",
        "train/loss",
        "val/loss",
        *(f"val/bleu{n}" for n in range(1, 5)),
        "inference/latency_seconds_p50",
        "inference/latency_seconds_p95",
        "inference/first_call_seconds",
        "inference/batch_8/latency_seconds_p50",
        "memory/peak_rss_bytes",
        "system/cpu_utilization_percentage",
        "system/process_rss_megabytes",
    }
    assert wanted <= set(a.metrics)
    assert "inference/latency_seconds_p99" not in a.metrics, "80 requests do not earn a p99"


def test_both_frameworks_start_from_the_same_function(runs: dict[str, StoredRun]) -> None:
    a, b = (runs[f"{name} · block 1"].metrics for name in ("pytorch", "tensorflow"))
    assert b["check/initial_loss"] == pytest.approx(a["check/initial_loss"], rel=1e-5)


def test_extraction_is_a_run_of_its_own_and_both_frameworks_see_the_same(
    finished: tuple[Place, subprocess.CompletedProcess[str]], runs: dict[str, StoredRun]
) -> None:
    assert (
        runs["features · pytorch"].metrics["features/images"]
        == runs["features · tensorflow"].metrics["features/images"]
        == 40
    )
    arrays = [np.load(path) for path in finished[0].cache.glob("features/*/features.npy")]
    same = [array for array in arrays if array.shape == (40, 1_920)]
    assert len(same) >= 2
    difference = np.linalg.norm(same[0] - same[1]) / np.linalg.norm(same[0])
    assert difference < 1e-4  # float32 through 201 layers; the parity tests prove 1e-12 in float64


def test_raw_values_and_environment_are_kept(
    finished: tuple[Place, subprocess.CompletedProcess[str]], runs: dict[str, StoredRun]
) -> None:
    place, _ = finished
    run = runs["pytorch · block 1"]
    values = pd.read_parquet(artifact(place, run, "values.parquet"))
    assert list(values) == ["phase", "step", "seconds", "examples", "warmup", "ended_ms"]
    training = values[values.phase == "train"]
    assert len(training) == 8  # 2 epochs of 4 steps
    steady = training[~training.warmup]
    assert run.metrics["train/step_seconds"] == pytest.approx(steady.seconds.median())
    assert run.metrics["train/examples_per_second"] == pytest.approx(
        steady.examples.sum() / steady.seconds.sum()
    )
    environment = json.loads(artifact(place, run, "environment.json").read_text())
    assert environment["packages"]["torch"].startswith("2.")
    assert environment["machine"]["cores"] >= 1


def test_samples_show_their_pictures(
    finished: tuple[Place, subprocess.CompletedProcess[str]], runs: dict[str, StoredRun]
) -> None:
    place, _ = finished
    page = artifact(place, runs["tensorflow · block 1"], "captions.html").read_text()
    assert page.count("data:image/png;base64,") >= 4
    assert "http" not in page


def test_the_report_is_an_artifact_of_the_campaign(
    finished: tuple[Place, subprocess.CompletedProcess[str]], runs: dict[str, StoredRun]
) -> None:
    place, _ = finished
    campaign = runs["captioning demo"]
    report = artifact(place, campaign, "report.html").read_text()
    assert "RANDOM weights" in report
    told = json.loads(artifact(place, campaign, "comparison.json").read_text())
    assert told["schema_version"] == 1
    assert {row["verdict"] for row in told["rows"]} <= {
        "inconclusive",
        "not comparable",
        "deterministic",
    }
    assert "RANDOM weights" in campaign.tags["warnings"]
    assert "Found" in campaign.tags["mlflow.note.content"]


def test_the_dataset_is_an_mlflow_input(
    finished: tuple[Place, subprocess.CompletedProcess[str]], runs: dict[str, StoredRun]
) -> None:
    used = (
        Store(finished[0].uri)
        ._client.get_run(runs["pytorch · block 1"].run_id)
        .inputs.dataset_inputs
    )
    assert [one.dataset.name for one in used] == ["scenes"]
    assert json.loads(used[0].dataset.schema)["mlflow_colspec"]
    assert used[0].tags[0].value == "training"


def with_packages_called_as_ours(place: Place, folder: Path) -> dict[str, str]:
    """The environment of an application that has them, and nothing of this checkout."""
    for package in ("models", "experiments"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("MINE = True\n")
    return {**place.environment, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_logged_captioner_says_what_it_is(
    finished: tuple[Place, subprocess.CompletedProcess[str]],
    runs: dict[str, StoredRun],
    framework: str,
) -> None:
    """Its name, the settings and the quality of its run, the data that these were measured on, and what it takes."""
    client = Store(finished[0].uri)._client
    run = client.get_run(runs[f"{framework} · block 1"].run_id)
    model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
    assert model.name == f"captioner-{framework}-block1"
    assert model.params == run.data.params
    quality = {
        key: value
        for key, value in run.data.metrics.items()
        if key.startswith(("val/", "train/loss", "model/"))
    }
    assert {metric.key: metric.value for metric in model.metrics} == quality
    assert {metric.dataset_name for metric in model.metrics} == {"scenes"}
    assert framework in model.tags["mlflow.note.content"]
    signature = mlflow.models.get_model_info(model.model_uri).signature
    assert [(column.name, column.type.name, column.required) for column in signature.inputs] == [
        ("image", "string", False),
    ]
    assert signature.outputs.input_names() == ["caption", "error"]


def test_a_captioner_is_served(
    finished: tuple[Place, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    place, _ = finished
    environment = with_packages_called_as_ours(place, tmp_path)
    model = next(
        one for one in Store(place.uri)._client.search_logged_models(["1"]) if "pytorch" in one.name
    )
    Image.new("RGB", (50, 40), "navy").save(tmp_path / "picture.png")
    content = base64.b64encode((tmp_path / "picture.png").read_bytes()).decode()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        model.model_uri,
        "--env-manager",
        "local",
        "-p",
        str(port),
    ]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    (example,) = place.folder.glob(
        f"mlruns/*/models/{model.model_id}/artifacts/serving_input_example.json"
    )
    try:
        wait_for(lambda: server.poll() is None and answer(port, "ping")[0] == 200, 240)
        errors = {
            content: "",
            "bm8gcGljdHVyZQ==": "image: not an image",
            "abc": "image: no base64",
            None: served.NO_PICTURE,
        }
        for body in (
            {"dataframe_records": [{"image": image} for image in errors]},
            {"dataframe_split": {"columns": ["image"], "data": [[image] for image in errors]}},
            {"instances": [{"image": image} for image in errors if image]},
        ):
            status, text = answer(port, "invocations", body)
            assert status == 200, text
            predictions = json.loads(text)["predictions"]
            assert [row["error"] for row in predictions] == list(errors.values())[
                : len(predictions)
            ]
            assert [bool(row["caption"]) for row in predictions] == [
                not row["error"] for row in predictions
            ]
        status, text = answer(port, "invocations", json.loads(example.read_text()))
        assert [row["error"] for row in json.loads(text)["predictions"]] == [""], text
        paths = {"dataframe_records": [{"path": "/etc/passwd"}]}
        status, text = answer(port, "invocations", paths)
        assert [row["error"] for row in json.loads(text)["predictions"]] == [served.NO_PICTURE]
        status, told = answer(port, "invocations", {})
        assert (status, "Traceback" in told, 'File "' in told) == (400, False, False), told
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answer(port: int, place: str, body: object = None) -> tuple[int, str]:
    """Status and text of a server's answer; 0 where nothing listens yet."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{place}", data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Table(HTMLParser):
    """Texts of a page's table, row by row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1][-1] += data


def count_captions(place: Place, frameworks: str, seed: int) -> dict[str, tuple[int, int]]:
    """Train as the demo does, and count the captions of the pictures that it shows.

    Returns:
        By framework: number of different captions, and of those that are a reference.
    """
    # few requests, on a machine that need not be idle
    options = {
        "cache": str(place.cache),
        "journal": str(place.journal),
        "seed": str(seed),
        "frameworks": frameworks,
        "blocks": "1",
        "inference_requests": "2",
        "save_model": "none",
        "figures": "false",
        "threads": "1",
        "others_limit_percent": "100",
    }
    flags = (f"--{name}={text}" for name, text in options.items())
    done = place.call(sys.executable, "-m", "experiments", "captioning", *flags)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    data = index("scenes", cache=place.cache, seed=seed, images=captioning.Settings().images)
    images = np.unique(data.caption_image[data.captions_of("validation")])[: samples.COUNT]
    counts = {}
    query = f"tags.kind = 'cell' and params.seed = '{seed}'"
    for run in Store(place.uri).runs("captioning", query):
        head, *rows = Table(artifact(place, run, "captions.html").read_text()).rows
        captions = [row[head.index("greedy")] for row in rows]
        right = sum(
            caption in data.references(int(image))
            for caption, image in zip(captions, images, strict=True)
        )
        counts[run.tags["framework"]] = (len(set(captions)), right)
    return counts


# A caption names one of five colours and one of three places: of eight pictures, the same caption
# is right for half a picture on average (1 of 15).
DIFFERENT, RIGHT = 3, 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_captions_of_the_demo_follow_the_pictures(place: Place) -> None:
    ((different, right),) = count_captions(place, "pytorch", 0).values()
    assert different >= DIFFERENT, "the captions are the same sentence"
    assert right >= RIGHT


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_captions_of_both_frameworks_follow_the_pictures(place: Place, seed: int) -> None:
    counts = count_captions(place, "pytorch,tensorflow", seed)
    print(f"seed {seed}, {samples.COUNT} pictures: different and right captions {counts}")
    assert set(counts) == {"pytorch", "tensorflow"}
    assert min(different for different, _ in counts.values()) >= DIFFERENT
    assert min(right for _, right in counts.values()) >= RIGHT


def test_interrupted_extraction_continues(tmp_path: Path, place: Place) -> None:
    own = replace(place, cache=tmp_path / "cache")

    def extract() -> list[StoredRun]:
        """Run a campaign; return all extractions, the newest first."""
        done = own.run(blocks="1", frameworks="toy", epochs="1", inference_requests="2")
        assert done.returncode == 3, done.stdout + done.stderr
        runs = Store(own.uri).runs("captioning", "tags.kind = 'extraction'")
        return sorted(runs, key=lambda run: -run.start_ms)

    (first,) = extract()
    folder = own.cache / "features" / first.tags["features"]
    whole = np.load(folder / "features.npy")
    assert whole.std() > 0
    torn = np.lib.format.open_memmap(folder / "features.npy", mode="r+")
    torn[32:] = -1
    torn.flush()
    (folder / "done").write_text("32")
    (folder / "complete").unlink()
    runs = extract()
    assert [run.metrics["features/images"] for run in runs] == [8, 40]
    np.testing.assert_array_equal(np.load(folder / "features.npy"), whole)


def test_two_campaigns_side_by_side_extract_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in toy_costs(infer=1.5).items():  # long enough to meet
        monkeypatch.setenv(name, text)
    place = replace(place, cache=tmp_path / "cache")
    options = {
        "blocks": "1",
        "frameworks": "toy",
        "data": "scenes",
        "epochs": "1",
        "inference_requests": "2",
    }
    processes = [place.begin(*place.command("captioning", **options)) for _ in range(2)]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [3, 3], outputs
    extractions = list(Store(place.uri).runs("captioning", "tags.kind = 'extraction'"))
    assert sorted(run.metrics["features/images"] for run in extractions) == [0, 40]
    assert {run.status for run in extractions} == {"FINISHED"}
    (features,) = (np.load(path) for path in place.cache.glob("features/*/features.npy"))
    assert (features.std(axis=0) > 0).all()
    # the toy's features repeat the brightness of a picture
    assert (features.std(axis=1) < 1e-6).all()


def test_synthetic_data_time_the_papers_decoder(place: Place) -> None:
    done = place.run(
        preset="flickr8k-paper",
        data="synthetic",
        blocks="1",
        epochs="1",
        frameworks="toy",
        inference_batch_sizes="1",
    )
    assert done.returncode == 3, done.stdout + done.stderr
    run = next(run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell")
    assert run.metrics["model/trainable_parameters"] == 4_316_709
    assert "losses and BLEU mean nothing" in done.stdout
