"""Analyses of known values: controls, batch sizes, breakdown, workers, memory, learning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments import studies
from experiments.comparison import analyses, compare
from experiments.comparison.analyses import (
    Evidence,
    batch_sizes,
    breakdown,
    controls,
    hypotheses,
    learning,
    published,
    roofline,
    workers,
)
from experiments.comparison.analyses.batch_sizes import curves, find_limit
from experiments.comparison.analyses.breakdown import PARTS, breakdowns
from experiments.comparison.analyses.memory_limits import edges
from experiments.comparison.report import wording
from experiments.comparison.runs.query import table
from experiments.comparison.runs.raw import RawRun
from experiments.comparison.runs.warning import WarningCode
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Edge
from experiments.config import settings as settings_
from experiments.metrics import Hypothesis
from experiments.planning import treatments
from experiments.studies.training_speed import SHARES, SOURCE
from tests.experiments.comparison.campaigns import RATE, RSS, STEP, frame, paired, runs
from tests.experiments.small_campaigns import required
from tracking.errors import UsageError
from tracking.records import StoredRun


def _rates(
    means: dict[int, float], blocks: int = 12, spread: float = 0.005, seed: int = 0
) -> dict[int, dict[str, float]]:
    """Return rates of blocks that drift, which pairing must take out."""
    rng = np.random.default_rng(seed)
    drift = rng.normal(0, 0.1, blocks)
    return {
        size: {
            str(block): float(mean * np.exp(drift[block] + rng.normal(0, spread)))
            for block in range(blocks)
        }
        for size, mean in means.items()
    }


@pytest.mark.parametrize(
    ("means", "limit", "reason"),
    [
        ({1: 100, 2: 190, 4: 350, 8: 600}, None, "is shown to be within"),
        ({1: 100, 8: 600, 16: 601, 32: 603}, 8, "no other size"),
        ({1: 100, 8: 600, 16: 500, 32: 520}, 8, "no other size"),
        ({1: 100, 2: 101.5, 4: 103, 8: 104.6, 16: 106.1}, None, "is shown to be within"),
        ({1: 100, 2: 95, 4: 90}, None, "not shown to rise"),
        ({1: 100, 8: 100.1}, 1, "no other size"),
    ],
)
def test_limit_is_smallest_size_within_two_percent_of_best(
    means: dict[int, float], limit: int | None, reason: str
) -> None:
    result = find_limit(_rates(means))
    assert (result.size, reason in result.reason) == (limit, True)
    assert (result.trend_p is None) == (len(means) == 2)


def test_limit_needs_blocks_that_hold_every_size() -> None:
    rates = _rates({1: 100, 8: 300}, blocks=8)
    rates[8] = {f"other {block}": value for block, value in rates[8].items()}
    assert "blocks with all sizes: 0" in find_limit(rates).reason


def test_false_limits_are_rare() -> None:
    """Gains of 5 % a step: TOST passes at most 5 % of the pairs, here hardly any."""
    limits = [
        find_limit(_rates({1: 100, 2: 105, 4: 110.25}, blocks=8, spread=0.01, seed=seed)).size
        for seed in range(60)
    ]
    assert sum(size is not None for size in limits) <= 3


def with_inference(table: pd.DataFrame, sizes: tuple[int, ...] = (1, 8, 16)) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    for size in sizes:
        prefix = "inference/" if size == sizes[0] else f"inference/batch_{size}/"
        rate = 50.0 * min(size, 8) * np.exp(rng.normal(0, 0.004, len(table)))
        table[f"{prefix}examples_per_second"] = rate
        table[f"{prefix}latency_seconds_p50"] = size / rate
    return table.assign(**{"params.inference_batch_sizes": ",".join(map(str, sizes))})


def test_inference_has_curve_for_each_level() -> None:
    table = with_inference(frame(blocks=10))
    results = batch_sizes.from_evidence(Evidence(compare(table), table))
    assert [(curve.phase, curve.level, curve.limit.size) for curve in results] == [
        ("inference", "pytorch", 8),
        ("inference", "tensorflow", 8),
    ]
    assert list(results[0].rates) == [1, 8, 16]
    assert results[0].rates[1] == pytest.approx(50, rel=0.01)


def test_no_curve_without_first_size_or_with_one_size() -> None:
    assert curves(compare(with_inference(frame(), (1,))), 1) == ()
    assert curves(compare(with_inference(frame(), (1, 8))), None) == ()
    mixed = with_inference(frame())
    mixed.loc[0, "params.inference_batch_sizes"] = "2,8"
    results = batch_sizes.from_evidence(Evidence(compare(mixed), mixed))
    assert [list(curve.rates) for curve in results] == [[8, 16]] * 2


def sized() -> pd.DataFrame:
    tables = []
    for size in (8, 16, 32):
        table = frame(blocks=8, seed=size, params={"batch_size": str(size)}, spread=0.003)
        table["run_id"] += f"-{size}"
        table[RATE] *= min(size, 16) / 16
        table[STEP] *= size / 16
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def test_training_has_curve_if_batch_size_is_stratum_or_factor() -> None:
    table = sized()
    results = curves(compare(table, strata=["batch_size"]))
    assert [(curve.phase, curve.level, curve.stratum, curve.limit.size) for curve in results] == [
        ("training", "pytorch", "", 16),
        ("training", "tensorflow", "", 16),
    ]
    comparison = compare(table[table["framework"] == "pytorch"], factor="batch_size")
    (curve,) = curves(comparison)
    assert (curve.level, curve.limit.size) == ("", 16)
    assert list(curve.rates) == [8, 16, 32]


MODELS = ("gnmt", "vgg16")


def with_shares(of_peak: dict[str, float]) -> pd.DataFrame:
    """Return a campaign whose levels reach these shares of a peak, more or less."""
    compared = frame(blocks=8)
    rng, intensity = np.random.default_rng(0), 12.5
    typical = compared["framework"].map(of_peak).to_numpy(float)
    return compared.assign(
        **{
            "train/mfu": typical * np.exp(rng.normal(0, 0.01, len(compared))),
            "machine/peak_flops": 100e9,
            "machine/bandwidth": 4e9,
            "model/training_flops_per_byte": intensity,
        }
    )


def test_roofline_has_the_share_of_each_level_with_its_interval() -> None:
    comparison = compare(with_shares({"pytorch": 0.31, "tensorflow": 0.22}))
    by_level = {point.level: point for point in roofline.points(comparison)}
    assert by_level["pytorch"].share.value == pytest.approx(0.31, rel=0.01)
    assert by_level["pytorch"].share.low < 0.31 < by_level["pytorch"].share.high
    assert by_level["tensorflow"].roof == 50e9  # the memory's
    evidence = Evidence(comparison)
    (sentence,) = roofline.sentences(evidence)
    assert "PyTorch 31 % and TensorFlow 22 %" in sentence
    (section,) = roofline.table(evidence)
    assert [line[1].text for line in section.lines if not isinstance(line, str)] == [*by_level]
    assert [drawing.name for drawing in roofline.figure(evidence)] == ["roofline"]
    assert not [row for row in comparison.rows if row.metric.endswith("mfu")]


def test_roofline_is_absent_without_a_peak() -> None:
    evidence = Evidence(compare(frame(blocks=8)))
    parts = (roofline.sentences, roofline.table, roofline.figure)
    assert all(part(evidence) == [] for part in parts)


def profiled() -> pd.DataFrame:
    """Return two networks in two frameworks; one cannot count, and one run has no profile."""
    rng, tables = np.random.default_rng(0), []
    for at, model in enumerate(MODELS):
        table = frame(blocks=3, params={"model": model}).assign(model=model)
        table["run_id"] += model
        table["start_ms"] += 10 * at
        parts = {f"profile/{part}_seconds": rng.uniform(0.01, 0.2, len(table)) for part in PARTS}
        is_pytorch = table["framework"] == "pytorch"
        parts |= {
            "profile/step_seconds": sum(parts.values()),
            "profile/input_seconds": 0.004,
            "profile/ops_per_step": np.where(is_pytorch, 1_234.0, np.nan),
            "tags.not_available.profile/ops_per_step": np.where(is_pytorch, None, "XLA fuses"),
        }
        tables.append(table.assign(**parts))
    table = pd.concat(tables, ignore_index=True)
    table.loc[0, [name for name in table.columns if name.startswith("profile/")]] = np.nan
    return table


def test_breakdown_has_the_means_of_each_level() -> None:
    table = profiled()
    comparison = compare(table, strata=("model",))
    results = breakdowns(comparison)
    for result in results:
        of_model = "model=" + table["model"] == result.stratum
        runs = table[of_model & (table["framework"] == result.level)]
        for part in PARTS:
            assert result.seconds[part] == pytest.approx(runs[f"profile/{part}_seconds"].mean())
        assert (result.ops is None) == (result.level == "tensorflow")
    assert len(results) == 4
    assert breakdown.table(Evidence(compare(frame()))) == []


def test_eager_level_is_a_warning() -> None:
    table = frame(levels=["pytorch", "pytorch+compile"])
    reason = "lenet: 2 graph breaks, first: print"
    table["tags.ran_eagerly"] = np.where(table["framework"] == "pytorch+compile", reason, None)
    (warning,) = analyses.warnings(Evidence(compare(table)))
    assert warning.code is WarningCode.NOT_COMPILED
    assert f"pytorch+compile: {reason}" in warning.text


def test_published_shares_stand_beside_measured_ones() -> None:
    comparison = compare(profiled(), strata=("model",))
    (section,) = published.shares(comparison, SHARES, SOURCE)
    shares = {
        (result.stratum, result.level): f"{100 * result.share('op'):.2f} %"
        for result in breakdowns(comparison)
    }
    expected = [
        (model, *both, *(shares[f"model={model}", level] for level in ("pytorch", "tensorflow")))
        for model, both in (
            ("vgg16", ("99.64 %", "99.34 %")),
            ("gnmt", ("85.91 %", "96.55 %")),
        )
    ]
    assert section.rows == expected
    assert published.shares(compare(frame()), SHARES, SOURCE) == []


GROUPS = {"1": (1, "none"), "2": (2, "none"), "4": (4, "none"), "4 fp16": (4, "fp16")}


def campaign(blocks: int = 6) -> pd.DataFrame:
    """Steps take 1, 1.1, 1.25 and 1.2 times as long as one worker's; a tenth is exchange."""
    table = frame(
        list(GROUPS),
        blocks,
        factors={"2": 1.1, "4": 1.25, "4 fp16": 1.2},
        params={"scaling": "weak"},
    )
    counts = table["framework"].map(lambda level: GROUPS[level][0])
    table[RATE] *= counts
    table["train/alone_step_seconds"] = 0.9 * table[STEP]
    table["check/workers"] = counts.astype(float)
    several = counts > 1
    table.loc[several, "check/weights_error"], table.loc[several, "check/weights_error_limit"] = (
        2e-16,
        1e-12,
    )
    return table


