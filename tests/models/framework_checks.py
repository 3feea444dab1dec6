"""Checks of a framework: `python -m tests.models.framework_checks NAME [DEVICE]`.

In float64 equal computations agree to 1e-12 and a fault is 1e-7 or more: 1e-9 separates them.
"""

from __future__ import annotations

import itertools
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat
from unittest.mock import patch

import numpy as np
import pytest

from models import frameworks, spec
from models.caption_decoder.decoding import decode
from models.contract import Batch, Framework, ModelError, OptimizerConfig, Weights
from models.errors import NoDevice
from models.frameworks import lean_import, open_framework

TIGHT = 1e-9
START, END = 1, 2
EACH_SHAPE = ("tensorflow+xla", "keras-tensorflow", "keras-jax", "jax")
COMPILING = (*EACH_SHAPE, "tensorflow", "pytorch+compile")
ADAM = OptimizerConfig("adam", 1e-3)
decoder = spec("caption_decoder")


def small_network(framework: Framework, **changes: Any) -> tuple[Any, Any, Batch]:
    small, batch = decoder.probe(np.random.default_rng(0))
    small = replace(small, **{"dropout": 0.0, **changes})
    network = framework.build("caption_decoder", small)
    framework.load_weights(network, decoder.initial_weights(small, np.random.default_rng(1)))
    return network, small, batch


def ragged_batches(count: int, more_rows: int = 0) -> list[Batch]:
    """Return batches of various numbers of rows, tokens and positions, as buckets have them."""
    rng = np.random.default_rng(3)
    batches = []
    for rows, tokens in itertools.islice(itertools.cycle([(5, 7), (5, 7), (4, 6), (6, 3)]), count):
        rows += more_rows
        positions = np.arange(0, rows * tokens, 2, dtype=np.int32)
        features = rng.standard_normal((rows, 40)).astype(np.float32)
        words = rng.integers(1, 61, (rows, tokens), dtype=np.int32)
        targets = rng.integers(1, 61, len(positions), dtype=np.int32)
        weights = rng.uniform(0.5, 1, len(positions)).astype(np.float32)
        batches.append(Batch((features, words, positions), targets, weights))
    return batches


def relative(a: Weights, b: Weights) -> float:
    assert a.keys() == b.keys()
    return max(
        float(np.linalg.norm(a[name] - b[name]) / (np.linalg.norm(a[name]) + 1e-30)) for name in a
    )


class Clock:
    """Clock that records the calls: `begin`, and at each end the losses."""

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


def check_only_its_own_framework_is_imported(framework: Framework) -> None:
    described = map(frameworks.described, frameworks.available())
    packages = {package for variant in described for package in variant.packages}
    # Keras looks at JAX if it is installed; each framework uses NumPy
    allowed = {"jax", "numpy", *frameworks.described(framework.name).packages}
    assert not (packages - allowed) & sys.modules.keys()


def check_weights_that_do_not_fit_are_named(framework: Framework) -> None:
    network, _, _ = small_network(framework)
    good = framework.weights(network)
    without = {name: array for name, array in good.items() if name != "merge.bias"}
    for weights, message in (
        (without, r"'merge\.bias' is missing"),
        ({**good, "extra": np.zeros(1)}, "'extra' is superfluous"),
        ({**good, "merge.weight": good["merge.weight"].T}, r"'merge\.weight' has shape \(24, 12\)"),
    ):
        with pytest.raises(ModelError, match=message):
            framework.load_weights(network, weights)


def check_loss_is_the_weighted_mean(framework: Framework) -> None:
    network, _, batch = small_network(framework)
    weights = np.linspace(0, 1, len(batch.targets)).astype(np.float32)
    batch = replace(batch, weights=weights)
    logits = framework.infer(network, batch.inputs)
    logits -= logits.max(1)[:, None]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), batch.targets]
    weighted = (losses * weights).sum()
    # weights are summed in float32
    expected = [weighted, weights.sum()]
    np.testing.assert_allclose(framework.evaluate(network, batch), expected, rtol=1e-7)
    trained = framework.train_step(network, framework.optimizer(network, ADAM), batch)
    np.testing.assert_allclose(float(trained), weighted / weights.sum(), rtol=1e-6)


