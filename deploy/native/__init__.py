"""Tracking server for a small group on one machine, from nothing but pip and PostgreSQL."""