def test_overhead_is_published_formula_and_exposed_is_measured() -> None:
    table = campaign()
    gains = {gain.finding.row.b: gain for gain in workers.gains(compare(table))}
    assert {level: gain.workers for level, gain in gains.items()} == {"2": 2, "4": 4, "4 fp16": 4}
    rates = {
        level: 1 / table[table["framework"] == level].sort_values("block")[STEP].to_numpy()
        for level in GROUPS
    }
    for level, gain in gains.items():
        # Steps a second of k workers over those of one, block by block.
        logs, row = np.log(rates[level] / rates["1"]), gain.finding.row
        assert gain.overhead.value == pytest.approx(1 - np.exp(logs.mean()))
        assert gain.overhead.low == pytest.approx(1 - row.ci_high / gain.workers)
        assert gain.overhead.high == pytest.approx(1 - row.ci_low / gain.workers)
        assert gain.exposed is not None
        assert gain.exposed.value == pytest.approx(0.1)
        assert gain.speedup.value == pytest.approx(gain.efficiency.value * gain.workers)


def test_one_block_has_no_interval_and_no_exchange_no_share() -> None:
    missing = ["train/alone_step_seconds", "check/weights_error", "check/weights_error_limit"]
    assert workers.sections(compare(campaign(1).drop(columns=missing)), GROUPS, "weak") == []
    (speedups,) = workers.sections(compare(campaign(3).drop(columns=missing)), GROUPS, "weak")
    assert list(speedups.rows[0][7:]) == [wording.NONE] * 4
    assert workers.gains(compare(frame())) == []


