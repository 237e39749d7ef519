"""Certificates: whose are believed, and when each is good."""
