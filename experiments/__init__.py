"""Experiments: planning, running and comparing measurements of frameworks."""
