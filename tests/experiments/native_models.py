"""Logged models, loaded by MLflow's flavors in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from models.contract import Array
from tests import warm

# Answers the example, checks it against the signature, and calls the native network on arrays.
LOAD = """
import importlib, json, sys
from pathlib import Path
import numpy as np
import mlflow
from mlflow.models import Model, infer_signature, validate_serving_input

folder, arrays = sys.argv[1], np.load(sys.argv[2])
metadata = Model.load(folder)
example = metadata.load_input_example(folder)
model = mlflow.pyfunc.load_model(folder)
answer = model.predict(example)
of_answer = infer_signature(example, answer).outputs
columns = metadata.signature.outputs.inputs
assert [(at.name, at.type) for at in of_answer.inputs] == [(at.name, at.type) for at in columns]
request = Path(folder, "serving_input_example.json").read_text()
assert validate_serving_input(folder, request).equals(answer)
(flavor,) = metadata.flavors.keys() - {"python_function"}
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
print(json.dumps({"flavor": flavor, "answer": answer.to_dict("records")[0]}))
"""


def load(
    model: Path, inputs: tuple[Array, ...], folder: Path, python: str = "", **variables: str
) -> tuple[dict[str, Any], Array]:
    """Return the flavor with the answer to the example, and the native network's outputs.

    Args:
        model: Folder with MLflow's model.
        inputs: Arrays that the network takes.
        folder: Working folder of the process.
        python: Interpreter, if it is not this one.
        variables: Environment of the process.
    """
    np.savez(folder / "inputs.npz", **{str(at): array for at, array in enumerate(inputs)})
    arguments = [str(model), str(folder / "inputs.npz"), str(folder / "outputs.npy")]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **variables}
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
    return json.loads(done.stdout.splitlines()[-1]), np.load(folder / "outputs.npy")
