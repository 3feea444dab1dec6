"""TensorFlow's device, also under Keras."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from models.devices import CPU, CUDA
from models.frameworks.devices import (
    OPERATIONS,
    choose_in_xla,
    flushes_denormals,
    onednn,
    resolve,
    verify_arithmetic,
)

PREFIX = re.compile(r"^[IWEF]\d{4} \S+\s+\d+ ")  # level and date, time, thread
ABOUT_GPUS = re.compile(r"gpu|cuda|cudnn|cuInit|dlopen|driver", re.IGNORECASE)


class TensorFlowDevice:
    """Device of TensorFlow, part of an adapter."""

    device: str

    def _open_device(
        self, requested: str, threads: int, precision: str, conv_algorithm: str, seed: int
    ) -> None:
        # From 2 on TensorFlow does not report which library of CUDA is missing.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if requested == CUDA else "3")
        os.environ["TF_CUDNN_USE_AUTOTUNE"] = str(int(conv_algorithm == "profiled"))
        os.environ["TF_CUDNN_DETERMINISTIC"] = str(int(conv_algorithm == "fixed"))
        choose_in_xla(conv_algorithm)
        if conv_algorithm in ("onednn", "plain"):  # read when TensorFlow is imported
            os.environ["TF_ENABLE_ONEDNN_OPTS"] = str(int(conv_algorithm == "onednn"))
        with tempfile.TemporaryFile() as messages:
            with _stderr_to(messages):
                import tensorflow as tf

                gpus = tf.config.list_physical_devices("GPU")
            messages.seek(0)
            lines = messages.read().decode(errors="replace").splitlines()

        self._tf = tf
        tf.get_logger().setLevel("ERROR")
        if requested == CUDA and not gpus:
            print("\n".join(lines), file=sys.stderr)
        about_gpus = dict.fromkeys(
            PREFIX.sub("", text) for text in lines if ABOUT_GPUS.search(text)
        )
        report = " / ".join(about_gpus)
        self.device = resolve(requested, CUDA if gpus else "", "tensorflow", precision, report)
        onednn(conv_algorithm, self.device)
        if self.device == CPU:
            tf.config.set_visible_devices([], "GPU")
        for gpu in gpus if self.device != CPU else ():
            # otherwise it takes the whole device, and its memory says nothing
            tf.config.experimental.set_memory_growth(gpu, True)
        if threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        verify_arithmetic("tensorflow", precision, self._arithmetic())
        tf.random.set_seed(seed)

    def synchronise(self) -> None:
        if self.device != CPU:
            self._tf.test.experimental.sync_devices()

    def peak_device_bytes(self) -> int | None:
        if self.device == CPU:
            return None
        return int(self._tf.config.experimental.get_memory_info("GPU:0")["peak"])

    def reset_peak(self) -> bool:
        if self.device != CPU:
            self._tf.config.experimental.reset_memory_stats("GPU:0")
        return self.device != CPU

    def _device_versions(self) -> dict[str, str]:
        tf, threading = self._tf, self._tf.config.threading
        build = tf.sysconfig.get_build_info()
        return {
            "tensorflow": tf.__version__,
            "tensorflow_cuda": str(build.get("cuda_version")),
            "tensorflow_cudnn": str(build.get("cudnn_version")),
            "tensorflow_intra_op_threads": str(threading.get_intra_op_parallelism_threads()),
            "tensorflow_inter_op_threads": str(threading.get_inter_op_parallelism_threads()),
            **{
                f"tensorflow_{name}_precision": switch
                for name, switch in self._arithmetic().items()
            },
            "tensorflow_flushes_denormals": flushes_denormals(
                lambda array: (tf.constant(array) * 0.5).numpy()
            ),
            "tensorflow_cudnn_autotune": os.environ["TF_CUDNN_USE_AUTOTUNE"],
            "tensorflow_cudnn_deterministic": os.environ["TF_CUDNN_DETERMINISTIC"],
            "xla_flags": os.environ["XLA_FLAGS"],
            "tensorflow_onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        }

    def _arithmetic(self) -> dict[str, str]:
        """Return each operation's switch: TensorFlow has one for all of them."""
        rounds = self._tf.config.experimental.tensor_float_32_execution_enabled()
        return dict.fromkeys(OPERATIONS, "tf32" if rounds else "ieee")


@contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Redirect standard error, to which TensorFlow's C++ code writes on import at any log level."""
    sys.stderr.flush()
    original = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
