"""LSTM in several implementations: a framework's layer, block operators, or a loop. NumPy only.

`cells`: a loop over the steps, in which a cell of basic operators multiplies its input and its
state. `scan`: the same, the inputs of all steps multiplied before the loop. `block`: a cell, or a
whole sequence, as one operator of the framework's. `block-v2`: TensorFlow's second such operator.
`layer`: the framework's own layer, which takes cuDNN on a GPU and oneDNN for PyTorch on a CPU.
"""

from __future__ import annotations

IMPLEMENTATIONS = ("layer", "cells", "scan", "block", "block-v2")
# TensorFlow's block operators take no other.
FLOAT32_ALONE = ("block", "block-v2")
