"""Every layer type that moves, against PyTorch's own layer with the same state_dict, in Keras on PyTorch."""

from __future__ import annotations

from tests.models.children import run_in

SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "torch"
os.environ["KERAS_TORCH_DEVICE"] = "cpu"
import keras, numpy as np, torch
from keras import layers
from models.contract import ModelError
from models.transfer import entries, from_keras, to_keras

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
pairs = [
    (layers.Conv2D(6, (3, 2)), torch.nn.Conv2d(4, 6, (3, 2)), image, on_image),
    (layers.DepthwiseConv2D((3, 2), depth_multiplier=2), depthwise, image, on_image),
    (layers.Dense(7), torch.nn.Linear(4, 7), rows, lambda m: m(rows)),
    (layers.Embedding(5, 3), torch.nn.Embedding(5, 3), tokens, lambda m: m(tokens)),
    (layers.LSTM(6, return_sequences=True), lstm, rows, lambda m: m(rows)[0]),
    (layers.BatchNormalization(epsilon=1e-5), norm, image, on_image),
    (layers.LayerNormalization(epsilon=1e-5), layer_norm, rows, lambda m: m(rows)),
]
for layer, module, inputs, expected in pairs:
    layer.name = "the-layer"
    network = keras.Sequential([layer])
    network(inputs)
    state = {f"the.layer.{name}": tensor.numpy() for name, tensor in module.state_dict().items()}
    state = {name: array for name, array in state.items() if not name.endswith(("bias_hh_l0", "num_batches_tracked"))}
    to_keras(entries(network), state)
    np.testing.assert_allclose(
        network(inputs).detach().numpy(), expected(module).detach().numpy(), atol=2e-6, err_msg=type(layer).__name__
    )  # float32 sums of at most 48 products of order one
    back = from_keras(entries(network))
    assert back.keys() == state.keys()
    assert all(np.array_equal(back[name], state[name]) for name in state), type(layer).__name__

unknown = keras.Sequential([layers.GRU(3)])
unknown(rows)
try:
    entries(unknown)
except ModelError as error:
    assert "no rule moves the weights of a GRU" in str(error)
else:
    raise AssertionError("a GRU went through")
"""


def test_layers_compute_the_same_after_transfer() -> None:
    run_in("keras-torch", "-c", SCRIPT)
