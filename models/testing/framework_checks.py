"""What every framework must do, as functions of an open adapter: `python -m models.testing NAME FOLDER`.

Everything is in float64: there equal computations agree to 1e-12 and a fault shows as 1e-7 or more, so 1e-9 separates them.
"""

from __future__ import annotations

import itertools
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat
from unittest.mock import patch

import numpy as np
import pytest

from models import frameworks, parity, spec
from models.caption_decoder.decoding import decode
from models.contract import Batch, Framework, ModelError, OptimizerConfig, Weights
from models.frameworks import open_framework

TIGHT = 1e-9
NAMES = OptimizerConfig.NAMES
START, END = 1, 2
EACH_SHAPE = ("tensorflow+xla", "keras-tensorflow", "keras-jax")
COMPILING = (*EACH_SHAPE, "tensorflow", "pytorch+compile")
# Every kind of layer that adapters treat apart.
SOME = ("caption_decoder", "densenet201")
decoder = spec("caption_decoder")


def small_network(framework: Framework, **changes: Any) -> tuple[Any, Any, Batch]:
    small, batch = decoder.probe(np.random.default_rng(0))
    small = replace(small, **{"dropout": 0.0, **changes})
    network = framework.build("caption_decoder", small)
    framework.load_weights(network, decoder.initial_weights(small, np.random.default_rng(1)))
    return network, small, batch


def ragged_batches(count: int) -> list[Batch]:
    """Batches of other numbers of rows, tokens and positions, as buckets bring them."""
    rng = np.random.default_rng(3)
    batches = []
    for rows, tokens in itertools.islice(itertools.cycle([(5, 7), (5, 7), (4, 6), (6, 3)]), count):
        positions = np.arange(0, rows * tokens, 2, dtype=np.int32)
        inputs = (
            rng.standard_normal((rows, 40)).astype(np.float32),
            rng.integers(1, 61, (rows, tokens), dtype=np.int32),
            positions,
        )
        targets = rng.integers(1, 61, len(positions), dtype=np.int32)
        batches.append(
            Batch(inputs, targets, rng.uniform(0.5, 1, len(positions)).astype(np.float32))
        )
    return batches


def relative(a: Weights, b: Weights) -> float:
    assert a.keys() == b.keys()
    return max(
        float(np.linalg.norm(a[name] - b[name]) / (np.linalg.norm(a[name]) + 1e-30)) for name in a
    )


class Clock:
    """Keeps what it is told: `begin`, and at every end the losses, which are read when it has stopped."""

    def __init__(self, window_steps: int = 1) -> None:
        self.window_steps = window_steps
        self.calls: list[Any] = []
        self.runs = False

    def begin(self) -> None:
        self.calls.append("begin")
        self.runs = True

    def end(self, *losses: SupportsFloat) -> None:
        self.runs = False
        self.calls.append(tuple(map(float, losses)))

    def on_device(self, seconds: Sequence[float]) -> None:
        self.calls[-1] += ("on device", len(seconds))


def check_only_its_own_framework_is_imported(framework: Framework) -> None:
    every = {
        package
        for name in frameworks.available()
        for package in frameworks.described(name).packages
    }
    shared = {"jax", "numpy"}  # Keras looks at JAX where it is installed; everybody uses NumPy
    foreign = every - set(frameworks.described(framework.name).packages) - shared
    imported = foreign & sys.modules.keys()
    assert not imported, imported


def check_published_sizes(framework: Framework) -> None:
    for vocabulary, length, trainable in (
        (8485, 34, 4_316_709),
        (18313, 74, 8_100_489),
        (26443, 49, 11_230_539),
    ):
        sizes = decoder.Spec(vocabulary, length)
        assert decoder.parameters(sizes) == (trainable, 0)
        assert framework.parameter_counts(framework.build("caption_decoder", sizes)) == (
            trainable,
            0,
        )
    dense = spec("densenet201")
    assert dense.parameters(dense.Spec()) == (
        20_013_928,
        229_056,
    )  # built by tests of the models; here without its classifier
    sizes, published = dense.Spec(classes=None), (18_092_928, 229_056)
    assert dense.parameters(sizes) == published
    assert framework.parameter_counts(framework.build("densenet201", sizes)) == published


