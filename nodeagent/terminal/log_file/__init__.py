"""The kernel's records in a log file that a person sent, whichever tool wrote the file."""