def check_dropout_is_on_only_in_training(framework: Framework) -> None:
    network, _, batch = small_network(framework, dropout=0.5)
    first = framework.evaluate(network, batch)
    assert framework.evaluate(network, batch) == first
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 0.0))
    losses = [float(framework.train_step(network, optimizer, batch)) for _ in range(3)]
    assert len({*losses, first[0] / first[1]}) == 4  # three masks and none


def check_an_epoch_is_its_steps(framework: Framework) -> None:
    """Each step is clocked once, with its loss; no batch is lost at either end of `fit`.

    One by one, and in windows of four: nine batches are four, four and one.
    """
    batches, network = ragged_batches(9), small_network(framework)[0]
    config = OptimizerConfig("adam", 1e-2)
    optimizer = framework.optimizer(network, config)
    losses = [float(framework.train_step(network, optimizer, batch)) for batch in batches]
    stepped = framework.weights(network)
    # Keras keeps running means in float32 on some backends; of four steps four times as far
    for parts, window_steps, windows, tolerance in (
        ((batches[:5], batches[5:]), 1, [1] * 9, 1e-6),
        ((batches,), 4, [4, 4, 1], 1e-5),
    ):
        network, clock = small_network(framework)[0], Clock(window_steps)
        optimizer = framework.optimizer(network, config)
        for part in parts:
            framework.train_epoch(network, optimizer, iter(part), clock)
        assert clock.calls[::2] == ["begin"] * len(windows)
        assert [len(window) for window in clock.calls[1::2]] == windows
        np.testing.assert_allclose(np.concatenate(clock.calls[1::2]), losses, rtol=tolerance)
        assert relative(stepped, framework.weights(network)) < TIGHT


def check_only_steps_are_inside_of_the_clock(framework: Framework) -> None:
    """Batches are made and placed, and the device is waited for, only between windows."""
    network, _, batch = small_network(framework)
    optimizer = framework.optimizer(network, ADAM)
    place, synchronise = framework.place, framework.synchronise
    for window_steps in (1, 3):
        clock = Clock(window_steps)
        inside, waits = list[bool](), list[bool]()

        def observed(result: Any, moments: list[bool], clock: Clock = clock) -> Any:
            moments.append(clock.runs)
            return result

        with patch.multiple(
            framework,
            place=lambda at, inside=inside: observed(place(at), inside),
            synchronise=lambda waits=waits: observed(synchronise(), waits),
        ):
            made = (observed(at, inside) for at in [batch] * 6)
            framework.train_epoch(network, optimizer, made, clock)
        assert inside == [False] * 12
        # JAX waits only for the results of its steps
        assert waits in ([False, True] * (6 // window_steps), [])


def check_compilations_are_counted(framework: Framework) -> None:
    """Check that new shapes are counted, and a repeated one is not."""
    network, _, _ = small_network(framework)
    optimizer = framework.optimizer(network, ADAM)
    first, same, _, other = ragged_batches(4, more_rows=1)  # no other check has these shapes
    counts = [framework.compilations()]
    for batch in (first, same, other, first):
        framework.train_epoch(network, optimizer, [batch], Clock())
        counts.append(framework.compilations())
    fresh, again, new, repeated = (after - before for before, after in itertools.pairwise(counts))
    assert (again, repeated) == (0, 0)
    assert (fresh > 0) == (framework.name in COMPILING)
    assert framework.name not in EACH_SHAPE or new > 0


def check_adam_is_adam(framework: Framework) -> None:
    """Against algorithm 1 of Kingma & Ba in NumPy, tokens repeated in each batch."""
    network, _, batch = small_network(framework)
    weights = framework.weights(network)
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-2))
    means = {name: np.zeros_like(array) for name, array in weights.items()}
    squares = {name: np.zeros_like(array) for name, array in weights.items()}
    for step in range(1, 6):
        for name, gradient in framework.gradients(network, batch).items():
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.999 * squares[name] + 0.001 * gradient**2
            mean = means[name] / (1 - 0.9**step)
            root = np.sqrt(squares[name] / (1 - 0.999**step))
            weights[name] = weights[name] - 1e-2 * mean / (root + 1e-8)
        framework.train_step(network, optimizer, batch)
        assert relative(weights, framework.weights(network)) < TIGHT


