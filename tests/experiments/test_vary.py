"""Two values of a setting in the same blocks of one campaign: what each cell got, what is compared, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest

from experiments import studies
from experiments.config import settings as settings_
from experiments.config import variation
from experiments.planning.design import Cell
from experiments.run import plan as plan_
from experiments.run import preparation
from experiments.run.scheduler import MemoryFrontier
from tests import slurm
from tests.conftest import Place, toy_costs
from tests.experiments import test_mlflow_run
from tests.experiments.test_cell_settings import seen
from tests.slurm import Slurm
from tracking.errors import WrongCall
from tracking.records import StoredRun
from tracking.store import Store

TOY = {
    "frameworks": "toy",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "bleu_images": "1",
    "blocks": "1",
}
TOYS = {**TOY, "frameworks": "toy,toy+twin"}


def cells(place: Place) -> list[StoredRun]:
    return [run for run in Store(place.uri).runs("captioning") if run.tags.get("kind") == "cell"]


def reports(place: Place) -> dict[str, Mapping[str, Any]]:
    """Treatment → what its cell of the first block saw."""
    folders = {
        folder.parent.name: folder for folder in place.journal.glob("*/cells/block-001-*/*/")
    }
    return {name.removeprefix("block-001-"): seen(folder) for name, folder in folders.items()}


def rows(place: Place) -> list[dict[str, Any]]:
    (path,) = place.journal.glob("*/report/comparison.json")
    found: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return found


def vary(place: Place, what: str, given: Mapping[str, str], *codes: int) -> str:
    done = place.run(**{**given, "vary": what})
    assert done.returncode in (codes or (0, 3)), done.stdout + done.stderr
    return done.stdout


# ---- what is asked


def settings(study: str = "captioning", **given: str) -> Any:
    module = studies.load(study)
    return settings_.parse(module.settings, module.presets, given)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("threads=1,2", [{"threads": 1}, {"threads": 2}]),
        ("threads=1|2", [{"threads": 1}, {"threads": 2}]),
        ("learning_rate=0.01, 1e-3", [{"learning_rate": 0.01}, {"learning_rate": 0.001}]),
        (
            "inference_batch_sizes=1,8|1,32",
            [{"inference_batch_sizes": (1, 8)}, {"inference_batch_sizes": (1, 32)}],
        ),
        (
            "inference_batch_sizes=1,8",
            [{"inference_batch_sizes": (1,)}, {"inference_batch_sizes": (8,)}],
        ),
        ("malloc=system,keep", [{"malloc": "system"}, {"malloc": "keep"}]),
    ],
)
def test_values_are_read_as_the_setting_is(text: str, levels: Sequence[Mapping[str, Any]]) -> None:
    found = variation.parse(settings(vary=text))
    assert found is not None
    assert [level.settings for level in found.levels] == levels
    again = variation.parse(settings(vary=str(found)))
    assert again == found, "what is said of it can be asked for"


def test_variables_are_read_and_one_may_be_missing() -> None:
    found = variation.parse(settings(vary="env.XLA_FLAGS=none|--a=1,--b=2"))
    assert found is not None
    assert [level.environment for level in found.levels] == [
        {"XLA_FLAGS": None},
        {"XLA_FLAGS": "--a=1,--b=2"},
    ]
    assert [level.text for level in found.levels] == ["none", "--a=1,--b=2"]


def test_cells_of_every_value_have_folders_of_their_own() -> None:
    for text in ("env.A=a_b,a-b", "env.A=1|2,3", "env.A=x/y,x:y", f"data={'a' * 70},{'b' * 70}"):
        plan = plan_.of_study(studies.load("captioning"), settings(vary=text, frameworks="pytorch"))
        assert len({Cell(one.name, 1, 0).key for one in plan.treatments}) == 2


@pytest.mark.parametrize(
    "text",
    [
        *(
            "threads",
            "threads=",
            "=1,2",
            "threads=1",
            "threads=1,,2",
            "threads=1,1",
            "threads=1,x",
            "threads=1,5000",
        ),
        *("threads=0,2", "device=auto,cpu", "malloc=keep,other", "tread=1,2"),
        *(
            "blocks=1,2",
            "seed=1,2",
            "executor=local,slurm",
            "journal=a,b",
            "frameworks=a,b",
            "framework=a,b",
        ),
        *(
            "threads=1,2,malloc=system,keep",
            "threads=1,2,env.A=1",
            "env.A=1,2,threads=1",
            "vary=a,b",
        ),
        *(
            "env.=1,2",
            "env.a b=1,2",
            "env.MLFLOW_TRACKING_URI=a,b",
            "env.PYTHONPATH=a,b",
            "max_broken_images=0,1",
        ),
    ],
)
def test_what_cannot_be_varied_is_one_line(text: str) -> None:
    with pytest.raises(WrongCall, match=r"^[^\n]+$"):
        variation.parse(settings(vary=text))


def test_a_refusal_ends_the_call_with_code_2_before_anything_is_measured(place: Place) -> None:
    for given in (
        {"vary": "blocks=1,2"},
        {"vary": "threads=1,2", "threads": "4"},
        {"vary": "batch_size=8,5000", "batch_size": "8", "dry_run": "true", "data": "scenes"},
        {"vary": "reserve_cores=0,1000", "dry_run": "true"},
    ):
        done = place.run(**{**TOY, **given})
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    done = place.call(
        *place.command("sweep", experiment="lenet", search="batch_size=8|16", vary="threads=1,2")
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    assert not place.journal.exists()


@pytest.mark.parametrize("study", sorted(set(studies.available()) - {"calibrate"}))
def test_every_study_can_vary_a_setting(study: str) -> None:
    """Each of its treatments is there with both values; what the study compares becomes a stratum."""
    module, threads = studies.load(study), {"threads": "1"}
    plain = plan_.of_study(module, settings(study, **threads))
    both = plan_.of_study(
        module,
        settings(study, **threads, vary="precision=float32,bfloat16")
        if has(study)
        else varied(study),
    )
    count = len(both.treatments) // 2
    assert count == len(plain.treatments)
    assert len({one.name for one in both.treatments}) == 2 * count
    name = both.factor
    base = settings(study, **threads)
    values = [getattr(one.merged(base), name) for one in both.treatments]
    assert values == [values[0]] * count + [values[-1]] * count
    assert values[0] != values[-1]
    assert both.baseline == settings_.to_text(values[0])
    several = len({one.framework for one in plain.treatments}) > 1 or plain.factor != "framework"
    assert set(plain.strata) <= set(both.strata)
    assert (plain.factor in both.strata) == several
    by_group = {one.group for one in plain.treatments}
    assert {one.group for one in both.treatments} == by_group, (
        "both values stand where the study's own cells do"
    )


def has(study: str) -> bool:
    choices = {
        field.name: field.metadata["choices"] for field in fields(studies.load(study).settings)
    }
    return "bfloat16" in choices["precision"] and study != "lstm"


def varied(study: str) -> Any:
    return settings(study, threads="1", vary="malloc=system,keep")


def test_what_a_study_sets_itself_is_not_varied() -> None:
    with pytest.raises(
        WrongCall, match="conv_algorithm is set by the study, cell by cell; set algorithms instead"
    ):
        plan_.of_study(
            studies.load("conv_algorithm"),
            settings("conv_algorithm", vary="conv_algorithm=onednn,plain"),
        )
    with pytest.raises(WrongCall, match="compares a framework with itself"):
        plan_.of_study(studies.load("calibrate"), settings("calibrate", vary="threads=1,2"))
    with pytest.raises(
        WrongCall, match="batch_size is set by the study, cell by cell; set batch_sizes instead"
    ):
        plan_.of_study(studies.load("grid"), settings("grid", vary="batch_size=1,2"))


def test_what_does_not_fit_with_one_value_may_fit_with_another() -> None:
    asked = settings(
        "grid", vary="env.A=none,b", frameworks="pytorch", models="lenet", batch_sizes="8"
    )
    bare, other = plan_.of_study(studies.load("grid"), asked).treatments
    frontier = MemoryFrontier("batch_size")
    frontier.note(bare, "train")
    assert frontier.skip(bare)
    assert not frontier.skip(other)


def test_a_training_that_sees_more_is_compared_by_rates_alone() -> None:
    module = studies.load("captioning")
    fixed = plan_.of_study(
        module, settings(vary="batch_size=8,16", steps_per_epoch="4", epochs="2")
    )
    assert (
        fixed.rates_only
        == "one training sees 64 training captions, another 128: only rates can be compared"
    )
    assert (
        plan_.of_study(module, settings(vary="batch_size=8,16", steps_per_epoch="0")).rates_only
        == ""
    )
    assert (
        plan_.of_study(
            module, settings(vary="learning_rate=0.1,0.01", steps_per_epoch="4")
        ).rates_only
        == ""
    )


# ---- what is measured


def test_two_values_stand_in_the_same_blocks_and_are_compared(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    said = vary(place, "threads=1,2", {**TOY, "blocks": "2"})
    assert "threads=1" in said
    found = cells(place)
    assert sorted((run.tags["block"], run.params["threads"]) for run in found) == [
        (block, threads) for block in ("1", "2") for threads in ("1", "2")
    ]
    assert {run.params["vary"] for run in found} == {"threads=1,2"}
    assert len({run.tags["settings_hash"] for run in found}) == 2
    got = reports(place)
    assert {name: report["threads"] for name, report in got.items()} == {
        "toy-threads-1": 1,
        "toy-threads-2": 2,
    }
    told = rows(place)
    assert {
        (row["factor"], row["a"], row["b"], row["n_blocks"]) for row in told if row["n_blocks"]
    } == {("threads", "1", "2", 2)}
    compared = place.call(
        *(
            sys.executable,
            "-m",
            "experiments",
            "compare",
            "--experiment=captioning",
            "--factor=threads",
            "--format=json",
        ),
        *("--figures=false", f"--output={place.folder}/comparisons"),
    )
    assert compared.returncode == 3, compared.stderr
    again = json.loads(compared.stdout)["rows"]
    judged = {row["metric"]: row["n_blocks"] for row in again if row["n_blocks"]}
    assert {(row["a"], row["b"]) for row in again if row["n_blocks"]} == {("1", "2")}
    assert judged["train/step_seconds"] == 2
    # Both values of a block are compared wherever both have the metric: load needs a window of 0.2 s.
    lacking = {
        metric: {run.tags["block"] for run in found if metric not in run.metrics}
        for metric in judged
    }
    assert judged == {metric: 2 - len(blocks) for metric, blocks in lacking.items()}


def test_frameworks_times_values_answer_both_questions(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interleaved, with a control: all take turns, so that frameworks can be compared at each value, too."""
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    vary(place, "malloc=system,keep", {**TOYS, "pairing": "interleaved", "aa": "true"})
    found = cells(place)
    assert sorted(run.tags["treatment"] for run in found) == [
        "toy A/A · malloc=system",
        *(
            f"{name} · malloc={value}"
            for name in ("toy", "toy+twin")
            for value in ("keep", "system")
        ),
    ]
    assert len({run.tags["turns"] for run in found}) == 1
    assert all(
        (report["faults"] < 100) == name.endswith("keep") for name, report in reports(place).items()
    )
    assert {(row["factor"], row["stratum"]) for row in rows(place)} == {
        ("malloc", "framework=toy"),
        ("malloc", "framework=toy+twin"),
    }
    done = place.call(
        *(
            sys.executable,
            "-m",
            "experiments",
            "compare",
            "--experiment=captioning",
            "--factor=framework",
            "--strata=malloc",
        ),
        *("--format=json", "--figures=false", f"--output={place.folder}/comparisons"),
    )
    told = json.loads(done.stdout)["rows"]
    steps = [row for row in told if row["metric"] == "train/step_seconds"]
    assert {(row["stratum"], row["n_blocks"]) for row in steps} == {
        ("malloc=keep", 1),
        ("malloc=system", 1),
    }


