"""The captioning study from the command line to the tracking store, with real frameworks and a real store."""

from __future__ import annotations

import base64
import io
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
from collections.abc import Mapping
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
from tests.models.children import run_in
from tracking.records import JIT_COMPILE, JIT_PLANNED, StoredRun
from tracking.store import Store

# The model's own copy of the code, in an application that has packages called as ours are.


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
def blocks(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, empty_store: Path
) -> dict[str, StoredRun]:
    """The runs of two blocks of frameworks that cost nothing."""
    folder = tmp_path_factory.mktemp("blocks")
    shutil.copy(empty_store, folder / "mlflow.db")
    place = Place(folder, shared_cache, f"sqlite:///{folder}/mlflow.db")
    done = place.run(
        blocks="2",
        frameworks="toy,toy+twin",
        team="vision",
        data="synthetic",
        vocabulary="60",
        length="8",
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "2 blocks: no comparison; a verdict needs 6" in done.stdout
    return {titled(run): run for run in Store(place.uri).runs("captioning")}


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


def test_every_block_holds_every_framework_once_and_draws_weights_of_its_own(
    blocks: Mapping[str, StoredRun],
) -> None:
    cells = [run for run in blocks.values() if run.tags["kind"] == "cell"]
    assert sorted((run.tags["framework"], run.tags["block"]) for run in cells) == [
        ("toy", "1"),
        ("toy", "2"),
        ("toy+twin", "1"),
        ("toy+twin", "2"),
    ]
    losses = [blocks[f"toy · block {block}"].metrics["check/initial_loss"] for block in (1, 2)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("of", ["runs", "blocks"])
def test_all_runs_finished(of: str, request: pytest.FixtureRequest) -> None:
    runs: Mapping[str, StoredRun] = request.getfixturevalue(of)
    campaign = runs["captioning demo"]
    told = {
        "runs": "images=40, image_size=32, batch_size=8",
        "blocks": "data=synthetic, images=40, image_size=32",
    }
    assert re.fullmatch(
        rf"captioning demo · {told[of]}, \d+ more · \d{{4}}-\d\d-\d\d \d\d:\d\d", campaign.name
    ), campaign.name
    for run in runs.values():
        assert run.status == "FINISHED"
        assert run is campaign or run.tags["campaign"] == campaign.run_id
        assert run.tags["team"] == "vision"
        assert len(run.tags["machine"]) == 8
        assert run.tags["version.torch"].startswith("2.")
        if run.tags["kind"] == "cell":
            treatment, block, apart = run.name.split(" · ")
            assert (treatment, block) == (run.tags["treatment"], f"block {run.tags['block']}")
            assert re.fullmatch(rf"{told[of]}, \d+ more", apart), (
                "cells of another campaign have other settings"
            )
    assert (
        len({run.tags["settings_hash"] for run in runs.values() if run.tags["kind"] == "cell"}) == 1
    )


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
    """The loss before any step, dropout off: equal to float32's rounding over a vocabulary's sum (about 1e-6)."""
    a, b = (
        runs[f"{name} · block 1"].metrics["check/initial_loss"]
        for name in ("pytorch", "tensorflow")
    )
    assert b == pytest.approx(a, rel=1e-5)


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
    sheet = Image.open(
        io.BytesIO(artifact(place, runs["tensorflow · block 1"], "captions.png").read_bytes())
    )
    assert sheet.size[1] > 4 * 160


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


CAPTIONED = """
import sys
from pathlib import Path
import pandas as pd
from PIL import Image
from experiments.workloads.captioning.captioner import _load_pyfunc
picture = Path(sys.argv[2])
Image.new("RGB", (50, 40), "navy").save(picture)
model = _load_pyfunc(sys.argv[1])
of_bytes = model.predict(pd.DataFrame({"image": [picture.read_bytes(), b"no picture"]}))
of_path = model.predict(pd.DataFrame({"path": [str(picture), "/nowhere.png"]}))
assert list(of_bytes["error"]) == ["", "image: not an image"], of_bytes
assert list(of_path["error"]) == ["", "path: missing"], of_path
assert of_bytes["caption"][0] == of_path["caption"][0] != "", of_bytes
"""


def test_tensorflows_captioner_captions_pictures(
    finished: tuple[Place, subprocess.CompletedProcess[str]],
    runs: dict[str, StoredRun],
    tmp_path: Path,
) -> None:
    """From bytes and from files; PyTorch's is served below, and both are loaded in fresh processes if slow."""
    place, _ = finished
    run = Store(place.uri)._client.get_run(runs["tensorflow · block 1"].run_id)
    (kept,) = place.folder.glob(
        f"mlruns/*/models/{run.outputs.model_outputs[0].model_id}/artifacts/data/captioner/captioner.json"
    )
    run_in("tensorflow", "-c", CAPTIONED, str(kept.parent), str(tmp_path / "picture.png"))


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
        ("path", "string", False),
    ]
    assert signature.outputs.input_names() == ["caption", "error"]


def test_a_captioner_is_served(
    finished: tuple[Place, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """As docs/serving.md has it, with curl's own request; what is no picture is told in a line, without our stack trace.

    Packages of the application that are called as ours stay out, and MLflow's example of a request is answered.
    """
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
        rows = [{"image": content}, {"image": "bm8gcGljdHVyZQ=="}, {"image": "===!"}]
        status, told = answer(port, "invocations", {"dataframe_records": rows})
        assert status == 200, told
        predictions = json.loads(told)["predictions"]
        assert [one["error"] for one in predictions] == ["", "image: not an image", "image: empty"]
        for form, body, errors in served_together(content):
            status, told = answer(port, "invocations", body)
            assert status == 200, (form, told)
            assert [one["error"] for one in json.loads(told)["predictions"]] == errors, form
            captions = [one["caption"] for one in json.loads(told)["predictions"]]
            assert [bool(caption) for caption in captions] == [not error for error in errors], form
        status, told = answer(port, "invocations", json.loads(example.read_text()))
        assert [one["error"] for one in json.loads(told)["predictions"]] == [""], told
        paths = [
            str(tmp_path / "picture.png"),
            str(tmp_path / "nowhere.png"),
            str(tmp_path),
            "picture.png",
            "/etc/passwd",
        ]
        status, told = answer(
            port, "invocations", {"dataframe_records": [{"path": path} for path in paths]}
        )
        refused = {one["error"] for one in json.loads(told)["predictions"]}
        assert refused == {f"path: {served.NO_SUCH_PATH}"}, "a client learns what is on the server"
        status, told = answer(port, "invocations", {"dataframe_records": [{"picture": content}]})
        assert json.loads(told)["predictions"][0]["error"].startswith(
            "no picture: send its bytes in image"
        )
        status, told = answer(port, "invocations", {})
        assert (status, "Traceback" in told, 'File "' in told) == (400, False, False), told
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def served_together(content: str) -> list[tuple[str, object, list[str]]]:
    """Requests whose rows send different things, each with the errors of its rows: one row spoils no other."""
    refused = f"path: {served.NO_SUCH_PATH}"
    nothing = "no picture: send its bytes in image (base64 in JSON), or a path in path where this server allows it"
    odd = [
        {"image": content},
        {"image": None},
        {"image": 5},
        {"image": [content]},
        {"image": "abc"},
        {"image": True},
        {},
    ]
    return [
        ("records", {"dataframe_records": [{"image": content}, {"path": "/x.png"}]}, ["", refused]),
        (
            "null",
            {"dataframe_records": [{"image": None}, {"image": content, "path": None}]},
            [nothing, ""],
        ),
        ("only null", {"dataframe_records": [{"image": None}]}, [nothing]),
        ("odd", {"dataframe_records": odd}, ["", nothing, *["image: no base64"] * 4, nothing]),
        (
            "numbers",
            {"dataframe_records": [{"image": content}, {"path": 7}]},
            ["", "path: no text"],
        ),
        (
            "split",
            {
                "dataframe_split": {
                    "columns": ["image", "path"],
                    "data": [[content, None], [None, "/x"]],
                }
            },
            ["", refused],
        ),
        (
            "instances",
            {"instances": [{"image": content}, {"image": "abc"}]},
            ["", "image: no base64"],
        ),
    ]


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
    """The texts of a page's table, row by row."""

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


def captioned(place: Place, frameworks: str, seed: int) -> dict[str, tuple[int, int]]:
    """Of the eight held-out pictures that the demo shows: framework -> different captions, and those that are one of its five."""
    own = [
        f"--cache={place.cache}",
        f"--journal={place.journal}",
        f"--seed={seed}",
        f"--frameworks={frameworks}",
    ]
    few = [
        "--blocks=1",
        "--inference_requests=2",
        "--save_model=none",
        "--figures=false",
    ]  # of what the demo does besides
    own += [
        "--threads=1",
        "--others_limit_percent=100",
    ]  # the machine that tests run on need not be free
    done = place.call(sys.executable, "-m", "experiments", "captioning", *own, *few)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    data = index("scenes", cache=place.cache, seed=seed, images=captioning.Settings().images)
    shown = np.unique(data.caption_image[data.captions_of("validation")])[: samples.COUNT]
    found = {}
    for run in Store(place.uri).runs(
        "captioning", f"tags.kind = 'cell' and params.seed = '{seed}'"
    ):
        head, *rows = Table(artifact(place, run, "captions.html").read_text()).rows
        answers = [row[head.index("greedy")] for row in rows]
        right = sum(
            answer in data.references(int(image))
            for answer, image in zip(answers, shown, strict=True)
        )
        found[run.tags["framework"]] = (len(set(answers)), right)
    return found


# A caption names a colour of five, a ground or a place of three: whoever writes one sentence has 1 of 15 right, half a picture.
DIFFERENT, RIGHT = 3, 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_captions_of_the_demo_follow_the_pictures(place: Place) -> None:
    """Trained as the demo is, one framework and seed; the next has more."""
    ((different, right),) = captioned(place, "pytorch", 0).values()
    assert different >= DIFFERENT, "the captions are the same sentence"
    assert right >= RIGHT


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_captions_of_the_demo_follow_the_pictures_in_both_frameworks_whatever_the_seed(
    place: Place,
) -> None:
    for seed in (1, 2, 3):
        found = captioned(place, "pytorch,tensorflow", seed)
        print(
            f"seed {seed}: of {samples.COUNT} pictures, different captions and right ones: {found}"
        )
        assert set(found) == {"pytorch", "tensorflow"}
        assert min(different for different, _ in found.values()) >= DIFFERENT
        assert min(right for _, right in found.values()) >= RIGHT


def test_an_interrupted_extraction_continues_where_it_was_and_nothing_is_extracted_twice(
    tmp_path: Path, place: Place
) -> None:
    own = replace(place, cache=tmp_path / "cache")

    def extracted() -> list[StoredRun]:
        """Runs of extractions of one more campaign, the newest first."""
        done = own.run(blocks="1", frameworks="toy", epochs="1", inference_requests="2")
        assert done.returncode == 3, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        found = [
            run for run in Store(own.uri).runs("captioning") if run.tags["kind"] == "extraction"
        ]
        assert ("features ·" in done.stdout) == (len(found) > len(known))
        return sorted(found, key=lambda run: -run.start_ms)

    known = list[StoredRun]()
    known = extracted()
    assert [run.metrics["features/images"] for run in known] == [40]
    entry = own.cache / "features" / known[0].tags["features"]
    whole = np.load(entry / "features.npy")
    assert whole.std() > 0
    torn = np.lib.format.open_memmap(entry / "features.npy", mode="r+")
    torn[32:] = -1
    torn.flush()
    (entry / "done").write_text("32")
    (entry / "complete").unlink()
    known = extracted()
    assert [run.metrics["features/images"] for run in known] == [8, 40]
    np.testing.assert_array_equal(np.load(entry / "features.npy"), whole)
    assert extracted() == known


def test_of_two_campaigns_side_by_side_one_extracts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in toy_costs(infer=1.5).items():  # long enough to meet
        monkeypatch.setenv(name, text)
    both = [replace(place, cache=tmp_path / "cache") for _ in range(2)]
    given = {
        "blocks": "1",
        "frameworks": "toy",
        "data": "scenes",
        "epochs": "1",
        "inference_requests": "2",
    }
    started = [one.begin(*one.command("captioning", **given)) for one in both]
    outputs = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [3, 3], outputs
    extractions = [
        run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "extraction"
    ]
    assert sorted(run.metrics["features/images"] for run in extractions) == [0, 40]
    assert {run.status for run in extractions} == {"FINISHED"}
    (array,) = (np.load(path) for path in tmp_path.glob("cache/features/*/features.npy"))
    assert (array.std(axis=0) > 0).all()
    assert (
        array.std(axis=1) < 1e-6
    ).all()  # the toy's features are a picture's brightness, again and again


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


@pytest.mark.slow
def test_mlflows_own_autologging_of_fit_is_kept_beside_the_cell(place: Place) -> None:
    done = place.run(frameworks="keras-tensorflow", blocks="1", autolog="mlflow")
    assert done.returncode == 3, done.stdout + done.stderr
    runs = {run.tags["kind"]: run for run in Store(place.uri).runs("captioning")}
    assert "loss" in runs["autolog"].metrics
    assert runs["autolog"].tags["campaign"] == runs["cell"].tags["campaign"]
    assert "loss" not in runs["cell"].metrics
