"""The demo's poller, against a server that fails as an aggregator that ends does."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from aggregator.demo.event_poller import EventPoller, NotAnswered, NotSeen
from aggregator.demo.processes import ChildEnded

NODES = "/api/v1/nodes/sim-0001"


@pytest.fixture
def closing_server() -> Iterator[str]:
    """host:port of a server that closes each connection without an answer."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _alive() -> None:
    """All processes run."""


def test_a_connection_closed_without_an_answer_is_no_answer(closing_server: str) -> None:
    with pytest.raises(NotAnswered, match="/api/v1/nodes/sim-0001: Remote end closed"):
        EventPoller(closing_server, _alive).get(NODES)


def test_an_aggregator_that_ends_while_it_is_asked_is_reported_with_its_last_words(
    closing_server: str,
) -> None:
    looks: list[str] = []

    def check() -> None:
        looks.append("look")
        if len(looks) > 2:  # the kernel closes its connections before its parent can wait for it
            raise ChildEnded("sickbay-aggregator ended with -9. Its last words: …")

    events = EventPoller(closing_server, check)
    with pytest.raises(ChildEnded, match="ended with -9"):
        events.until(lambda: events.get(NODES), "its results")


def test_what_was_never_answered_is_named_with_the_reason(closing_server: str) -> None:
    events = EventPoller(closing_server, _alive)
    with pytest.raises(NotSeen, match=r"its results \(/api/v1/nodes/sim-0001: Remote end closed"):
        events.until(lambda: events.get(NODES), "its results", within=0)
