"""The one error of models and frameworks; importing it imports nothing else."""


class ModelError(ValueError):
    """A model, framework, device or file of weights that cannot serve; the message is one line for the user."""


class NoDevice(ModelError):
    """The framework sees no such device in this process; another framework may."""
