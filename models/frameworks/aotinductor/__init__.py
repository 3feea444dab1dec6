"""PyTorch's networks, compiled before they run. Importing this does not import PyTorch."""

from __future__ import annotations

from dataclasses import replace

from models.frameworks.pytorch import VARIANTS as OF_PYTORCH

VARIANTS = {
    "pytorch+aot": replace(
        OF_PYTORCH["pytorch+compile"], compiles=False, has_pipeline=False, exported_from="pytorch"
    )
}
