"""Runs that other tools logged: what pairs them, what may differ, and what is only a caution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import compare
from experiments.comparison.notebook import Result
from experiments.comparison.runs.pairing import Mismatch
from experiments.comparison.runs.warning import WarningCode
from experiments.metrics import outcome
from tests.experiments.comparison.campaigns import ORIGIN_MS
from tracking.errors import ErrorCode, UsageError

SECONDS, ACCURACY = "fit_seconds", "test_accuracy"
ORDER = "abbaabbabaababba"


def foreign(order: str = ORDER, **columns: object) -> pd.DataFrame:
    """Return runs of two scripts in an order, a second each, as `mlflow.search_runs` does.

    The second script takes 1.3 times as long; each repeats the seeds 0, 1, …
    """
    rng, seeds, rows = np.random.default_rng(0), dict.fromkeys("ab", 0), []
    for at, level in enumerate(order):
        start = pd.Timestamp(ORIGIN_MS + 1_000 * at, unit="ms", tz="UTC")
        rows.append(
            {
                "run_id": f"run{at}",
                "status": "FINISHED",
                "artifact_uri": "x",
                "start_time": start,
                "end_time": start + pd.Timedelta(milliseconds=900),
                f"metrics.{SECONDS}": (1.3 if level == "b" else 1.0) * rng.normal(1, 0.01),
                f"metrics.{ACCURACY}": 0.9 + rng.normal(0, 0.001),
                "params.seed": str(seeds[level]),
                "tags.script": level,
                "tags.mlflow.source.name": "train.py",
            }
        )
        seeds[level] += 1
    return pd.DataFrame(rows).assign(**columns)


def judge(table: pd.DataFrame, **options: object) -> Result:
    return compare(table, **{"factor": "script", "pair_by": "seed", **options})  # type: ignore[arg-type]


def codes(result: Result) -> set[WarningCode]:
    return {warning.code for warning in result.warnings}


def verdicts(result: Result) -> dict[str, str]:
    return {row.metric: row.verdict for row in result.rows}


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, ["tag framework or block", "--factor script (a, b)", "--pair_by seed", "set_tag("]),
        ({"factor": "script"}, ["tag block;", "--pair_by seed", "MLFLOW_RUN_CONTEXT="]),
        ({"pair_by": "time"}, ["tag framework;", "--factor script (a, b), or", "set_tag("]),
    ],
    ids=str,
)
def test_first_error_names_what_is_missing(options: dict[str, str], parts: Sequence[str]) -> None:
    with pytest.raises(UsageError) as refused:
        compare(foreign(), **options)  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.MISSING_VALUE
    assert all(part in str(refused.value) for part in parts), refused.value


def test_param_with_the_name_of_a_tag_of_campaigns_is_a_factor() -> None:
    table = foreign().rename(columns={"tags.script": "params.framework"})
    with pytest.raises(UsageError, match="no run has the tag block; call with --pair_by seed"):
        compare(table)
    for factor in ("framework", "params.framework"):
        assert verdicts(judge(table, factor=factor)) == {SECONDS: "slower", ACCURACY: "equivalent"}


@pytest.mark.parametrize("options", [{"factor": "scripts"}, {"pair_by": "sed"}], ids=str)
def test_misspelt_param_or_tag_is_named_with_the_right_one(options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refused:
        judge(foreign(), **options)
    assert refused.value.code is ErrorCode.UNKNOWN_NAME
    (name,) = options.values()
    right = {"scripts": "script", "sed": "seed"}[name]
    assert str(refused.value) == f"no run has a param or tag '{name}'; did you mean {right}?"


@pytest.mark.parametrize("pair_by", ["seed", "params.seed", "time"])
def test_runs_without_blocks_are_paired_with_a_caution(pair_by: str) -> None:
    result = judge(foreign(), pair_by=pair_by, ignore=["seed"] if pair_by == "time" else [])
    assert verdicts(result) == {SECONDS: "slower", ACCURACY: "equivalent"}
    assert {row.n_blocks for row in result.rows} == {8}
    assert {WarningCode.PAIRED_BY, WarningCode.LOAD_UNKNOWN} <= codes(result)


def test_block_as_a_tag_needs_no_option() -> None:
    """Name blocks by texts, as MLFLOW_RUN_CONTEXT may."""
    table = foreign()
    table["tags.block"] = "night " + table["params.seed"]
    result = compare(table.drop(columns="params.seed"), factor="script")
    assert verdicts(result) == {SECONDS: "slower", ACCURACY: "equivalent"}
    assert WarningCode.PAIRED_BY not in codes(result)
    assert WarningCode.LOAD_UNKNOWN in codes(result)


def test_only_quality_is_judged_of_runs_one_after_the_other() -> None:
    """Run all of a, then all of b: what changed in between is in the times."""
    result = judge(foreign("a" * 8 + "b" * 8))
    assert verdicts(result) == {SECONDS: "not comparable", ACCURACY: "equivalent"}
    (times,) = [finding for finding in result.findings if finding.row.metric == SECONDS]
    assert times.mismatch is Mismatch.ORDER
    assert "filter" in times.row.reason
    assert WarningCode.NOT_SIDE_BY_SIDE in codes(result)


def test_ignored_settings_are_listed() -> None:
    table = foreign()
    table["params.opt_lr"] = np.where(table["tags.script"] == "a", "0.1", "0.2")
    refused = judge(table)
    assert {finding.mismatch for finding in refused.findings} == {Mismatch.SETTINGS}
    for pattern in ("opt_*", "params.opt_*", "opt_lr"):
        result = judge(table, ignore=pattern)
        assert verdicts(result)[SECONDS] == "slower"
        (line,) = [w.text for w in result.warnings if w.code is WarningCode.IGNORED_SETTINGS]
        assert "opt_lr (0.1, 0.2)" in line


def test_autologged_settings_of_one_library_are_listed() -> None:
    """Keras logs `opt_…`, Lightning `lr`; a batch size that differs is refused all the same."""
    table = foreign()
    is_a = table["tags.script"] == "a"
    table["params.opt_learning_rate"] = np.where(is_a, "0.001", None)
    table["params.lr"] = np.where(is_a, None, "0.001")
    table["params.batch_size"] = "32"
    result = judge(table)
    assert verdicts(result)[SECONDS] == "slower"
    (line,) = [w.text for w in result.warnings if w.code is WarningCode.AUTOLOGGED_SETTINGS]
    assert "opt_learning_rate (0.001, none)" in line.replace("none, 0.001", "0.001, none")
    table["params.batch_size"] = np.where(is_a, "32", "64")
    assert {finding.mismatch for finding in judge(table).findings} == {Mismatch.SETTINGS}


def test_scores_of_libraries_are_quality() -> None:
    names = ["training_f1_score", "val_roc_auc", "test_accuracy", "auc_1", "val_f1", "test_r2"]
    errors = [
        *("training_log_loss", "training_mean_squared_error", "val_mae", "test_rmse"),
        *("mean_absolute_percentage_error", "val_perplexity", "word_error_rate"),
    ]
    assert {outcome(name).better for name in names} == {"higher"}
    assert {outcome(name).better for name in errors} == {"lower"}
    assert all(outcome(name).is_learned for name in [*names, *errors])
    assert not any(outcome(name).is_learned for name in (SECONDS, "memory_bytes", "epochs"))


def test_runs_without_a_machine_are_a_caution_and_other_machines_are_refused() -> None:
    is_a = foreign()["tags.script"] == "a"
    unknown = judge(foreign(**{"tags.machine": np.where(is_a, "m1", None)}))
    assert verdicts(unknown)[SECONDS] == "slower"
    assert WarningCode.MACHINE_UNKNOWN in codes(unknown)
    quality = judge(foreign(), outcomes=[ACCURACY])
    assert WarningCode.MACHINE_UNKNOWN not in codes(quality)
    same = foreign(**{"tags.machine": "m1", "tags.gpu": "A100 (driver 1)"})
    assert codes(judge(same)) == {WarningCode.PAIRED_BY, WarningCode.LOAD_UNKNOWN}
    other = {"tags.machine": np.where(is_a, "m1", "m2"), "tags.gpu": np.where(is_a, "A100", "H100")}
    refused = judge(foreign(**other))
    assert {finding.mismatch for finding in refused.findings} == {Mismatch.MACHINES}
    assert "machine (m1, m2), gpu (A100, H100)" in refused.findings[0].row.reason


def test_packages_and_variables_that_differ_are_listed() -> None:
    is_a = foreign()["tags.script"] == "a"
    columns = {
        "tags.machine": "m1",
        "tags.version.numpy": np.where(is_a, "2.1", "2.3"),
        "tags.inherited.OMP_NUM_THREADS": np.where(is_a, None, "1"),
        "tags.cpus.usable": "2",
    }
    result = judge(foreign(**columns))
    assert verdicts(result)[SECONDS] == "slower"
    (line,) = [w.text for w in result.warnings if w.code is WarningCode.MIXED_ENVIRONMENTS]
    assert "inherited.OMP_NUM_THREADS (none, 1), version.numpy (2.1, 2.3)" in line
    by_version = judge(foreign(**columns), factor="version.numpy", ignore=["script"])
    assert verdicts(by_version)[SECONDS] == "slower"
    (line,) = [w.text for w in by_version.warnings if w.code is WarningCode.MIXED_ENVIRONMENTS]
    assert "version.numpy" not in line


TIME, RATE, ERROR = ("ratio", "lower", "faster"), ("ratio", "higher", "faster"), ("ratio", "lower")
SHARE, UNKNOWN = ("difference", "higher", "higher"), ("ratio", "neither", "")


@pytest.mark.parametrize(
    ("names", "rules", "unit"),
    [
        (("time", "epoch_time", "train_runtime", "total_time_s", "fit_seconds"), TIME, "s"),
        (("step_ms", "latency_ms", "stepTime_ms", "p95_latency_ms", "time/forward-ms"), TIME, "ms"),
        (("latency", "p99_latency", "LatencyP50"), TIME, ""),
        (("throughput", "tokens_per_second", "eval/samples_per_second", "tokens/s"), RATE, "1/s"),
        (("acc", "val_acc", "valAcc", "Accuracy/test", "eval_accuracy", "acc1"), SHARE, ""),
        (("accuracy_percent", "Top1/percent"), SHARE, ""),
        (
            (
                "iou",
                "mean_iou",
                "meanIoU",
                "mIoU",
                "map",
                "mAP",
                "map50",
                "auc",
                "roc_auc",
                "f1",
                "macro_f1",
            ),
            SHARE,
            "",
        ),
        (("loss", "val_loss", "Loss/train"), ("difference", "lower", "lower"), ""),
        (("error", "error_rate", "test_mse", "rmse", "perplexity"), (*ERROR, "lower"), ""),
        (("peak_memory", "gpu_memory_mb"), (*ERROR, "lower"), None),
        (
            (
                "lr",
                "learning_rate",
                "epoch",
                "grad_norm",
                "times_seen",
                "mapping",
                "f10",
                "previous",
            ),
            UNKNOWN,
            "",
        ),
    ],
)
def test_names_of_others_have_direction_kind_and_unit(
    names: Sequence[str], rules: tuple[str, str, str], unit: str | None
) -> None:
    metrics = {name: outcome(name) for name in names}
    judged = {name: (m.kind, m.better, m.better_word) for name, m in metrics.items()}
    assert judged == dict.fromkeys(names, rules)
    assert unit is None or {metric.unit for metric in metrics.values()} == {unit}


def test_accuracy_in_percent_is_judged_in_points() -> None:
    """Shift one side by half a point, in shares and in percent, then by more than a point."""
    shares = foreign()
    shares[f"metrics.{ACCURACY}"] += np.where(shares["tags.script"] == "b", 0.005, 0)
    percents = shares.assign(**{f"metrics.{ACCURACY}": 100 * shares[f"metrics.{ACCURACY}"]})
    (share,), (percent,) = (
        judge(table, outcomes=[ACCURACY]).findings for table in (shares, percents)
    )
    assert share.row.verdict == percent.row.verdict == "different, within margin"
    assert (percent.row.margin, percent.outcome.unit) == (1.0, "points")
    assert percent.row.estimate == pytest.approx(100 * (share.row.estimate or 0))
    percents[f"metrics.{ACCURACY}"] -= np.where(percents["tags.script"] == "b", 3, 0)
    assert verdicts(judge(percents, outcomes=[ACCURACY])) == {ACCURACY: "lower"}


def test_accuracy_that_rounding_lifts_above_1_is_a_share() -> None:
    """Judge 0.97 against 1 as lower; in points, both would be equal."""
    shares = foreign()
    shares[f"metrics.{ACCURACY}"] = np.where(shares["tags.script"] == "b", 0.97, 1.0000001)
    shares[f"metrics.{ACCURACY}"] += np.random.default_rng(0).normal(0, 1e-4, len(shares))
    (finding,) = judge(shares, outcomes=[ACCURACY]).findings
    assert (finding.row.margin, finding.row.verdict) == (0.01, "lower")
