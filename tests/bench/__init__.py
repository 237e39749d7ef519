"""Benchmarks: they print tables and write build/bench/NAME.json. They have no assertions."""
