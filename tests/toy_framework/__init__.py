"""Framework in NumPy that starts at once, with set costs, for tests whose subject is no framework.

It is discovered as any distribution's: `installed/` on Python's path is what `pip install` would
leave there. `costs` has its costs and its log.
"""

from __future__ import annotations

from models.frameworks import Variant

_TOY = Variant(
    architecture="tests.toy_framework.architectures",
    packages=("numpy",),
    distributions=("numpy",),
    has_pipeline=True,
)
# `toy+stock` differs where each framework uses its own Adam, as Keras does.
VARIANTS = {"toy": _TOY, "toy+twin": _TOY, "toy+stock": _TOY}
