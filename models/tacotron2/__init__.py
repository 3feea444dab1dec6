"""Tacotron 2: from characters to spectrograms, with location-sensitive attention."""
