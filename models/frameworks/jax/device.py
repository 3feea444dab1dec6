"""JAX's device, also under Keras."""

from __future__ import annotations

import os
from collections import Counter
from importlib.metadata import version

import numpy as np

from models.devices import CPU, CUDA
from models.errors import ErrorCode, ModelError
from models.frameworks.devices import (
    ARITHMETIC,
    OPERATIONS,
    choose_in_xla,
    flushes_denormals,
    resolve,
    verify_arithmetic,
)

# JAX's names for the arithmetic of float32.
MATMUL_PRECISION = {"ieee": "highest", "tf32": "tensorfloat32"}
COMPILED = "/jax/core/compile/backend_compile_duration"


class JaxDevice:
    """Device of JAX, part of an adapter; JAX has no global seed."""

    device: str

    def _open_device(
        self, requested: str, threads: int, precision: str, conv_algorithm: str, seed: int
    ) -> None:
        if requested == CPU:
            os.environ["JAX_PLATFORMS"] = "cpu"
        if threads:
            os.environ["NPROC"] = str(threads)  # XLA reads the size of its pool only there, once
        if conv_algorithm in ("onednn", "plain"):
            text = (
                f"conv_algorithm {conv_algorithm!r}: JAX has no such choice; use profiled or fixed"
            )
            raise ModelError(ErrorCode.UNSUPPORTED, text)
        choose_in_xla(conv_algorithm)
        import jax

        self._jax = jax
        self._events = Counter[str]()
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, *_, **__: self._events.update([event])
        )
        accelerator = CUDA if jax.default_backend() == "gpu" else ""
        self.device = resolve(requested, accelerator, "jax", precision, lambda: jax.devices(CUDA))
        arithmetic = ARITHMETIC.get(precision, "ieee")
        jax.config.update("jax_default_matmul_precision", MATMUL_PRECISION[arithmetic])
        verify_arithmetic("jax", precision, self._arithmetic())

    def synchronise(self) -> None:
        for array in self._jax.live_arrays():
            array.block_until_ready()

    def peak_device_bytes(self) -> int | None:
        statistics = self._jax.local_devices()[0].memory_stats() if self.device != CPU else None
        return int(statistics["peak_bytes_in_use"]) if statistics else None

    def _device_versions(self) -> dict[str, str]:
        numpy = self._jax.numpy
        return {
            "jax": self._jax.__version__,
            "jaxlib": version("jaxlib"),
            **{f"jax_{name}_precision": switch for name, switch in self._arithmetic().items()},
            "xla_flags": os.environ["XLA_FLAGS"],
            "jax_threads": os.environ.get("NPROC", "default"),
            "jax_flushes_denormals": flushes_denormals(
                lambda array: np.asarray(numpy.asarray(array) * 0.5)
            ),
            "jax_x64": str(self._jax.config.jax_enable_x64),
        }

    def _arithmetic(self) -> dict[str, str]:
        """Return each operation's switch: JAX has one, also for convolutions and cuDNN's LSTM."""
        switch = str(self._jax.config.jax_default_matmul_precision)
        names = {theirs: ours for ours, theirs in MATMUL_PRECISION.items()}
        return dict.fromkeys(OPERATIONS, names.get(switch, switch))
