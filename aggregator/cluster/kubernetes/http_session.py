"""Connections to one API server under one reading of the credentials.

They stay open between requests: a TLS handshake costs more than most requests do.
"""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yarl
from aiohttp import hdrs

from aggregator.cluster.kubernetes.credentials import ApiCredentials
from aggregator.cluster.port import Guard
from aggregator.runtime.guarded_connector import GuardedConnector, checked_by

#: The API server closes idle connections after 90 s; we do so before, as a write that meets a
#: closing connection can't be distinguished from one that was carried out.
_IDLE_S = 75.0
#: 32 requests and 32 lists may be under way; the rest are for watches and releases, which the
#: limiter does not bound.
MOST_CONNECTIONS = 132
#: Leases have connections of their own: releases that hang, for example at a webhook, may use up
#: the rest.
_LEASE_CONNECTIONS = 4
CONNECT_S = 5.0

# A peer that vanished without closing (power loss, a firewall's table) is noticed in about 30 s.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)


class HttpSession:
    """A session of its own. Made within a running event loop."""

    def __init__(self, credentials: ApiCredentials) -> None:
        self.url = credentials.url
        # Taken apart once: to parse each request's URL anew costs twice as much as to build it.
        self._parts = urlsplit(credentials.url)
        self.credentials = credentials
        self._fresh = (
            asyncio.create_task(credentials.keep_fresh(), name="kube-credentials")
            if credentials.expires
            else None
        )
        self._session = _session(credentials, MOST_CONNECTIONS)
        self._lease_session = _session(credentials, _LEASE_CONNECTIONS)

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
        *,
        is_lease: bool = False,
        guard: Guard,
    ) -> aiohttp.ClientResponse:
        """The answer's head; its body is not read yet. Raises as aiohttp does.

        ``target`` is path and query, quoted. ``guard`` is awaited once the connection is there,
        and its errors are raised.
        """
        credentials = self.credentials
        session = self._lease_session if is_lease else self._session
        authorization = await self._authorization()
        try:
            with checked_by(guard):
                return await session.request(
                    method,
                    self._url_of(target),
                    headers={**headers, **authorization},
                    data=body,
                    timeout=timeout,
                    allow_redirects=False,
                    proxy=credentials.proxy,
                    server_hostname=credentials.server_hostname,
                )
        except aiohttp.ClientHttpProxyError as error:
            raise self._without_password(error) from None

    async def websocket(self, target: str, protocol: str) -> aiohttp.ClientWebSocketResponse:
        """An open websocket. Raises as aiohttp does: WSServerHandshakeError for a refusal."""
        credentials = self.credentials
        try:
            return await self._session.ws_connect(
                self._url_of(target),
                protocols=(protocol,),
                headers=await self._authorization(),
                proxy=credentials.proxy,
                server_hostname=credentials.server_hostname,
                max_msg_size=0,  # the peer is the API server, whose answers have no bound either
            )
        except aiohttp.ClientHttpProxyError as error:
            raise self._without_password(error) from None

    async def _authorization(self) -> Mapping[str, str]:
        value = await self.credentials.authorization()
        return {} if value is None else {hdrs.AUTHORIZATION: value}

    def _url_of(self, target: str) -> yarl.URL:
        path, _, query = target.partition("?")
        return yarl.URL.build(
            scheme=self._parts.scheme,
            authority=self._parts.netloc,
            path=self._parts.path + path,
            query_string=query,
            encoded=True,
        )

    def _without_password(self, error: aiohttp.ClientHttpProxyError) -> Exception:
        """The library's own words have the proxy's whole URL, and so its password."""
        proxy = urlsplit(self.credentials.proxy or "").netloc.rpartition("@")[2]
        text = f"the proxy {proxy} answered {error.status} {error.message}"
        return aiohttp.ClientConnectionError(text)

    async def close(self, *, after_s: float = 0.0) -> None:
        """Close every connection, those in use too, after this long. It sends nothing new until
        then, and renews no credentials: its successor may have the same.
        """
        if self._fresh is not None:
            self._fresh.cancel()
        try:
            if after_s:
                await asyncio.sleep(after_s)
        finally:
            for session in (self._session, self._lease_session):
                await session.close()


def _session(credentials: ApiCredentials, most: int) -> aiohttp.ClientSession:
    """A session of at most ``most`` connections."""
    return aiohttp.ClientSession(
        connector=GuardedConnector(
            limit=most,
            ssl=credentials.tls or True,
            keepalive_timeout=_IDLE_S,
            socket_factory=_socket,
        ),
        # identity: compressing costs the server more than the few bytes on the way to it.
        headers={hdrs.USER_AGENT: "sickbay-aggregator", hdrs.ACCEPT_ENCODING: "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=2**20,
    )


def _socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = info[:3]
    made = socket.socket(family, kind, protocol)
    for level, option, value in _KEEPALIVE:
        made.setsockopt(level, option, value)
    return made
