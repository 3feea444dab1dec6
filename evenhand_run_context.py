"""MLflow's plugin that tags every new fluent run with its machine, packages and GPUs.

MLflow imports this module in every process that imports MLflow. Its name and that of the package
below are unlike any in a user's project, which may have folders `models` and `tracking`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

SWITCH = "EVENHAND_CONTEXT"
OFF = frozenset({"0", "false", "no", "off"})
PACKAGE = "evenhand_tracking"
# Packages whose versions are recorded, in addition to those of `provenance.PACKAGES`.
FRAMEWORKS = (
    *("jax", "jaxlib", "keras", "tensorflow", "torch", "torchvision"),
    *("ai-edge-litert", "onnx", "onnxruntime", "onnxscript", "openvino", "tf2onnx"),
    *("catboost", "lightgbm", "lightning", "scikit-learn", "transformers", "xgboost"),
)
# Compose files and CI set unset variables to "", with which MLflow ends in a traceback.
if os.environ.get("MLFLOW_ENABLE_WORKSPACES") == "":
    del os.environ["MLFLOW_ENABLE_WORKSPACES"]


class RunContext:
    """Provider of MLflow's entry point group `mlflow.run_context_provider`."""

    def in_context(self) -> bool:
        return os.environ.get(SWITCH, "").lower() not in OFF

    def tags(self) -> dict[str, str]:
        """Return the tags of a run that begins now; none if they cannot be read.

        A failure, such as of a driver, must not end a run that could do without tags.
        """
        try:
            return _tags()
        except Exception:
            logging.getLogger(__name__).debug("The run gets no tags of evenhand.", exc_info=True)
            return {}


def _tags() -> dict[str, str]:
    provenance, technical = _load("provenance"), _load("technical")
    tags = {
        "machine": provenance.fingerprint(),
        "cpus.usable": str(provenance.cpus().usable),
        **provenance.environment_tags(FRAMEWORKS),
    }
    before = json.loads(os.environ.get("MLFLOW_RUN_CONTEXT") or "{}")
    # bytes of a variable that are no text would end the request
    texts = {name: text.encode(errors="replace").decode() for name, text in tags.items()}
    ours = {name: text for name, text in texts.items() if name not in technical.unpack_tags(before)}
    packed: dict[str, str] = technical.pack_tags(ours, before)
    return packed


def _load(name: str) -> Any:
    """Return a module of `tracking`, imported as part of a package that has another name."""
    if PACKAGE not in sys.modules:
        folder = Path(__file__).with_name("tracking")
        spec = spec_from_file_location(
            PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[PACKAGE] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module(f"{PACKAGE}.{name}")
