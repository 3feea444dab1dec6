"""What was found, in words, tables and figures."""
