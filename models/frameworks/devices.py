"""The device of this process, one class a tensor library: pick it, set threads, seed and TF32, wait for it, ask its memory."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import Protocol

from models.contract import ModelError


class Device(Protocol):
    """name: `cpu` or `cuda`, resolved from `auto` to what is there."""

    name: str

    def seed(self, seed: int) -> None: ...

    def synchronise(self) -> None: ...

    def peak_bytes(self) -> int | None: ...

    def versions(self) -> dict[str, str]: ...


def _resolve(wanted: str, has_accelerator: bool, library: str, precision: str) -> str:
    if wanted == "cuda" and not has_accelerator:
        raise ModelError(f"device 'cuda': {library} sees no GPU here; use cpu or auto")
    found = ("cuda" if has_accelerator else "cpu") if wanted == "auto" else wanted
    if precision == "tf32" and found == "cpu":
        raise ModelError("precision 'tf32' is a GPU's; on the CPU use float32 or bfloat16")
    return found


@contextmanager
def _quiet_unless_it_fails() -> Iterator[None]:
    """Holds back standard error: TensorFlow's C++ side speaks on import, whatever its log level."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held, ExitStack() as stack:
        original = os.dup(2)
        stack.callback(os.close, original)
        stack.callback(os.dup2, original, 2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(original, held.read())
            raise


class TorchDevice:
    """PyTorch's device, also under Keras."""

    def __init__(self, wanted: str, threads: int, precision: str) -> None:
        import torch

        self._torch = torch
        self.name = _resolve(wanted, torch.cuda.is_available(), "torch", precision)
        torch.backends.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        if threads:
            torch.set_num_threads(threads)

    def seed(self, seed: int) -> None:
        self._torch.manual_seed(seed)

    def synchronise(self) -> None:
        if self.name == "cuda":
            self._torch.cuda.synchronize()

    def peak_bytes(self) -> int | None:
        return int(self._torch.cuda.max_memory_allocated()) if self.name == "cuda" else None

    def versions(self) -> dict[str, str]:
        torch = self._torch
        return {
            "torch": torch.__version__,
            "torch_cuda": str(torch.version.cuda),
            "torch_threads": str(torch.get_num_threads()),
            "torch_matmul_precision": torch.backends.cuda.matmul.fp32_precision,
            "torch_convolution_precision": torch.backends.cudnn.conv.fp32_precision,
            "torch_cudnn_benchmark": str(torch.backends.cudnn.benchmark),
            "torch_deterministic": str(torch.are_deterministic_algorithms_enabled()),
        }


class TensorFlowDevice:
    """TensorFlow's device, also under Keras."""

    def __init__(self, wanted: str, threads: int, precision: str) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with _quiet_unless_it_fails():
            import tensorflow as tf

        self._tf = tf
        tf.get_logger().setLevel("ERROR")
        gpus = tf.config.list_physical_devices("GPU")
        self.name = _resolve(wanted, bool(gpus), "tensorflow", precision)
        if self.name == "cpu":
            tf.config.set_visible_devices([], "GPU")
        for gpu in gpus if self.name == "cuda" else ():
            tf.config.experimental.set_memory_growth(gpu, True)  # else it takes the whole device and its memory says nothing
        if threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")

    def seed(self, seed: int) -> None:
        self._tf.random.set_seed(seed)

    def synchronise(self) -> None:
        if self.name == "cuda":
            self._tf.test.experimental.sync_devices()

    def peak_bytes(self) -> int | None:
        return int(self._tf.config.experimental.get_memory_info("GPU:0")["peak"]) if self.name == "cuda" else None

    def versions(self) -> dict[str, str]:
        tf = self._tf
        build = tf.sysconfig.get_build_info()
        return {
            "tensorflow": tf.__version__,
            "tensorflow_cuda": str(build.get("cuda_version")),
            "tensorflow_cudnn": str(build.get("cudnn_version")),
            "tensorflow_intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
            "tensorflow_inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
            "tensorflow_tf32": str(tf.config.experimental.tensor_float_32_execution_enabled()),
            "tensorflow_onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        }


class JaxDevice:
    """JAX's device, under Keras."""

    def __init__(self, wanted: str, threads: int, precision: str) -> None:
        if wanted == "cpu":
            os.environ["JAX_PLATFORMS"] = "cpu"
        if threads:
            os.environ["NPROC"] = str(threads)  # XLA reads the size of its pool from here, once, and from nowhere else
        import jax

        self._jax = jax
        self.name = _resolve(wanted, jax.default_backend() == "gpu", "jax", precision)
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if precision == "tf32" else "highest")

    def seed(self, seed: int) -> None:
        """Nothing to do: JAX has no global state, Keras seeds each layer."""

    def synchronise(self) -> None:
        for array in self._jax.live_arrays():
            array.block_until_ready()

    def peak_bytes(self) -> int | None:
        statistics = self._jax.local_devices()[0].memory_stats() if self.name == "cuda" else None
        return int(statistics["peak_bytes_in_use"]) if statistics else None

    def versions(self) -> dict[str, str]:
        return {
            "jax": self._jax.__version__,
            "jaxlib": version("jaxlib"),
            "jax_matmul_precision": str(self._jax.config.jax_default_matmul_precision),
            "jax_threads": os.environ.get("NPROC", "default"),
            "jax_x64": str(self._jax.config.jax_enable_x64),
        }
