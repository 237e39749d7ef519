"""The agent's log lines: each names its node, and a line that is cut keeps its event."""

import json
import logging
import os

from nodeagent.logs import JsonLines


def line_of(node: str, text: str, **extra: object) -> dict[str, object]:
    reader, writer = os.pipe()
    try:
        logger = logging.getLogger("test.agent-logs")
        logger.propagate = False
        logger.handlers = [JsonLines(writer, lambda: 1_750_000_000.25, node=node)]
        logger.warning(text, extra=extra)
        found: dict[str, object] = json.loads(os.read(reader, 65_536))
        return found
    finally:
        os.close(reader)
        os.close(writer)


def test_each_line_names_the_agents_node_and_its_event() -> None:
    assert line_of("gpu-1", "no stream", event="uplink.failed", address="a:1") == {
        "time": "2025-06-15T15:06:40.250Z",
        "level": "warning",
        "logger": "test.agent-logs",
        "message": "no stream",
        "node": "gpu-1",
        "event": "uplink.failed",
        "address": "a:1",
    }


def test_a_line_that_is_cut_keeps_both() -> None:
    line = line_of("gpu-1", "x" * 9000, event="uplink.failed", more="y" * 9000)
    assert (line["node"], line["event"], line["cut"]) == ("gpu-1", "uplink.failed", True)


def test_a_process_of_many_nodes_has_no_such_field() -> None:
    assert "node" not in line_of("", "simulation started")
