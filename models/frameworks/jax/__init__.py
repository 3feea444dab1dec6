"""JAX with our training step on Keras layers. Importing this does not import JAX."""

from __future__ import annotations

from dataclasses import replace

from models.frameworks.keras import VARIANTS as OF_KERAS

VARIANTS = {"jax": replace(OF_KERAS["keras-jax"])}
