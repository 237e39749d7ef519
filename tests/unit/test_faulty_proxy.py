"""The proxy of the tests before an API server leaves no connection open."""

import gc
import socket
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.faulty_proxy import ApiFaults, FaultyProxy
from tests.support.pki import Authority
from tests.support.waiting import PATIENCE


def test_a_connection_that_comes_with_the_proxys_end_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_open: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", left_open.append)
    authority = Authority.create(tmp_path / "server")
    plane: Any = SimpleNamespace(url="https://127.0.0.1:1", ca_file=authority.certificate)
    with FaultyProxy(plane, tmp_path / "proxy", ApiFaults()) as proxy:
        loop: Any = proxy._loop
        busy = threading.Event()

        def be_busy_until_the_end_is_requested() -> None:
            busy.set()
            while not loop._ready:
                time.sleep(0.001)

        loop.call_soon_threadsafe(be_busy_until_the_end_is_requested)
        busy.wait()
        client = socket.create_connection(("127.0.0.1", proxy.port), PATIENCE)
    with closing(client):
        assert client.recv(1) == b""
    gc.collect()
    assert [str(one.exc_value) for one in left_open] == []
