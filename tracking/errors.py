"""Error family; caught only at a process border and at the command line."""


class EvenhandError(Exception):
    """Failure that the user reads about in one line (exit code 1)."""


class WrongCall(EvenhandError):
    """Call that cannot be carried out; the text names what would be right (exit code 2)."""
