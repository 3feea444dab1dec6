"""Known work on this machine's device: `pytest -m device`, on a GPU `pytest -m gpu`."""