def sizes_of(level: str, sizes: dict[int, list[str]], **others: str) -> list[dict[str, object]]:
    return [
        {"framework": level, "params.batch_size": str(size), "outcome": outcome, **others}
        for size, outcomes in sizes.items()
        for outcome in outcomes
    ]


def test_limit_is_between_largest_that_fits_and_smallest_that_does_not() -> None:
    ok, full = "ok", "out_of_memory"
    table = pd.DataFrame(
        [
            *sizes_of(
                "a", {8: [ok, ok], 64: [ok, full], 128: [full], 256: [full]}, model="m2"
            ),  # 64 fitted once
            *sizes_of("b", {8: [full, full]}, model="m10"),
            *sizes_of("a", {8: [ok], 16: [ok]}, model="m10"),
            *sizes_of("b", {8: [ok], 16: ["failed"]}, model="m2"),
        ]
    )
    assert edges(table, factor="framework", strata=["model", "batch_size"]) == (
        Edge("a", "model=m2", 64, 128),
        Edge("b", "model=m10", None, 8),
    )


@pytest.mark.parametrize("outcomes", [["ok"], ["ok", "out_of_memory"], ["failed"]])
def test_no_limit_without_a_size_that_does_not_fit(outcomes: list[str]) -> None:
    assert edges(pd.DataFrame(sizes_of("a", {8: outcomes})), factor="framework", strata=[]) == ()
    assert edges(pd.DataFrame({"framework": ["a"]}), factor="framework", strata=[]) == ()


