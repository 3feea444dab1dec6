"""Commands of users, measured from outside."""
