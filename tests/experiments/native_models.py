"""Logged models, loaded by MLflow's flavors in another process."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from models.contract import Array
from tests import warm

LOAD = """
import importlib, sys
import numpy as np
from mlflow.models import Model

folder, arrays = sys.argv[1], np.load(sys.argv[2])
(flavor,) = Model.load(folder).flavors
network = importlib.import_module(f"mlflow.{flavor}").load_model(folder)
inputs = [arrays[name] for name in sorted(arrays)]
if flavor == "pytorch":
    import torch

    outputs = network(*map(torch.from_numpy, inputs)).detach().numpy()
else:
    import keras

    placed = [keras.ops.convert_to_tensor(array) for array in inputs]
    outputs = keras.ops.convert_to_numpy(network(placed if len(placed) > 1 else placed[0]))
np.save(sys.argv[3], outputs)
print(flavor)
"""


def load(
    model: Path, inputs: tuple[Array, ...], folder: Path, python: str = ""
) -> tuple[str, Array]:
    """Return the flavor of a network, and its outputs.

    Args:
        model: Folder with MLflow's model.
        inputs: Arrays that the network takes.
        folder: Working folder of the process.
        python: Interpreter, if it is not this one.
    """
    np.savez(folder / "inputs.npz", **{str(at): array for at, array in enumerate(inputs)})
    arguments = [str(model), str(folder / "inputs.npz"), str(folder / "outputs.npy")]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    # without a pickle, by which a file could run code
    environment |= {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if python:
        done = subprocess.run(
            [python, "-c", LOAD, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
    else:
        done = warm.run([sys.executable, "-c", LOAD, *arguments], environment, folder)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()[-1], np.load(folder / "outputs.npy")


def mean_loss(logits: Array, targets: Array, weights: Array) -> float:
    """Return the weighted mean cross-entropy."""
    shifted = logits.astype(float) - logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(targets)), targets]
    return float(np.average(losses, weights=weights))
