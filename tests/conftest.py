"""Fixtures for every test."""

import gc
import inspect
import logging
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.support.constants import draw_constants_of_the_product
from tests.support.examples import draw_few
from tests.support.fork_server import end_fork_servers, start_programs_by_fork
from tests.support.listening import LISTENING
from tests.support.running_loop import look_up_loops_without_system_calls
from tests.support.unraisable import Unraisable, close_what_is_being_closed

# Servers in a test's own process listen as the aggregator's do: the first module of tests may load
# gRPC. To its silence each program sees itself.
for _name, _value in LISTENING.items():
    os.environ.setdefault(_name, _value)

pytest_plugins = [
    "tests.controlplane.pytest_plugin",
    "tests.support.postgres",
    "tests.support.histories",
]


def _profile() -> str:
    return os.environ.get("HYPOTHESIS_PROFILE", "same")


def _of_this_test(record: logging.LogRecord) -> bool:
    """gRPC has one poller for the process: it calls into the loops of tests that are over, too."""
    found = record.exc_info  # whatever the caller gave: a bool, too
    late = isinstance(found, tuple) and isinstance(found[1], RuntimeError)
    return not (late and "PollerCompletionQueue" in record.getMessage())


def pytest_configure(config: pytest.Config) -> None:
    """A run in the background of a shell ignores SIGINT, and every program that it starts too.

    pytest parses each test while it collects them. CPython 3.11 counts how deep it is in that for
    all of the process, and what a garbage collection in the middle of it runs may parse, too: now
    and then "AST constructor recursion depth mismatch". So there is none while tests are collected.
    """
    gc.disable()
    # A machine that is busy with something else is slow, and that is no failure of an example.
    slow = [HealthCheck.too_slow]
    # A change meets the same examples wherever it is tested; `make fuzz` searches for new.
    settings.register_profile(
        "same", deadline=None, suppress_health_check=slow, derandomize=True, database=None
    )
    settings.register_profile("search", deadline=None, suppress_health_check=slow, print_blob=True)
    settings.load_profile(_profile())
    draw_constants_of_the_product()
    look_up_loops_without_system_calls()
    start_programs_by_fork()
    close_what_is_being_closed()
    config.pluginmanager.register(Unraisable())
    logging.getLogger("asyncio").addFilter(_of_this_test)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collectstart() -> None:
    """A run that shares its files with others (tests/claims.py) collects each when it claims it.

    Garbage of earlier tests is collected before: `pytest_collection_finish` would keep it.
    """
    if gc.isenabled():
        gc.collect()
        gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item | pytest.Collector] | None:
    """Decorate each coroutine of tests in a module that is marked as ``decorated``.

    Except one that is marked for asyncio's own loop.
    """
    mark = collector.get_closest_marker("decorated")
    if mark is None or not name.startswith("test_") or not inspect.iscoroutinefunction(obj):
        return None
    if any(own.name == "asyncio" for own in getattr(obj, "pytestmark", ())):
        return None
    decorated = mark.kwargs["by"](obj)
    setattr(collector.obj, name, decorated)
    made: list[pytest.Item | pytest.Collector] = collector.ihook.pytest_pycollect_makeitem(
        collector=collector, name=name, obj=decorated
    )
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _profile() == "same":
        for item in items:
            draw_few(item)


def pytest_collection_finish() -> None:
    """No garbage collection visits the collected tests, as none of them ever becomes garbage.

    Collections of 4,000 tests took half of the processor's time of a test that makes many objects.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    """The end of a session may parse, too."""
    gc.collect()
    gc.disable()


def pytest_unconfigure() -> None:
    """After the end of all fixtures, those of a session that Ctrl-C has ended too."""
    end_fork_servers()
