"""Captioning study from the command line to the tracking store and logged networks."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlflow
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments import metrics
from experiments.config import settings as settings_
from experiments.datasets import caption_batches
from experiments.datasets.captions import index
from experiments.studies import captioning
from experiments.workloads.captioning import samples
from models.caption_decoder.spec import CaptionDecoderSpec, shapes
from tests.conftest import ROOT, NewPlace, Place, set_toy_costs, titled
from tests.experiments import native_models
from tests.experiments.small_campaigns import measure
from tests.experiments.small_campaigns import run as run_campaign
from tracking.records import JIT_COMPILE, JIT_PLANNED, StoredRun
from tracking.store import Store

TOYS, REAL = ("toy", "toy+twin"), ("pytorch", "tensorflow")


@pytest.fixture(scope="module", params=[TOYS, pytest.param(REAL, marks=pytest.mark.slow)], ids=str)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return the frameworks of the campaign: `test_classification.py` runs the real ones, too."""
    frameworks: tuple[str, str] = request.param
    return frameworks


@pytest.fixture(scope="module")
def finished(
    pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory, new_place: NewPlace
) -> Place:
    """Return the place of a campaign that extracted its features; parity was proven before."""
    place = new_place(tmp_path_factory.mktemp("campaign")).without_features()
    models = {"save_model": "first", "register": "scenes captioner"}
    few = {"blocks": "1", "inference_requests": "80", "team": "vision"}
    with pytest.MonkeyPatch.context() as patch:
        set_toy_costs(patch, step=0.05, apply=0.01)  # long enough for its sensors
        output = measure(place, frameworks=",".join(pair), **few, **models)
    (place.folder / "output.txt").write_text(output)
    return place


@pytest.fixture(scope="module")
def runs(finished: Place) -> dict[str, StoredRun]:
    return {titled(run): run for run in Store(finished.uri).runs("captioning")}


def artifact(place: Place, run: StoredRun, name: str) -> Path:
    """Return an artifact, which MLflow's default store keeps below the working folder."""
    return next(place.folder.glob(f"mlruns/*/{run.run_id}/artifacts/{name}"))


def test_one_block_ends_without_a_verdict(finished: Place, runs: dict[str, StoredRun]) -> None:
    output = (finished.folder / "output.txt").read_text()
    assert "mlflow ui --backend-store-uri sqlite:" in output
    campaign = runs["captioning demo"]
    page = artifact(finished, campaign, "report.html").read_text()
    assert all("random weights" in text for text in (output, campaign.tags["warnings"], page))
    described = campaign.tags["mlflow.note.content"]
    warned = [line.lstrip("> -") for line in described.splitlines() if "⚠" in line]
    assert len(warned) == len(set(warned)) > 0
    assert "in 1 block on" in described
    report = json.loads(artifact(finished, campaign, "comparison.json").read_text())
    assert report["schema_version"] == 2
    verdicts = {row["verdict"] for row in report["rows"]}
    assert verdicts <= {"inconclusive", "not comparable", "deterministic"}


def test_runs_finished_with_all_settings_as_params(runs: dict[str, StoredRun]) -> None:
    campaign, settings = runs["captioning demo"], captioning.Settings
    names = set(settings_.as_text(settings())) - settings_.not_logged_names(settings)
    # MLflow keeps no empty text
    empty = {"team", "primary", "partition", "gres", "vary", "levels", "pythons", "fail_if"}
    for run in runs.values():
        assert run.status == "FINISHED"
        assert run is campaign or run.tags["campaign"] == campaign.run_id
        assert (run.tags["team"], len(run.tags["machine"])) == ("vision", 8)
        assert run.tags["version.torch"].startswith("2.")
        assert names - set(run.params) <= empty
    cells = [run for run in runs.values() if run.tags["kind"] == "cell"]
    assert len({run.tags["settings_hash"] for run in cells}) == 1
    assert {run.params["formulation"] for run in cells} == {"sequence"}


