"""Fixtures for every test."""

import signal

pytest_plugins = [
    "tests.controlplane.pytest_plugin",
    "tests.support.postgres",
    "tests.support.histories",
]


def pytest_configure() -> None:
    """A run in the background of a shell ignores SIGINT, and every program that it starts too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
