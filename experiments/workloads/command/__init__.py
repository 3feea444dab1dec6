"""Commands of the user, timed as a whole with all the processes that they start."""