def test_a_variable_of_the_process_is_varied(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    monkeypatch.setenv("EVENHAND_TOY_WORD", "of the parent")
    vary(place, "env.EVENHAND_TOY_WORD=none|a,b/c|d", TOY)
    words = {
        name: report["environment"].get("EVENHAND_TOY_WORD")
        for name, report in reports(place).items()
    }
    assert words == {
        "toy-env.EVENHAND-TOY-WORD-1": None,
        "toy-env.EVENHAND-TOY-WORD-2": "a,b/c",
        "toy-env.EVENHAND-TOY-WORD-3": "d",
    }
    logged = {run.tags["treatment"]: run.params["env.EVENHAND_TOY_WORD"] for run in cells(place)}
    assert sorted(logged.values()) == ["a,b/c", "d", "none"]
    assert {row["factor"] for row in rows(place)} == {"env.EVENHAND_TOY_WORD"}


def test_levels_have_data_of_their_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    vary(place, "vocabulary=60,70", TOY)
    assert {report["spec"]["vocabulary"] for report in reports(place).values()} == {"60", "70"}
    told = {row["metric"]: row for row in rows(place)}
    assert told["train/step_seconds"]["n_blocks"] == 1, (
        "data that differ by the factor are no reason to refuse"
    )


def test_a_campaign_is_extended_and_resumed_with_what_it_varies(place: Place) -> None:
    vary(place, "threads=1,2", TOY)
    options = (f"--journal={place.journal}",)
    done = place.call(sys.executable, "-m", "experiments", "extend", "last", "--blocks=1", *options)
    assert done.returncode == 3, done.stdout + done.stderr
    found = sorted(
        (run.tags["block"], run.params["threads"], run.tags["outcome"]) for run in cells(place)
    )
    assert found == [(block, threads, "ok") for block in ("1", "2") for threads in ("1", "2")]
    refused = place.resume(vary="threads=1,3")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    again = place.resume()
    assert again.returncode == 3, again.stdout + again.stderr
    assert len(cells(place)) == 4, "nothing was missing"


@pytest.mark.slow
def test_a_campaign_goes_on_until_its_factor_is_settled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs that a variable sets, 10 ms and 20 ms a step, are told apart at the first look."""
    for name, text in toy_costs(step=0.01).items():
        monkeypatch.setenv(name, text)
    slow = json.dumps({"toy": {"step": 0.02}}).replace(" ", "")
    quick = json.dumps({"toy": {"step": 0.01}}).replace(" ", "")
    given = {
        **TOY,
        "until": "settled",
        "blocks": "6",
        "max_blocks": "20",
        "primary": "train/step_seconds",
    }
    said = vary(
        place, f"env.EVENHAND_TOY_COSTS={quick}|{slow}", {**given, "steps_per_epoch": "6"}, 0
    )
    assert len(cells(place)) == 12, said
    (row,) = [row for row in rows(place) if row["metric"] == "train/step_seconds"]
    assert (row["verdict"], row["a"], row["b"]) == ("slower", quick, slow)


def test_the_runner_of_mlflow_takes_it(place: Place) -> None:
    done = place.call(*test_mlflow_run.command(place, vary="threads=1,2", blocks="1"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(run.params["threads"] for run in cells(place)) == ["1", "2"]


def test_a_real_framework_has_the_threads_of_its_level(place: Place) -> None:
    """As PyTorch says itself: `torch.get_num_threads()`."""
    small = {**TOY, "frameworks": "pytorch", "steps_per_epoch": "2"}
    vary(place, "threads=1,2", small)
    found = {
        path.parent.parent.name: json.loads(path.read_text())["framework"]["torch_threads"]
        for path in place.journal.glob("*/cells/block-*/*/environment.json")
    }
    assert found == {"block-001-pytorch-threads-1": "1", "block-001-pytorch-threads-2": "2"}


def test_a_real_framework_computes_with_the_precision_of_its_level(place: Place) -> None:
    """Rounded products leave another loss after the same steps, which is nearly the same."""
    vary(
        place,
        "precision=float32,bfloat16",
        {**TOY, "frameworks": "pytorch", "steps_per_epoch": "2"},
    )
    exact, rounded = (
        run.metrics["val/loss"]
        for run in sorted(cells(place), key=lambda run: run.params["precision"])
    )
    assert exact != rounded
    assert exact == pytest.approx(rounded, rel=0.05)


@pytest.mark.slow
def test_a_variable_that_the_framework_sets_itself_is_refused_before_any_cell(place: Place) -> None:
    asked = {
        **TOY,
        "frameworks": "tensorflow",
        "conv_algorithm": "onednn",
        "vary": "env.TF_ENABLE_ONEDNN_OPTS=1,0",
    }
    done = place.run(**asked)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    assert "env.TF_ENABLE_ONEDNN_OPTS: tensorflow sets it to '1' itself, not to '0'" in done.stderr
    assert not cells(place)


# ---- two campaigns that have ended


def test_two_campaigns_say_how_both_values_are_measured_in_one(place: Place) -> None:
    for threads in ("1", "2"):
        assert place.run(**{**TOY, "threads": threads}).returncode == 3
    reasons = {}
    for factor in ("threads", "campaign"):
        done = place.call(
            *(
                sys.executable,
                "-m",
                "experiments",
                "compare",
                "--experiment=captioning",
                f"--factor={factor}",
            ),
            *("--format=json", "--figures=false", f"--output={place.folder}/comparisons"),
        )
        assert done.returncode == 3, done.stderr
        reasons[factor] = {row["reason"] for row in json.loads(done.stdout)["rows"]}
    for told in reasons.values():
        assert all("vary=threads=1,2" in reason for reason in told), told
    assert preparation.check_settings("captioning", settings(vary="threads=1,2")) is None, (
        "and that can be asked for"
    )


# ---- on a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.running(nodes=1) as found:
        yield found


@pytest.mark.debian(package="slurm-wlm")
def test_on_a_cluster_both_values_stand_in_the_blocks_of_a_job(
    on_cluster: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_TOY_SEEN", "1")
    vary(on_cluster, "threads=1,2", {**TOY, "executor": "slurm", "partition": "main"})
    got = reports(on_cluster)
    assert {name: report["threads"] for name, report in got.items()} == {
        "toy-threads-1": 1,
        "toy-threads-2": 2,
    }
    assert len({run.tags["slurm.job"] for run in cells(on_cluster)}) == 1