EPOCHS = 5
TOTAL = "train/total_seconds"


def learning_curves(
    shift: float, *, blocks: int = 6, noise: float = 0.004, metric: str = "val/accuracy"
) -> list[RawRun]:
    """Return two levels that learn alike, but b lies `shift` off in the third epoch."""
    rng, runs = np.random.default_rng(0), []
    for block in map(str, range(1, blocks + 1)):
        common = np.linspace(0.5, 0.9, EPOCHS) + 0.02 * rng.standard_normal()
        for level in ("a", "b"):
            values = common + noise * rng.standard_normal(EPOCHS)
            values[2] += shift * (level == "b")
            runs.append(RawRun(f"{level}{block}", level, "", block, {}, epochs={metric: values}))
    return runs


@pytest.mark.parametrize(
    ("raw", "alike", "epoch"),
    [
        (learning_curves(0.0, noise=0.002), True, None),
        (learning_curves(0.006, noise=0.0005), True, 3),  # certain, but less than one point
        (learning_curves(-0.05), False, 3),
        (learning_curves(-0.5, blocks=5, metric="val/loss"), None, 3),
        (learning_curves(-0.5, blocks=2), None, None),
    ],
)
def test_agreement_of_curves(raw: list[RawRun], alike: bool | None, epoch: int | None) -> None:
    (agreement,) = learning.agreements(raw, "a")
    assert (agreement.a, agreement.b, agreement.n_epochs) == ("a", "b", EPOCHS)
    assert agreement.metric in raw[0].epochs
    assert agreement.n_blocks == len(raw) // 2
    assert agreement.alike is alike
    assert epoch in (None, agreement.epoch)
    evidence = Evidence(compare(paired([1.0, 2.0], [1.0, 2.0])), raw=raw)
    codes = [warning.code for warning in learning.warnings(evidence)]
    assert codes == ([WarningCode.LEARNING_DIFFERS] if alike is False else [])
    (section,) = learning.table(evidence)
    assert len(section.rows) == 1


