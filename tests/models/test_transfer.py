"""Layer types that move, against PyTorch's layer with the same state_dict, in Keras on PyTorch."""

from __future__ import annotations

from tests.models.children import ROOT, result_of

SCRIPT = """
import keras, numpy as np, torch
from keras import layers
from models.contract import ModelError
from models.transfer import AS_IS, RULES, entries, from_keras, to_keras, weight_rule

torch.manual_seed(0)
image, rows, tokens = torch.randn(2, 9, 9, 4), torch.randn(3, 5, 4), torch.tensor([[0, 4], [2, 2]])
depthwise = torch.nn.Conv2d(4, 8, (3, 2), groups=4)


def on_image(module):
    return module(image.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


lstm = torch.nn.LSTM(4, 6, batch_first=True)
lstm.bias_hh_l0.data.zero_()
norm = torch.nn.BatchNorm2d(4).eval()
for tensor in norm.state_dict().values():
    tensor.copy_(torch.rand(tensor.shape) + 0.5)
layer_norm = torch.nn.LayerNorm(4)
for tensor in layer_norm.state_dict().values():
    tensor.copy_(torch.rand(4) + 0.5)
gru = torch.nn.GRU(4, 6, batch_first=True)
both_ways = torch.nn.GRU(4, 3, batch_first=True, bidirectional=True)
transposed = torch.nn.ConvTranspose2d(4, 6, (3, 2), (2, 1))
group_norm = torch.nn.GroupNorm(2, 4)
for tensor in group_norm.state_dict().values():
    tensor.copy_(torch.rand(4) + 0.5)
attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
attention.in_proj_bias.data = torch.randn(12)


def network_of(layer):
    if isinstance(layer, layers.MultiHeadAttention):
        x = keras.Input((5, 4))
        return keras.Model(x, layer(x, x))
    return keras.Sequential([layers.RNN(layer) if isinstance(layer, layers.GRUCell) else layer])


class Shift(layers.Layer):
    def build(self, shape):
        self.shift = self.add_weight(shape=(1, shape[-1]))

    def call(self, x):
        return x + self.shift


@weight_rule(Shift)
def _(layer):
    yield "", layer.shift, AS_IS


class TorchShift(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(1, 4))

    def forward(self, x):
        return x + self.bias


twice = layers.Bidirectional(layers.GRU(3, return_sequences=True))
pairs = [
    (layers.Conv2DTranspose(6, (3, 2), (2, 1)), transposed, image, on_image),
    (layers.GroupNormalization(2, epsilon=1e-5), group_norm, image, on_image),
    (layers.GRU(6, return_sequences=True), gru, rows, lambda m: m(rows)[0]),
    (twice, both_ways, rows, lambda m: m(rows)[0]),
    (layers.GRUCell(6), torch.nn.GRUCell(4, 6), rows[:, :1], lambda m: m(rows[:, 0])),
    (layers.MultiHeadAttention(2, 2), attention, rows, lambda m: m(rows, rows, rows)[0]),
    (Shift(), TorchShift(), rows, lambda m: m(rows)),
    (layers.Conv2D(6, (3, 2)), torch.nn.Conv2d(4, 6, (3, 2)), image, on_image),
    (layers.DepthwiseConv2D((3, 2), depth_multiplier=2), depthwise, image, on_image),
    (layers.Dense(7), torch.nn.Linear(4, 7), rows, lambda m: m(rows)),
    (layers.Embedding(5, 3), torch.nn.Embedding(5, 3), tokens, lambda m: m(tokens)),
    (layers.LSTM(6, return_sequences=True), lstm, rows, lambda m: m(rows)[0]),
    (layers.BatchNormalization(epsilon=1e-5), norm, image, on_image),
    (layers.LayerNormalization(epsilon=1e-5), layer_norm, rows, lambda m: m(rows)),
]
for layer, module, inputs, expected in pairs:
    layer.name = "the-layer" if not isinstance(layer, Shift) else "the-layer-bias"
    network = network_of(layer)
    network(inputs)
    state = {f"the.layer.{name}": tensor.numpy() for name, tensor in module.state_dict().items()}
    if isinstance(module, torch.nn.LSTM):
        del state["the.layer.bias_hh_l0"]
    state.pop("the.layer.num_batches_tracked", None)
    to_keras(entries(network), state)
    outputs = [at.detach().numpy() for at in (network(inputs), expected(module))]
    # float32 sums of at most 48 products of order one
    np.testing.assert_allclose(*outputs, atol=2e-6, err_msg=type(layer).__name__)
    back = from_keras(entries(network))
    assert back.keys() == state.keys()
    assert all(np.array_equal(back[name], state[name]) for name in state), type(layer).__name__


def refused(network):
    network(rows)
    try:
        entries(network)
    except ModelError as error:
        return str(error)
    raise AssertionError("it went through")


class UnitScale(layers.Layer):
    def build(self, shape):
        self.gamma = self.add_weight(shape=(4,), name="gamma")

    def call(self, x):
        return x * self.gamma


class Part(layers.Layer):
    def build(self, shape):
        self.linear = layers.Dense(4, name="part-linear")
        self.linear.build(shape)

    def call(self, x):
        return self.linear(x)


class Half(Shift):
    def build(self, shape):
        super().build(shape)
        self.factor = self.add_weight(shape=(1,), name="factor")


class Whole(keras.Model):
    def __init__(self):
        super().__init__()
        self.token = self.add_weight(shape=(1,), name="token")

    def call(self, x):
        return x + self.token


parted = keras.Sequential([Part(), layers.Dropout(0.5)])
parted(rows)
assert list(entries(parted)) == ["part.linear.weight", "part.linear.bias"]
told = refused(keras.Sequential([UnitScale()]))
assert "no rule moves 'gamma' of a UnitScale; state one in keras.py" in told
told = refused(keras.Sequential([Half()]))
assert "no rule moves 'factor' of a Half" in told, "a rule that leaves something out"
assert "no rule moves 'token' of a Whole" in refused(Whole()), "a weight of the network itself"
assert "resets after the product" in refused(keras.Sequential([layers.GRU(3, reset_after=False)]))
result = {kind.__name__: text for kind, (text, _) in RULES.items() if kind.__module__ != __name__}
"""


def test_layers_compute_the_same_after_transfer_and_docs_list_them() -> None:
    rows = result_of("keras-torch", SCRIPT)
    lines = [f"| `{kind}` | {sibling} |" for kind, sibling in sorted(rows.items())]
    table = "\n".join(["<!-- layers that move -->", "| Keras | PyTorch |", "|---|---|", *lines])
    assert f"{table}\n<!-- end -->" in (ROOT / "docs" / "own-model.md").read_text()
