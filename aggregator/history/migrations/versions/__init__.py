"""One file for each migration step."""
