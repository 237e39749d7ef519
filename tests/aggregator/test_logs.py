"""Logs are one JSON object a line, and never hold anything up."""

import json
import logging
import os
from collections.abc import Iterator

import pytest

from aggregator.runtime.logs import MAX_FIELD, JsonLines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def logger_on(fd: int, name: str) -> logging.Logger:
    logger = logging.getLogger(f"test.{name}")
    logger.propagate = False
    logger.handlers = [JsonLines(fd, lambda: 1_750_000_000.25)]
    return logger


def test_a_line_is_one_json_object_with_its_extras(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    logger_on(writer, "one").warning("two\nlines", extra={"node": "n-1", "why": {"odd"}})
    said = os.read(reader, 65_536)
    assert said.count(b"\n") == 1
    assert json.loads(said) == {
        "time": "2025-06-15T15:06:40.250Z",
        "level": "warning",
        "logger": "test.one",
        "message": "two\nlines",
        "node": "n-1",
        "why": "{'odd'}",
    }


def test_an_exception_is_told_with_its_traceback(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    try:
        dict[str, int]()["x"]
    except KeyError:
        logger_on(writer, "two").exception("failed")
    said = json.loads(os.read(reader, 65_536))
    assert said["traceback"].endswith("KeyError: 'x'")


def test_a_pipe_that_nobody_reads_holds_nothing_up_and_the_gap_is_said(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    logger = logger_on(writer, "three")
    for n in range(1000):
        logger.warning("line %d %s", n, "x" * 1000)
    got = b""
    os.set_blocking(reader, False)
    while True:
        try:
            got += os.read(reader, 1_000_000)
        except BlockingIOError:
            break
    logger.warning("after")
    got += os.read(reader, 65_536)
    logger.warning("last")
    got += os.read(reader, 65_536)
    lines = [json.loads(line) for line in got.splitlines()]  # no line is torn
    whole = [line for line in lines if line["message"].startswith("line")]
    assert lines[-1]["message"] == "last"
    dropped = sum(line.get("lines_dropped_before", 0) for line in lines)
    assert dropped + len(lines) == 1002
    assert 10 < len(whole) < 1000


def test_a_field_that_is_far_too_long_is_cut(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    logger_on(writer, "four").warning("x" * 100_000)
    assert len(json.loads(os.read(reader, 200_000))["message"]) == MAX_FIELD


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    logger_on(writer, "five").warning("to nobody")
    os.close(writer)