def with_times(never: int) -> pd.DataFrame:
    """Return 8 blocks; tensorflow is slower to 90 %, which `never` of its runs do not reach."""
    table = frame(blocks=8, params={"thresholds": "0.9,0.95"})
    is_late, blocks = table["framework"] == "tensorflow", table["block"].astype(int)
    seconds = np.where(is_late, 40.0, 20.0) + blocks
    seconds = np.where(is_late & (blocks < never), np.nan, seconds)
    return table.assign(**{TOTAL: 100.0 + blocks, "train/to_accuracy_90_percent_seconds": seconds})


def test_runs_that_do_not_reach_an_accuracy_are_counted() -> None:
    """The fourth of eight times is the median; runs that never reach it come last."""

    def rows(never: int) -> list[tuple[object, ...]]:
        evidence = Evidence(compare(with_times(never), baseline="pytorch", outcomes=[TOTAL]))
        (section,) = learning.times_to_accuracy(evidence)
        return [tuple(row) for row in section.rows]

    assert rows(3) == [
        ("90 %", "pytorch", "8 of 8", "23 s"),
        ("90 %", "tensorflow", "5 of 8", "46 s"),
        ("95 %", "pytorch", "0 of 8", "never"),
        ("95 %", "tensorflow", "0 of 8", "never"),
    ]
    assert rows(5)[1] == ("90 %", "tensorflow", "3 of 8", "never")


HYPOTHESES = (
    Hypothesis("H1", "Does one take less time?", "learning", TOTAL, "3.90e-18"),
    Hypothesis("H2", "Is one cooler?", "learning", "gpu/temperature_celsius_mean", "0.5"),
    Hypothesis(
        "H3", "Is one cooler?", "inference", "inference/cpu/temperature_celsius_mean", "0.5"
    ),
)


@pytest.mark.parametrize(
    ("ratio", "spread", "decision"),
    [
        (1.035, 0.01, Decision.SIZE_OPEN),
        (1.01, 0.002, Decision.WITHIN_MARGIN),
        (1.0, 0.01, Decision.EQUIVALENT),
        (1.0, 0.0, Decision.IDENTICAL),
        (2.0, 0.0, Decision.DIFFERENT),
        (1.01, 0.0, Decision.CONSTANT),
    ],
)
def test_null_hypothesis_does_not_depend_on_the_margin(
    ratio: float, spread: float, decision: Decision
) -> None:
    """Log-ratios with exactly this mean and SD: the answers to both questions are known."""
    noise = np.random.default_rng(0).permutation(np.linspace(-1, 1, 12))
    values = ratio * np.exp(spread * noise / noise.std(ddof=1))
    comparison = compare(paired([1.0] * 12, list(values), TOTAL))
    (result,) = hypotheses.answered(HYPOTHESES[:1], comparison)
    assert result.finding is not None
    assert result.finding.decision is decision
    is_rejected = ratio != 1
    assert result.finding.different is is_rejected
    counts = (
        f"Rejected: {int(is_rejected)}, no difference beyond the margin: {int(not is_rejected)}, "
    )
    assert counts in hypotheses.sentence([result])
    assert ("rejected" in hypotheses.text(result)) is is_rejected


def with_controls(
    factor: float = 1.05, *, baseline: str = "pytorch", campaign: str = "c1"
) -> pd.DataFrame:
    """Return two frameworks, A/A cells, and cells whose steps are slowed by a factor."""
    cells = [_as_treatment(run, run.tags["framework"]) for run in runs(campaign=campaign)]
    for name, seed, slower in (("A/A", 1, 1.0), ("injected 5 %", 2, factor)):
        repeated = runs((baseline,), seed=seed, factors={baseline: slower}, campaign=campaign)
        cells += [_as_treatment(run, f"{baseline} {name}", name) for run in repeated]
    return table(cells)


def _as_treatment(run: StoredRun, treatment: str, control: str = "") -> StoredRun:
    delay = "0.05" if control.startswith("injected") else "0.0"
    return replace(
        run,
        run_id=f"{run.run_id}-{treatment}",
        params={**run.params, "inject_delay": delay},
        tags={**run.tags, "treatment": treatment, **({"control": control} if control else {})},
    )