def check_weights_go_in_and_out_unchanged(framework: Framework) -> None:
    for model in SOME:
        module, rng = spec(model), np.random.default_rng(0)
        small, _ = module.probe(rng)
        network = framework.build(model, small)
        given = {name: rng.standard_normal(shape) for name, shape in module.shapes(small).items()}
        framework.load_weights(network, given)
        taken = framework.weights(network)
        assert taken.keys() == given.keys()
        for name in given:
            np.testing.assert_array_equal(taken[name], given[name], err_msg=name)


def check_weights_that_do_not_fit_are_named(framework: Framework) -> None:
    network, _, _ = small_network(framework)
    good = framework.weights(network)
    without = {name: array for name, array in good.items() if name != "merge.bias"}
    with pytest.raises(ModelError, match=r"'merge\.bias' is missing"):
        framework.load_weights(network, without)
    with pytest.raises(ModelError, match=r"'extra' is superfluous"):
        framework.load_weights(network, {**good, "extra": np.zeros(1)})
    with pytest.raises(ModelError, match=r"'merge\.weight' has shape \(24, 12\)"):
        framework.load_weights(network, {**good, "merge.weight": good["merge.weight"].T})


def check_loss_is_the_weighted_mean(framework: Framework) -> None:
    network, _, batch = small_network(framework)
    weights = np.linspace(0, 1, len(batch.targets)).astype(np.float32)
    logits = framework.infer(network, batch.inputs)
    logits = logits - logits.max(1, keepdims=True)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), batch.targets]
    loss, total = framework.evaluate(network, replace(batch, weights=weights))
    np.testing.assert_allclose(
        [loss, total], [(losses * weights).sum(), weights.sum()], rtol=1e-7
    )  # float32 weights summed
    trained = framework.train_step(
        network,
        framework.optimizer(network, OptimizerConfig("adam", 1e-3)),
        replace(batch, weights=weights),
    )
    np.testing.assert_allclose(float(trained), (losses * weights).sum() / weights.sum(), rtol=1e-6)


def check_dropout_is_on_only_in_training(framework: Framework) -> None:
    network, _, batch = small_network(framework, dropout=0.5)
    first = framework.evaluate(network, batch)
    assert framework.evaluate(network, batch) == first
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 0.0))
    losses = [float(framework.train_step(network, optimizer, batch)) for _ in range(3)]
    assert len({*losses, first[0] / first[1]}) == 4  # three masks and none


def check_what_training_drops_is_measured(framework: Framework) -> None:
    network, small, batch = small_network(framework, dropout=0.4)
    found = framework.dropping(network, batch.inputs, 2**16)
    assert found.keys() == {"state_dropout", "merged_dropout"}
    rows = len(batch.inputs[2])
    for one, size in (
        (found["state_dropout"], small.width),
        (found["merged_dropout"], small.hidden),
    ):
        assert (one.given.shape, one.drawn.shape) == ((rows * size,), (2**15, 2))
        np.testing.assert_allclose(one.drawn[one.drawn != 0], 1 / 0.6, rtol=TIGHT)
        assert (
            abs((one.drawn == 0).mean() - 0.4) < 6 * (0.4 * 0.6 / 2**16) ** 0.5
        )  # six standard errors
        assert (one.drawn[:, 0] != one.drawn[:, 1]).any()  # every value for itself


