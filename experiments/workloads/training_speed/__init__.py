"""Networks of images or of sequences, on random inputs or on sequences from files, trained for so many steps."""
