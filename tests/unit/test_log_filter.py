"""The filter of records that gRPC's poller writes into the loop of a later test."""

import logging
from types import TracebackType

import pytest

from tests.conftest import _of_this_test

Info = bool | tuple[type[BaseException], BaseException, TracebackType | None] | None


def exc_info_of(error: BaseException) -> Info:
    return type(error), error, None


@pytest.mark.parametrize(
    ("info", "passes"),
    [
        (None, True),
        (True, True),
        (False, True),
        (exc_info_of(ValueError("closed")), True),
        (exc_info_of(RuntimeError("Event loop is closed")), False),
    ],
)
def test_only_the_pollers_own_error_of_a_loop_that_is_over_is_left_out(
    info: Info, *, passes: bool
) -> None:
    text = "Exception in callback PollerCompletionQueue._handle_events"
    record = logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, text, (), None)
    record.exc_info = info  # type: ignore[assignment]  # a caller may give any of these
    assert _of_this_test(record) is passes
    record.msg = "another text"
    assert _of_this_test(record)
