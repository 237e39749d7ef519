"""Certificates: the CA files that are trusted, and when each certificate is valid."""
