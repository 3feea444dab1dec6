"""Sentences and speech from local files; models name the module that reads their data."""
