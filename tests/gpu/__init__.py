"""The acceptance kit on a GPU: `pytest -m gpu tests/gpu`, which needs neither MLflow nor TensorFlow."""
