"""Acceptance kit on a GPU: `pytest -m gpu tests/gpu`; it needs neither MLflow nor TensorFlow."""
