"""The device of a process that computes with TensorFlow, also under Keras."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
    """TensorFlow's device, also under Keras."""

    def __init__(self, wanted: str, threads: int, precision: str, conv_algorithm: str) -> None:
        # From 2 on TensorFlow does not say which library of CUDA it did not find.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if wanted == "cuda" else "3")
        os.environ["TF_CUDNN_USE_AUTOTUNE"] = str(int(conv_algorithm == "profiled"))
        os.environ["TF_CUDNN_DETERMINISTIC"] = str(int(conv_algorithm == "fixed"))
        choose_in_xla(conv_algorithm)
        if conv_algorithm in ("onednn", "plain"):  # read when TensorFlow is imported
            os.environ["TF_ENABLE_ONEDNN_OPTS"] = str(int(conv_algorithm == "onednn"))
        with _quiet_unless_it_fails() as messages:
            import tensorflow as tf

            gpus = tf.config.list_physical_devices("GPU")

        self._tf = tf
        tf.get_logger().setLevel("ERROR")
        if wanted == "cuda" and not gpus:
            print("\n".join(messages), file=sys.stderr)
        about_gpus = dict.fromkeys(
            PREFIX.sub("", line) for line in messages if ABOUT_GPUS.search(line)
        )
        self.name = resolve(wanted, bool(gpus), "tensorflow", precision, " / ".join(about_gpus))
        onednn(conv_algorithm, self.name)
        if self.name == "cpu":
            tf.config.set_visible_devices([], "GPU")
        for gpu in gpus if self.name == "cuda" else ():
            tf.config.experimental.set_memory_growth(
                gpu, True
            )  # else it takes the whole device and its memory says nothing
        if threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        verify_arithmetic("tensorflow", precision, self._arithmetic())

    def seed(self, seed: int) -> None:
        self._tf.random.set_seed(seed)

    def synchronise(self) -> None:
        if self.name == "cuda":
            self._tf.test.experimental.sync_devices()

    def step_events(self, _: int) -> None:
        """TensorFlow has none."""

    def peak_bytes(self) -> int | None:
        return (
            int(self._tf.config.experimental.get_memory_info("GPU:0")["peak"])
            if self.name == "cuda"
            else None
        )

    def reset_peak(self) -> bool:
        if self.name == "cuda":
            self._tf.config.experimental.reset_memory_stats("GPU:0")
        return self.name == "cuda"

    def compilations(self) -> int:
        """None that it tells: adapters count what they have traced."""
        return 0

    def versions(self) -> dict[str, str]:
        tf = self._tf
        build = tf.sysconfig.get_build_info()
        return {
            "tensorflow": tf.__version__,
            "tensorflow_cuda": str(build.get("cuda_version")),
            "tensorflow_cudnn": str(build.get("cudnn_version")),
            "tensorflow_intra_op_threads": str(
                tf.config.threading.get_intra_op_parallelism_threads()
            ),
            "tensorflow_inter_op_threads": str(
                tf.config.threading.get_inter_op_parallelism_threads()
            ),
            **{
                f"tensorflow_{operation}_precision": switch
                for operation, switch in self._arithmetic().items()
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
def _quiet_unless_it_fails() -> Iterator[list[str]]:
    """Holds back standard error: TensorFlow's C++ side speaks on import, whatever its log level.

    Its lines are in the list behind the block.
    """
    messages: list[str] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held, ExitStack() as stack:
        original = os.dup(2)
        stack.callback(os.close, original)
        stack.callback(os.dup2, original, 2)
        os.dup2(held.fileno(), 2)
        try:
            yield messages
        except BaseException:
            held.seek(0)
            os.write(original, held.read())
            raise
        held.seek(0)
        messages += held.read().decode(errors="replace").splitlines()
