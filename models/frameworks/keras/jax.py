"""The device of a process that computes with JAX, under Keras."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from models.errors import ModelError
from models.frameworks.devices import (
    OPERATIONS,
    choose_in_xla,
    float32_arithmetic,
    flushes_denormals,
    resolve,
    verify_arithmetic,
)

# By arithmetic: what JAX calls it.
MATMUL_PRECISION = {"ieee": "highest", "tf32": "tensorfloat32"}
COMPILED = "/jax/core/compile/backend_compile_duration"


class JaxDevice:
    """JAX's device, under Keras."""

    def __init__(self, wanted: str, threads: int, precision: str, conv_algorithm: str) -> None:
        if wanted == "cpu":
            os.environ["JAX_PLATFORMS"] = "cpu"
        if threads:
            os.environ["NPROC"] = str(
                threads
            )  # XLA reads the size of its pool from here, once, and from nowhere else
        if conv_algorithm in ("onednn", "plain"):
            raise ModelError(
                f"conv_algorithm {conv_algorithm!r}: JAX has no such choice; use profiled, heuristic or fixed"
            )
        choose_in_xla(conv_algorithm)
        import jax

        self._jax = jax
        self._compiled = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        has_gpu = jax.default_backend() == "gpu"
        self.name = resolve(wanted, has_gpu, "jax", precision, lambda: jax.devices("cuda"))
        jax.config.update(
            "jax_default_matmul_precision", MATMUL_PRECISION[float32_arithmetic(precision)]
        )
        verify_arithmetic("jax", precision, self._arithmetic())

    def _listen(self, event: str, *_: Any, **__: Any) -> None:
        self._compiled += event == COMPILED

    def compilations(self) -> int:
        return self._compiled

    def seed(self, seed: int) -> None:
        """Nothing to do: JAX has no global state, Keras seeds each layer."""

    def synchronise(self) -> None:
        for array in self._jax.live_arrays():
            array.block_until_ready()

    def step_events(self, _: int) -> None:
        """JAX has none."""

    def peak_bytes(self) -> int | None:
        statistics = self._jax.local_devices()[0].memory_stats() if self.name == "cuda" else None
        return int(statistics["peak_bytes_in_use"]) if statistics else None

    def reset_peak(self) -> bool:
        """JAX cannot."""
        return False

    def versions(self) -> dict[str, str]:
        return {
            "jax": self._jax.__version__,
            "jaxlib": version("jaxlib"),
            **{
                f"jax_{operation}_precision": switch
                for operation, switch in self._arithmetic().items()
            },
            "xla_flags": os.environ["XLA_FLAGS"],
            "jax_threads": os.environ.get("NPROC", "default"),
            "jax_flushes_denormals": flushes_denormals(self._halved),
            "jax_x64": str(self._jax.config.jax_enable_x64),
        }

    def _halved(self, array: Any) -> Any:
        import numpy as np

        return np.asarray(self._jax.numpy.asarray(array) * 0.5)

    def _arithmetic(self) -> dict[str, str]:
        """Return each operation's switch: JAX has one, which convolutions and cuDNN's LSTM follow."""
        switch = str(self._jax.config.jax_default_matmul_precision)
        names = {theirs: ours for ours, theirs in MATMUL_PRECISION.items()}
        return dict.fromkeys(OPERATIONS, names.get(switch, switch))