def test_controls_do_not_change_the_rows() -> None:
    cells = with_controls()
    without = cells[cells["tags.control"].isna()].drop(columns=["tags.control"])
    assert compare(cells, baseline="pytorch").rows == compare(without, baseline="pytorch").rows


def test_level_is_not_judged_by_the_control_of_another() -> None:
    cells = with_controls()
    cells = cells.assign(**{"params.level": cells["framework"], "framework": ""})
    comparison = compare(cells, factor="level", outcomes=[STEP])
    assert [(row.a, row.b) for row in comparison.rows] == [("pytorch", "tensorflow")]
    rows = [(row.a, row.b) for control in comparison.controls for row in control.comparison.rows]
    assert rows == [("pytorch", f"pytorch {name}") for name in ("A/A", "injected 5 %")]


def test_single_framework_is_compared_with_its_controls() -> None:
    cells = with_controls()
    cells = cells[cells["framework"] == "pytorch"]
    comparison = compare(cells, outcomes=[STEP])
    verdicts = {(row.a, row.b): row.verdict for row in comparison.rows}
    assert set(verdicts) == {("pytorch", f"pytorch {name}") for name in ("A/A", "injected 5 %")}
    assert verdicts["pytorch", "pytorch injected 5 %"] == "slower"
    assert verdicts["pytorch", "pytorch A/A"] != "slower"
    assert {control.name for control in comparison.controls} == {"A/A", "injected 5 %"}
    with pytest.raises(UsageError, match="tensorflow"):
        compare(cells, baseline="tensorflow", outcomes=[STEP])


@pytest.mark.parametrize("study", studies.available())
@pytest.mark.parametrize("control", [{"aa": "true"}, {"inject_delay": "5%"}])
def test_study_adds_controls_or_refuses_them(study: str, control: dict[str, str]) -> None:
    """A study that did neither would slow what it compares, or claim a missing control."""
    module = studies.load(study)
    if control.keys() & module.settings.not_offered:
        with pytest.raises(UsageError):
            settings_.parse(module.settings, module.presets, control)
        return
    values = {"aa": "false", "inject_delay": "0", **required(study), **control}
    settings = settings_.parse(module.settings, module.presets, values)
    planned = treatments.list_treatments(module, settings)
    names = [treatment.name.partition(" ")[2] for treatment in planned if " " in treatment.name]
    assert names == (["A/A"] if "aa" in control else ["+5 %"])
    slowed = [treatment for treatment in planned if treatment.settings.get("inject_delay") != 0]
    assert len(slowed) == ("inject_delay" in control)


@pytest.mark.parametrize(
    ("factor", "is_missed"), [(1.05, False), (1.0, True), (0.9, True), (1.3, True)]
)
def test_injected_delay_must_show_in_its_size(factor: float, is_missed: bool) -> None:
    """Eight blocks of SD 1 % give ±1.2 %: no wrong size comes within the margin."""
    cells = with_controls(factor)
    cells.loc[cells["tags.control"] == "injected 5 %", RSS] *= 2
    same, control = compare(cells, baseline="pytorch", outcomes=(STEP, RSS)).controls
    assert not any(finding.different for finding in same.tested)
    missed = [finding.row.metric for finding in controls.missed(control)]
    assert missed == ([STEP] if is_missed else [])
    assert f"in {0 if is_missed else 1} of 1 delayed times" in controls.result(control)


def test_every_baseline_has_its_controls() -> None:
    parts = [with_controls(), with_controls(baseline="tensorflow", campaign="c2")]
    cells = pd.concat(parts, ignore_index=True)
    comparison = compare(cells, baseline="pytorch", outcomes=[STEP])
    rows = [
        (row.a, row.b, row.n_blocks)
        for control in comparison.controls
        if control.name == "A/A"
        for row in control.comparison.rows
    ]
    assert rows == [(name, f"{name} A/A", 8) for name in ("pytorch", "tensorflow")]
    assert len(controls.sentences(Evidence(comparison))) == len(comparison.controls) == 4
