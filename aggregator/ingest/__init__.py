"""Agents come in here: who they are, their streams, what is acknowledged."""
