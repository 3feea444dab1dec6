"""Products of square matrices, whose speed is a machine's peak. It has no spec.py: no study has it.

`build(width)`: (n, width) to (n, 1), by `LAYERS` products with the same square matrix.
"""

LAYERS = 4
