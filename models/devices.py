"""Kinds of devices: the values of the setting `device`.

A new kind is an entry of `ACCELERATORS` here. What a framework does on it is in the framework's
module of its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

AUTO, CPU, CUDA = "auto", "cpu", "cuda"


@dataclass(frozen=True)
class Accelerator:
    """Kind of device other than the CPU.

    title: for messages. driver: exists where programs reach a device. visible: variable of the
    devices that a process sees; an empty one hides all. variables: of each process that computes
    on one. refused: variables that override the settings of every cell, each with the values that
    change nothing and with its remedy. extras: by distribution, the extra that computes on one.
    """

    title: str
    driver: Path
    visible: str
    variables: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    extras: Mapping[str, str] = field(default_factory=dict)

    def may_be_seen(self, variables: Mapping[str, str]) -> bool:
        """Return whether a process with these variables may see a device of this kind."""
        return variables.get(self.visible) != "" and self.driver.exists()


ACCELERATORS = {
    CUDA: Accelerator(
        title="NVIDIA GPU",
        driver=Path("/dev/nvidiactl"),
        visible="CUDA_VISIBLE_DEVICES",
        variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        refused={
            "NVIDIA_TF32_OVERRIDE": (
                (),
                "it overrides the precision of every framework; "
                "unset it and take precision=tf32 or float32",
            ),
            "CUDA_LAUNCH_BLOCKING": (
                ("0",),
                "every kernel is then waited for, unlike in use; unset it",
            ),
        },
        extras={"tensorflow": "and-cuda", "jax": "cuda13"},  # PyTorch's packages contain CUDA
    )
}
KINDS = (CPU, *ACCELERATORS)
CHOICES = (AUTO, *KINDS)
