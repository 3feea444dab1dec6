"""Exit codes of every command; a signal that ended the work is 128 plus its number."""

DONE, FAILED, WRONG_CALL, NO_VERDICT, CONDITION_HOLDS = 0, 1, 2, 3, 4