def check_sgd_is_the_textbooks(framework: Framework) -> None:
    """Update m ← µm + g + λw, w ← w − rate·m: a drop of the rate works at once."""
    network, _, batch = small_network(framework)
    for momentum in (0.0, 0.9):
        config = OptimizerConfig("sgd", 0.5, momentum, weight_decay=0.1)
        optimizer = framework.optimizer(network, config)
        moved: dict[str, Any] = dict.fromkeys(framework.gradients(network, batch), 0.0)
        for rate in (0.5, 0.5, 0.05):
            framework.set_learning_rate(optimizer, rate)
            before, gradients = framework.weights(network), framework.gradients(network, batch)
            for name, gradient in gradients.items():
                moved[name] = momentum * moved[name] + gradient + 0.1 * before[name]
            framework.train_step(network, optimizer, batch)
            after = framework.weights(network)
            expected = {name: before[name] - rate * moved[name] for name in moved}
            assert relative(expected, {name: after[name] for name in moved}) < TIGHT


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
        with pytest.raises(ModelError, match="nothing/exp_avg"):
            framework.load_optimizer_state(resumed, {**state, "nothing/exp_avg": np.zeros(1)})


def check_optimizers_train_and_are_named(framework: Framework) -> None:
    network, _, batch = small_network(framework)
    texts = {}
    for name in OptimizerConfig.NAMES:
        before = framework.evaluate(network, batch)[0]
        optimizer = framework.optimizer(network, OptimizerConfig(name, 1e-2))
        for _ in range(3):
            framework.train_step(network, optimizer, batch)
        assert framework.evaluate(network, batch)[0] < before
        texts[name] = framework.optimizer_implementation(optimizer)
    assert len(set(texts.values())) == len(OptimizerConfig.NAMES)
    for name, text in {"adam": "Adam", "adam-stock": "Adam", "sgd": "SGD"}.items():
        assert text in texts[name]


def check_a_placed_batch_is_the_batch(framework: Framework) -> None:
    network, _, batch = small_network(framework)
    placed = framework.place(batch)
    again = framework.place(placed)
    first, second = ((*at.inputs, at.targets, at.weights) for at in (placed, again))
    assert not any(type(array) is np.ndarray for array in first)
    # arrays on the device are moved once
    assert all(left is right for left, right in zip(first, second, strict=True))
    expected = framework.infer(network, batch.inputs)
    for inputs in (again.inputs, framework.place_inputs(batch.inputs)):
        np.testing.assert_array_equal(framework.infer(network, inputs), expected)
    losses = []
    for trained in (batch, placed):
        network, clock = small_network(framework)[0], Clock()
        framework.train_epoch(network, framework.optimizer(network, ADAM), [trained] * 3, clock)
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
        with pytest.raises(NoDevice):
            open_framework(framework.name, device="cuda", threads=1, precision="float64", seed=0)


def lively_network(framework: Framework, **changes: Any) -> tuple[Any, Any]:
    """Return a decoder whose captions vary: its weights are three times as large as fresh ones."""
    network, small, _ = small_network(framework, **changes)
    weights = framework.weights(network)
    framework.load_weights(network, {name: 3 * array for name, array in weights.items()})
    features = np.random.default_rng(5).standard_normal((6, small.features)).astype(np.float32)
    return network, features


def captions(framework: Framework, beams: int) -> list[list[int]]:
    """Return captions, which must be the same in each framework."""
    network, features = lively_network(framework)
    limits = {"start": START, "end": END, "words": 7, "beams": beams}
    words: list[list[int]] = decode(framework, network, features, **limits).tolist()
    return words


def outcome(check: Callable[[Framework], None], framework: Framework) -> str:
    """Return the traceback of a check that fails; empty if it passes."""
    try:
        check(framework)
    except BaseException:  # pytest.fail is not an Exception
        return traceback.format_exc()
    return ""


CHECKS = {name: function for name, function in list(globals().items()) if name.startswith("check_")}


def main(name: str, device: str = "cpu") -> None:
    """Print the outcomes of all checks and the captions by number of beams."""
    with lean_import(name):  # as a cell does
        framework = open_framework(name, device=device, threads=1, precision="float64", seed=0)
    outcomes = {name: outcome(check, framework) for name, check in CHECKS.items()}
    by_beams = {beams: captions(framework, beams) for beams in (1, 4)}
    print(json.dumps({"outcomes": outcomes, "captions": by_beams}))


if __name__ == "__main__":
    main(*sys.argv[1:])
