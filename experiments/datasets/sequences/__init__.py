"""Sentences and speech from local files, for networks of sequences; a module a kind, found by the name a model asks for."""
