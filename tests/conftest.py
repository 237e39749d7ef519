"""Fixtures for every test."""

pytest_plugins = ["tests.controlplane.pytest_plugin"]
