"""What is asked, and how it is run."""
