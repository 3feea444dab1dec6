"""AOTInductor's adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch._inductor.package  # here, or the first file would wait for these imports
import torch.utils.cpp_extension

from models.contract import Array
from models.frameworks.exported import Runtime


class Adapter(Runtime):
    """Packages of AOTInductor on the CPU: machine code that needs no Python of the network."""

    architecture, suffix = "pytorch", ".pt2"

    def _open(self, threads: int) -> None:
        torch.set_flush_denormal(True)  # as the frameworks do
        if threads:
            torch.set_num_threads(threads)

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "torch_threads": str(torch.get_num_threads())}

    def load(self, path: Path) -> Any:
        return torch._inductor.aoti_load_package(str(path))

    def run(self, session: Any, inputs: tuple[Array, ...]) -> Array:
        with torch.inference_mode():
            outputs: Array = session(*map(torch.from_numpy, inputs)).numpy()
        return outputs