def check_nothing_drops_when_told_so(framework: Framework) -> None:
    network, _, batch = small_network(framework, dropout=0.4)
    framework.drop_nothing(network)
    loss, total = framework.evaluate(network, batch)
    trained = framework.train_step(
        network, framework.optimizer(network, OptimizerConfig("adam", 1e-3)), batch
    )
    np.testing.assert_allclose(
        float(trained), loss / total, rtol=1e-6
    )  # Keras keeps its loss in float32 on some backends
    for one in framework.dropping(network, batch.inputs, 64).values():
        assert (one.drawn == 1).all()


def check_an_epoch_is_its_steps(framework: Framework) -> None:
    """One by one, and in windows of four: nine batches are four, four and what is left.

    Every step is clocked once, its own loss reported, no batch or step lost or added at either end of `fit`.
    """
    batches, network = ragged_batches(9), small_network(framework)[0]
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-2))
    losses = [float(framework.train_step(network, optimizer, batch)) for batch in batches]
    stepped = framework.weights(network)
    # Keras keeps its loss tracker in float32 on some backends; out of running means of four steps, four times as far
    for parts, window_steps, windows, tolerance in (
        ((batches[:5], batches[5:]), 1, [1] * 9, 1e-6),
        ((batches,), 4, [4, 4, 1], 1e-5),
    ):
        network = small_network(framework)[0]
        optimizer, clock = (
            framework.optimizer(network, OptimizerConfig("adam", 1e-2)),
            Clock(window_steps),
        )
        for part in parts:
            framework.train_epoch(network, optimizer, iter(part), clock)
        assert clock.calls[::2] == ["begin"] * len(windows)
        assert [len(window) for window in clock.calls[1::2]] == windows
        np.testing.assert_allclose(np.concatenate(clock.calls[1::2]), losses, rtol=tolerance)
        assert relative(stepped, framework.weights(network)) < TIGHT


def check_a_window_is_not_waited_for(framework: Framework) -> None:
    """The device is waited for before it begins and before it ends, and not in between."""
    network, _, batch = small_network(framework)
    clock, waited = Clock(3), list[bool]()
    synchronise = framework.synchronise

    def watched() -> None:
        waited.append(clock.runs)
        synchronise()

    with patch.object(framework, "synchronise", watched):
        framework.train_epoch(
            network,
            framework.optimizer(network, OptimizerConfig("adam", 1e-3)),
            iter([batch] * 6),
            clock,
        )
    assert waited in (
        [False, True] * 2,
        [],
    )  # keras-jax waits for what its steps gave, and for that alone


def check_batches_are_made_and_placed_between_the_steps(framework: Framework) -> None:
    """Whatever a framework's own way of training is: its steps are timed on arrays that are on the device."""
    network, _, batch = small_network(framework)
    place = framework.place
    for clock in (Clock(1), Clock(3)):
        seen = {"made": list[bool](), "placed": list[bool]()}

        def made(clock: Clock = clock, seen: dict[str, list[bool]] = seen) -> Iterator[Batch]:
            for _ in range(4):
                seen["made"].append(clock.runs)
                yield batch

        def placed(given: Batch, clock: Clock = clock, seen: dict[str, list[bool]] = seen) -> Batch:
            seen["placed"].append(clock.runs)
            return place(given)

        with patch.object(framework, "place", placed):
            framework.train_epoch(
                network, framework.optimizer(network, OptimizerConfig("adam", 1e-3)), made(), clock
            )
        assert seen == {"made": [False] * 4, "placed": [False] * 4}


def check_the_device_holds_the_batches_of_one_window(framework: Framework) -> None:
    """Beside them at most the batch that was used last, and the one that Keras' `fit` goes by."""
    network, _, batch = small_network(framework)
    placed, held = list[weakref.ref[Any]](), list[int]()
    place = framework.place

    def watched(one: Batch) -> Batch:
        held.append(sum(array() is not None for array in placed))
        found = place(replace(one, weights=one.weights.copy()))
        placed.append(weakref.ref(found.weights))
        return found

    with patch.object(framework, "place", watched):
        framework.train_epoch(
            network,
            framework.optimizer(network, OptimizerConfig("adam", 1e-3)),
            iter([batch] * 9),
            Clock(3),
        )
    assert max(held[3::3]) <= 2


