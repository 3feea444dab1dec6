"""Administration of a tracking server: teams, disk space, export and replay of runs."""
