"""The plain loops that the overhead study compares with: the same training as ours, and nothing of ours in them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.models.children import ROOT
from tests.models.test_measured_path import told

# The framework, its network and what carries weights into it; `contract` is imported for the types that it names.
ALLOWED = {
    "__future__",
    "collections",
    "typing",
    "torch",
    "tensorflow",
    "keras",
    "models.contract",
    "models.transfer",
}
SAME = """
import importlib
name = sys.argv[1]
module, rng = models.spec("lenet"), np.random.default_rng(5)
spec = module.Spec(classes=10)
weights = module.initial_weights(spec, rng)
images = rng.standard_normal((6, 28, 28, 1)).astype(np.float32)
labels = rng.integers(0, 10, 6, dtype=np.int32)
framework = open_framework(name, device="cpu", threads=1, precision="float32", seed=0)
loop = importlib.import_module(f"models.frameworks.{name.partition('-')[0]}.plain_loop")
plain = loop.Plain(models.load("lenet", framework.architecture).build(spec), weights, images, labels, framework.device)
network = framework.build("lenet", spec)
framework.load_weights(network, weights)
found = {"answers": [plain.requests()().tolist(), framework.infer(network, (images,)).tolist()]}
step, clock = plain.steps(1e-2), Clock()
batch = framework.place(Batch((images,), labels, np.ones(6, np.float32)))
framework.train_epoch(network, framework.optimizer(network, OptimizerConfig("adam-stock", 1e-2)), [batch] * 8, clock)
print(json.dumps({**found, "losses": [[step() for _ in range(8)], clock.losses]}))
"""


@pytest.mark.parametrize(
    "framework",
    [
        "pytorch",
        "tensorflow",
        *(pytest.param(f"keras-{one}", marks=pytest.mark.slow) for one in ("torch", "tensorflow")),
    ],
)
def test_a_plain_loop_is_the_same_training(framework: str) -> None:
    """Eight steps from the same weights, with each framework's own Adam; only the order of a sum may differ in float32."""
    found = told(SAME, framework)
    plain, ours = found["losses"]
    assert plain == pytest.approx(ours, rel=1e-4)
    assert plain[-1] < 0.9 * plain[0]
    for one, other in zip(*found["answers"], strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "models/frameworks").glob("*/plain_loop.py")),
    ids=lambda path: path.parts[-2],
)
def test_a_plain_loop_imports_nothing_of_the_adapter(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    assert {
        name if name.startswith("models") else name.partition(".")[0] for name in imported
    } <= ALLOWED


EVEN = """
framework, network, batch, optimizer = opened(sys.argv[1], "lenet")
batch, halves = (Batch(batch.inputs, batch.targets, np.full(len(batch.targets), one, np.float32)) for one in (1, 0.5))
clock, before = Clock(), framework.weights(network)
told = [framework.place(batch).even]
for given in ([batch], [halves], [batch]):
    framework.load_weights(network, before)
    framework.train_epoch(network, framework.optimizer(network, OptimizerConfig("sgd", 1e-1)), given, clock)
print(json.dumps({"losses": clock.losses, "even": told + [framework.place(one).even for one in (batch, halves)]}))
"""


@pytest.mark.parametrize(
    "framework", ["pytorch", "tensorflow", pytest.param("keras-torch", marks=pytest.mark.slow)]
)
def test_a_batch_of_equal_weights_has_the_same_loss_with_and_without_them(framework: str) -> None:
    """The plain mean where all weights are 1; after the first other weight no more, so that nothing is compiled in between."""
    found = told(EVEN, framework)
    assert found["losses"] == pytest.approx([found["losses"][0]] * 3, rel=1e-5)
    assert found["even"] == [True, False, False]