PROMISED = {
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


def test_both_frameworks_log_the_same_keys(
    pair: tuple[str, str], runs: dict[str, StoredRun]
) -> None:
    a, b = (runs[f"{framework} · block 1"] for framework in pair)
    assert [run.params["framework"] for run in (a, b)] == [*pair]
    # a phase that ends between two readings of the sensors has none, and a tag with the reason
    windows = {f"not_available.{prefix}sensors": f"{prefix}cpu/" for prefix in ("", "inference/")}
    missing = {tag for tag in windows if tag in a.tags or tag in b.tags}
    optional = ("live/", "inference/memory/", *(windows[tag] for tag in missing))
    for run in (a, b):
        for tag, prefix in windows.items():
            assert (tag in run.tags) != any(name.startswith(prefix) for name in run.metrics)
    keys = [{name for name in run.metrics if not name.startswith(optional)} for run in (a, b)]
    assert keys[0] == keys[1]
    assert set(a.params) == set(b.params)
    assert set(a.tags) - missing == set(b.tags) - missing - {JIT_COMPILE, JIT_PLANNED}
    assert set(a.metrics) >= PROMISED
    assert "inference/latency_seconds_p99" not in a.metrics, "80 requests do not earn a p99"
    loss = pytest.approx(a.metrics["check/initial_loss"], rel=1e-5)
    assert b.metrics["check/initial_loss"] == loss, "both start from the same function"


def test_mlflow_shows_the_metrics_that_a_person_reads(
    pair: tuple[str, str], finished: Place, runs: dict[str, StoredRun]
) -> None:
    stored = runs[f"{pair[0]} · block 1"]
    run = Store(finished.uri)._client.get_run(stored.run_id)
    shown = {name for name in run.data.metrics if not name.startswith("system/")}
    assert len(shown) <= 20
    assert {"train/examples_per_second", "train/loss", "val/bleu4", "val/loss"} <= shown
    assert not any(name.startswith(("check/", "model/", "machine/", "cpu/")) for name in shown)
    everything = json.loads(artifact(finished, stored, "metrics.json").read_text())
    details = stored.metrics.keys() - run.data.metrics.keys()
    assert everything.keys() == {
        name for name in stored.metrics if not name.startswith("system/")
    } - {metrics.shown_name(name) for name in details}
    assert all(everything[name] == stored.metrics[name] for name in details)
    campaign = runs["captioning demo"].run_id
    assert campaign in run.data.tags["mlflow.note.content"]
    assert run.data.tags["mlflow.parentRunId"] == campaign
    assert run.data.tags["mlflow.source.type"] == "LOCAL"


def test_extraction_is_a_separate_run_with_equal_features(
    pair: tuple[str, str], finished: Place, runs: dict[str, StoredRun]
) -> None:
    for framework in pair:
        assert runs[f"features · {framework}"].metrics["features/images"] == 40
    first, second = map(np.load, finished.cache.glob("features/*/features.npy"))
    assert first.shape == (40, 1_920)
    difference = np.linalg.norm(first - second) / np.linalg.norm(first)
    assert difference < 1e-4  # float32 through 201 layers; the parity tests prove 1e-12 in float64


def test_raw_values_environment_and_data_set_are_stored(
    pair: tuple[str, str], finished: Place, runs: dict[str, StoredRun]
) -> None:
    run = runs[f"{pair[0]} · block 1"]
    values = pd.read_parquet(artifact(finished, run, "values.parquet"))
    assert list(values) == ["phase", "step", "seconds", "examples", "warmup", "ended_ms"]
    training = values[values.phase == "train"]
    assert len(training) == 8  # 2 epochs of 4 steps
    steady = training[~training.warmup]
    assert run.metrics["train/step_seconds"] == pytest.approx(steady.seconds.median())
    throughput = steady.examples.sum() / steady.seconds.sum()
    assert run.metrics["train/examples_per_second"] == pytest.approx(throughput)
    environment = json.loads(artifact(finished, run, "environment.json").read_text())
    assert environment["packages"]["torch"].startswith("2.")
    assert environment["machine"]["cores"] >= 1
    client = Store(finished.uri)._client
    (used,) = client.get_run(run.run_id).inputs.dataset_inputs
    (of_campaign,) = client.get_run(runs["captioning demo"].run_id).inputs.dataset_inputs
    assert of_campaign.dataset == used.dataset
    assert (used.dataset.name, used.tags[0].value) == ("scenes", "training")
    assert json.loads(used.dataset.schema)["mlflow_colspec"]
    page = artifact(finished, runs[f"{pair[1]} · block 1"], "captions.html").read_text()
    assert page.count("data:image/png;base64,") >= 4
    assert "http" not in page


def test_logged_captioners_have_settings_and_quality_and_are_registered(
    pair: tuple[str, str], finished: Place, runs: dict[str, StoredRun]
) -> None:
    """Register them after one block, without a fastest one."""
    client = Store(finished.uri)._client
    registered = client.get_registered_model("scenes captioner")
    stored = client.search_model_versions("name = 'scenes captioner'")
    versions = {version.tags["framework"]: version for version in stored}
    assert versions.keys() == {*pair}
    assert registered.aliases == {"baseline": versions[pair[0]].version}
    for framework, version in versions.items():
        run = client.get_run(runs[f"{framework} · block 1"].run_id)
        model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
        assert re.fullmatch(r"captioning-demo-[a-z_+-]+-\d{4}-\d\d-\d\d", model.name)
        assert model.params == run.data.params
        names = [name for name in run.data.metrics if name.startswith(("val/", "train/loss"))]
        quality = {name: run.data.metrics[name] for name in names}
        assert {metric.key: metric.value for metric in model.metrics} == quality
        assert {metric.dataset_name for metric in model.metrics} == {"scenes"}
        assert framework in model.tags["mlflow.note.content"]
        assert version.source == f"models:/{model.model_id}"
        assert version.tags["campaign"] == runs["captioning demo"].run_id
    tags = versions[pair[1]].tags
    codes = {key: text for key, text in tags.items() if key.endswith("/code")}
    # no BLEU: random features
    speeds = ("train/examples_per_second", "inference/latency_seconds_p50")
    assert codes.keys() == {f"verdict/{metric}/code" for metric in speeds}
    assert set(codes.values()) <= {"too_few", "not_comparable"}
    assert not [key for key in versions[pair[0]].tags if key.startswith("verdict/")]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("pair", [REAL], indirect=True, ids=str)
@pytest.mark.parametrize("framework", REAL)
@pytest.mark.parametrize("environment", ["this one", "of its requirements"])
def test_logged_decoder_has_the_loss_of_its_run(
    finished: Place, runs: dict[str, StoredRun], tmp_path: Path, framework: str, environment: str
) -> None:
    run, python = runs[f"{framework} · block 1"], ""
    (output,) = Store(finished.uri)._client.get_run(run.run_id).outputs.model_outputs
    model = next(finished.folder.glob(f"mlruns/*/models/{output.model_id}/artifacts"))
    if environment != "this one":
        python = str(tmp_path / "environment" / "bin" / "python")
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
        install = [python, "-m", "pip", "install", "-q", f"mlflow=={mlflow.__version__}"]
        subprocess.run([*install, "-r", model / "requirements.txt"], check=True)
    data = index("scenes", cache=finished.cache, seed=0, images=40)
    extracted = runs[f"features · {framework}"].tags["features"]
    (batch,) = caption_batches.epoch(
        data,
        np.load(finished.cache / "features" / extracted / "features.npy"),
        data.captions_of("validation"),
        batch_size=8,
        formulation="prefix",
        steps=1,
    )
    flavor, logits = native_models.load(model, batch.inputs, tmp_path, python)
    assert flavor == {"pytorch": "pytorch", "tensorflow": "keras"}[framework]
    loss = native_models.mean_loss(logits, batch.targets, batch.weights)
    assert loss == pytest.approx(run.metrics["val/loss"], rel=1e-5)


def test_caption_that_never_changes_is_reported(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    data = SimpleNamespace(
        source=tmp_path, images=["a.png"] * 2, references=lambda _: ["a <b> reference"]
    )
    captions = {"greedy": ["a red", "a red"], "beam": ["a red", "a blue"]}
    samples.write(tmp_path, data, np.arange(2), captions, "Captions")  # type: ignore[arg-type]
    page = (tmp_path / "captions.html").read_text()
    assert "greedy writes the same caption" in page
    assert "beam writes" not in page
    assert "a &lt;b&gt; reference" in page


# A caption names one of five colours and one of three places: of eight pictures, the same caption
# is right for half a picture on average (1 of 15).
DIFFERENT, RIGHT = 3, 2


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_captions_of_the_demo_follow_the_pictures(place: Place, seed: int) -> None:
    few = {"inference_requests": "2", "save_model": "none", "frameworks": ",".join(REAL)}
    run_campaign(place, "captioning", seed=str(seed), **few)
    data = index("scenes", cache=place.cache, seed=seed, images=captioning.Settings().images)
    images = np.unique(data.caption_image[data.captions_of("validation")])[: samples.COUNT]
    cells = list(Store(place.uri).runs("captioning", "tags.kind = 'cell'"))
    assert {run.tags["framework"] for run in cells} == {*REAL}
    for run in cells:
        page = artifact(place, run, "captions.html").read_text()
        captions = re.findall(r"<td>(.*)</td>\n *<td>.*</td>\n *</tr>", page)  # the last but one
        shown = zip(captions, images, strict=True)
        right = sum(caption in data.references(int(image)) for caption, image in shown)
        print(
            f"seed {seed}, {run.tags['framework']}: {len(set(captions))} different, {right} right"
        )
        assert len(set(captions)) >= DIFFERENT
        assert right >= RIGHT


@pytest.mark.usefixtures("local_cells")
def test_interrupted_extraction_continues(place: Place) -> None:
    place = place.without_features()

    def extract() -> list[StoredRun]:
        """Run a campaign; return all extractions, the newest first."""
        measure(place, blocks="1", frameworks="toy", epochs="1", inference_requests="2")
        runs = Store(place.uri).runs("captioning", "tags.kind = 'extraction'")
        return sorted(runs, key=lambda run: -run.start_ms)

    (first,) = extract()
    folder = place.cache / "features" / first.tags["features"]
    whole = np.load(folder / "features.npy")
    assert whole.std() > 0
    torn = np.lib.format.open_memmap(folder / "features.npy", mode="r+")
    torn[32:] = -1
    torn.flush()
    (folder / "progress.json").write_text(json.dumps({"rows": 32, "broken": {}}))
    (folder / "complete").unlink()
    assert [run.metrics["features/images"] for run in extract()] == [8, 40]
    np.testing.assert_array_equal(np.load(folder / "features.npy"), whole)


def test_two_campaigns_at_the_same_time_extract_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_toy_costs(monkeypatch, infer=1.5)  # long enough to meet
    place = place.without_features()
    options = {"blocks": "1", "frameworks": "toy", "epochs": "1", "inference_requests": "2"}
    processes = [place.begin(*place.command("captioning", **options)) for _ in range(2)]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [3, 3], outputs
    extractions = list(Store(place.uri).runs("captioning", "tags.kind = 'extraction'"))
    assert sorted(run.metrics["features/images"] for run in extractions) == [0, 40]
    assert {run.status for run in extractions} == {"FINISHED"}
    (features,) = map(np.load, place.cache.glob("features/*/features.npy"))
    assert (features.std(axis=0) > 0).all()
    # the toy's features repeat the brightness of a picture
    assert (features.std(axis=1) < 1e-6).all()


def test_preset_has_the_decoder_of_the_paper() -> None:
    options = {"preset": "flickr8k-paper", "data": "synthetic"}
    settings = settings_.parse(captioning.Settings, captioning.STUDY.presets, options)
    spec = CaptionDecoderSpec(settings.vocabulary, settings.length)
    assert shapes(spec).parameters == (4_316_709, 0)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_sequence_is_five_times_as_fast_as_prefix(framework: str, tmp_path: Path) -> None:
    """Use Flickr30k's vocabulary and length, 32 captions a step."""
    command = [sys.executable, "-m", "tests.experiments.formulation_speed", framework]
    command += ["18313", "74", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2_000:]
    ratio = float(done.stdout.rsplit("RATIO=", 1)[1])
    assert ratio >= 5, done.stdout


@pytest.mark.slow
def test_precision_that_this_cpu_cannot_compute_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    done = place.run(frameworks="pytorch", precision="bfloat16")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pytorch: precision 'bfloat16'" in line
    assert not list(place.journal.glob("*/cells/*"))
