"""A framework in NumPy that starts at once and costs what it is told to: for tests whose subject is no framework.

It is found as any other distribution's: `installed/` on Python's path is what `pip install` would leave there.
What everything costs, and where it writes down what it did when, is in `costs`.
"""

from __future__ import annotations

from models.frameworks import Variant

_TOY = Variant(
    architecture="tests.toy_framework.architectures",
    packages=("numpy",),
    distributions=("numpy",),
    has_pipeline=True,
    has_plain_loop=True,
)
# `toy+stock` is another where each framework's own Adam is asked for, as Keras is.
VARIANTS = {"toy": _TOY, "toy+twin": _TOY, "toy+stock": _TOY}
