"""Parses what people write: regular files, TOML with its line numbers, kinds of value."""