def check_compilations_are_counted(framework: Framework) -> None:
    """A shape seen before compiles nothing; the first one, and in what compiles shape by shape a new one, is counted."""
    network, _, _ = small_network(framework)
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
    first, same, _, other = ragged_batches(4)
    counts = [framework.compilations()]
    for batch in (first, same, other, first):
        framework.train_epoch(network, optimizer, [batch], Clock())
        counts.append(framework.compilations())
    fresh, again, new, seen = (after - before for before, after in itertools.pairwise(counts))
    print(f"{framework.name}: compilations {fresh}, {again}, {new}, {seen}")
    assert (again, seen) == (0, 0)
    assert (fresh > 0) == (framework.name in COMPILING)
    assert framework.name not in EACH_SHAPE or new > 0


def check_adam_is_adam(framework: Framework) -> None:
    """Against algorithm 1 of Kingma & Ba in NumPy, tokens repeated in every batch."""
    network, _, batch = small_network(framework)
    weights, optimizer = (
        framework.weights(network),
        framework.optimizer(network, OptimizerConfig("adam", 1e-2)),
    )
    means = {name: np.zeros_like(array) for name, array in weights.items()}
    squares = {name: np.zeros_like(array) for name, array in weights.items()}
    for step in range(1, 6):
        for name, gradient in framework.gradients(network, batch).items():
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.999 * squares[name] + 0.001 * gradient**2
            corrected = np.sqrt(squares[name] / (1 - 0.999**step))
            weights[name] = weights[name] - 1e-2 * means[name] / (1 - 0.9**step) / (
                corrected + 1e-8
            )
        framework.train_step(network, optimizer, batch)
        assert relative(weights, framework.weights(network)) < TIGHT


def check_optimizer_state_continues(framework: Framework) -> None:
    first, *rest = ragged_batches(4)
    for config in (OptimizerConfig("adam", 1e-2), OptimizerConfig("sgd", 0.1, momentum=0.9)):
        network = small_network(framework)[0]
        optimizer = framework.optimizer(network, config)
        framework.train_step(network, optimizer, first)
        weights, state = framework.weights(network), framework.optimizer_state(optimizer)
        for batch in rest:
            framework.train_step(network, optimizer, batch)

        other = small_network(framework)[0]
        resumed = framework.optimizer(other, config)
        framework.load_weights(other, weights)
        framework.load_optimizer_state(resumed, state)
        for batch in rest:
            framework.train_step(other, resumed, batch)
        assert relative(framework.weights(network), framework.weights(other)) < TIGHT, config.name
        with pytest.raises(ModelError, match="belongs to no weight"):
            framework.load_optimizer_state(resumed, {**state, "nothing/exp_avg": np.zeros(1)})


def check_optimizers_have_names(framework: Framework) -> None:
    network, _, batch = small_network(framework)
    before = framework.evaluate(network, batch)[0]
    optimizer = framework.optimizer(network, OptimizerConfig("adam-stock", 1e-2))
    for _ in range(3):
        framework.train_step(network, optimizer, batch)
    assert framework.evaluate(network, batch)[0] < before


def check_it_says_which_optimizer_runs(framework: Framework) -> None:
    network, _, _ = small_network(framework)
    told = {
        name: framework.optimizer_implementation(
            framework.optimizer(network, OptimizerConfig(name, 1e-3))
        )
        for name in NAMES
    }
    assert len(set(told.values())) == len(NAMES)
    assert all(
        name in told[key]
        for key, name in (("adam", "Adam"), ("adam-stock", "Adam"), ("sgd", "SGD"))
    )


