"""Connections on which a check runs after the last wait of a request and before its first byte."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

_CHECK: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("check", default=None)


@contextlib.contextmanager
def checked_by(check: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Requests of this task await ``check`` once their connection is there; it raises to send
    nothing.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


class GuardedConnector(aiohttp.TCPConnector):
    """Waits for the pool, for DNS, TCP, a proxy and TLS, and then for the check of `checked_by`.

    A trace's hook would leave a new connection open where it raises.
    """

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        check = _CHECK.get()
        if check is not None:
            try:
                await check()
            except BaseException:
                connection.release()
                raise
        return connection


@contextlib.asynccontextmanager
async def guarded_post(
    url: str,
    *,
    check: Callable[[], Awaitable[None]],
    timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    **request: Any,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """One POST on a connection of its own, not redirected, after ``check``. ``request`` is
    aiohttp's; raises as aiohttp and ``check`` do.
    """
    with checked_by(check):
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=GuardedConnector()) as session,
            session.post(url, allow_redirects=False, **request) as response,
        ):
            yield response
