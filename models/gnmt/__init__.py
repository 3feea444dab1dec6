"""GNMT: translation by deep LSTMs with attention."""