def check_sgd_is_the_textbooks(framework: Framework) -> None:
    """m ← µm + g + λw, w ← w − rate·m: a drop of the rate works at once."""
    network, _, batch = small_network(framework, dropout=0.0)
    for momentum in (0.0, 0.9):
        optimizer = framework.optimizer(
            network, OptimizerConfig("sgd", 0.5, momentum, weight_decay=0.1)
        )
        moved: dict[str, Any] = dict.fromkeys(framework.gradients(network, batch), 0.0)
        for rate in (0.5, 0.5, 0.05):
            framework.set_learning_rate(optimizer, rate)
            before, gradients = framework.weights(network), framework.gradients(network, batch)
            moved = {
                name: momentum * moved[name] + gradients[name] + 0.1 * before[name]
                for name in gradients
            }
            framework.train_step(network, optimizer, batch)
            after = framework.weights(network)
            assert (
                relative(
                    {name: before[name] - rate * moved[name] for name in moved},
                    {n: after[n] for n in moved},
                )
                < TIGHT
            )


def lively_network(framework: Framework, **changes: Any) -> tuple[Any, Any]:
    """A decoder whose captions vary: its weights are three times as large as a fresh one's."""
    network, small, _ = small_network(framework, **changes)
    framework.load_weights(
        network, {name: 3 * array for name, array in framework.weights(network).items()}
    )
    features = np.random.default_rng(5).standard_normal((6, small.features)).astype(np.float32)
    return network, features


def check_a_placed_batch_is_the_batch(framework: Framework) -> None:
    network, _, batch = small_network(framework)
    placed = framework.place(batch)
    again = framework.place(placed)
    first, second = ((*found.inputs, found.targets, found.weights) for found in (placed, again))
    assert not any(type(array) is np.ndarray for array in first)
    assert all(
        left is right for left, right in zip(first, second, strict=True)
    )  # what lies on the device is moved once
    expected = framework.infer(network, batch.inputs)
    np.testing.assert_array_equal(framework.infer(network, again.inputs), expected)
    np.testing.assert_array_equal(
        framework.infer(network, framework.place_inputs(batch.inputs)), expected
    )
    losses = []
    for one in (batch, placed):
        network, _, _ = small_network(framework)
        optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-3))
        clock = Clock()
        framework.train_epoch(network, optimizer, iter([one, one, one]), clock)
        losses.append(clock.calls)
    assert losses[0] == losses[1]


def check_it_says_where_it_runs(framework: Framework) -> None:
    versions = framework.versions()
    assert all(isinstance(value, str) for value in versions.values())
    assert any(name.endswith("threads") for name in versions)
    framework.synchronise()
    peak = framework.peak_device_bytes()
    assert (peak is None) == (framework.device == "cpu")
    assert peak is None or peak > 0
    if not Path("/dev/nvidia0").exists():
        with pytest.raises(ModelError, match="sees no GPU here"):
            open_framework(framework.name, device="cuda", threads=1, precision="float64", seed=0)


def cross_checked(framework: Framework) -> dict[str, Any]:
    """What must be the same in every framework; the parent compares."""
    network, features = lively_network(framework)
    found = {
        f"decode/{beams}": decode(
            framework, network, features, start=START, end=END, words=7, beams=beams
        )
        for beams in (1, 4)
    }
    return found | computed(framework.name, SOME, framework.device)


def computed(framework: str, names: Sequence[str], device: str = "cpu") -> dict[str, Any]:
    """What the parity gate compares of some models."""
    every = {
        model: parity.compute(parity.ParityRequest(model, device=device), framework)
        for model in names
    }
    return {
        f"parity/{model}/{name}": array
        for model, found in every.items()
        for name, array in found.items()
    }


def outcome(check: Callable[[Framework], None], framework: Framework) -> str:
    try:
        check(framework)
    except BaseException:  # pytest.fail and its kin are no Exceptions
        return traceback.format_exc()
    return ""


CHECKS = {name: function for name, function in list(globals().items()) if name.startswith("check_")}
