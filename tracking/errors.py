"""The one error family; caught only at a process border and at the command line."""


class EvenhandError(Exception):
    """Something failed that the user should read about in one line (exit code 1)."""


class WrongCall(EvenhandError):
    """The call cannot be carried out as given: says what, where and what would be right (exit code 2)."""
