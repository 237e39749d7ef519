"""Mutation testing of the acting core: `make mutants`."""
