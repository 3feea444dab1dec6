"""Readers of foreign files on damaged copies of valid ones: each is read or refused."""
