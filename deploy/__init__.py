"""The shared tracking server: how a group gets one, and keeps it."""
