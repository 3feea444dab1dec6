"""Exit codes, the same for every command; a signal that ended the work is 128 and its number, as in a shell."""

DONE, FAILED, WRONG_CALL, NO_VERDICT = 0, 1, 2, 3
