"""Sends a request to another replica's page, and accepts only a valid answer.

The other is trusted to be a replica because the membership view names its address and TLS its
certificate. Still its answers are bounded in time and size, redirects are not followed, and an
unreadable body is no answer.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import aiohttp
from yarl import URL

from aggregator.configfile.values import is_loopback
from aggregator.replicas.membership.view import Member
from aggregator.tls.client_context import CaFileError, client_context
from aggregator.web import replica_messages
from aggregator.web.replica_messages import HistoryAnswer, NodeDetailAnswer, PageAnswer, Unreadable

log = logging.getLogger("sickbay.web")

_T = TypeVar("_T", PageAnswer, HistoryAnswer, NodeDetailAnswer)
_PIECE = 1 << 18


class NoAnswer(Exception):
    """Why there is no answer, as text after the replica's name: "does not answer: ..."."""


class TrustError(Exception):
    """The CA file can't be read; the text names the file and the reason."""


class Trust:
    """The CA of the replicas' certificates, read again when the file changes.

    ``ca_file``: without it the system's. Raises TrustError when it can't be read.
    """

    def __init__(self, ca_file: Path | None) -> None:
        self._file = ca_file
        self._context: ssl.SSLContext | None = None  # the system's are many, and may not be needed
        try:
            self._seen = self.read_if_changed()
            if ca_file is not None:
                self._context = self._load()
        except CaFileError as error:
            raise TrustError(f"shards.ca_file: {error}") from error

    def context(self) -> ssl.SSLContext:
        """For connections. While a changed file can't be read, the earlier content counts."""
        try:
            now = self.read_if_changed()
            if self._context is None or now != self._seen:
                self._context, self._seen = self._load(), now
        except CaFileError as error:
            if self._context is None:
                raise
            log.warning("the replicas' authorities can't be read", extra={"error": str(error)})
        return self._context

    def _load(self) -> ssl.SSLContext:
        return ssl.create_default_context() if self._file is None else client_context(self._file)

    def read_if_changed(self) -> tuple[int, int]:
        if self._file is None:
            return (0, 0)
        try:
            stat = self._file.stat()
        except OSError as error:
            text = f"{self._file} can't be read: {error.strerror}; expected a readable file"
            raise CaFileError(text) from error
        return (stat.st_ino, stat.st_mtime_ns)


class ReplicaClient:
    """Sends requests. Opens no connection before the first one; close it at the end.

    ``token`` reads the token that proves this replica to the others, or raises; None: none.
    """

    def __init__(
        self,
        trust: Trust | None,
        *,
        deadline: float,
        token: Callable[[], str] | None = None,
    ) -> None:
        self._token = token
        self._trust = trust
        self._deadline = deadline
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, member: Member, what: str, kind: type[_T], **query: str) -> _T:
        """GET /replica/WHAT of its page. Raises NoAnswer."""
        url = self._url(member, what, query)
        try:
            async with asyncio.timeout(self._deadline):
                told = replica_messages.decode(await self._fetch(url, member), kind)
        except TimeoutError as error:
            raise NoAnswer(f"does not answer: no reply within {self._deadline:g} s") from error
        except Unreadable as error:
            raise NoAnswer(f"does not answer properly: {error}") from error
        except aiohttp.ClientSSLError as error:
            raise NoAnswer(f"does not answer properly: its certificate: {error}") from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise NoAnswer(f"does not answer: {_why(error)}") from error
        except aiohttp.ClientError as error:
            raise NoAnswer(f"does not answer properly: {error}") from error
        if isinstance(told, PageAnswer) and told.name != member.name:
            raise NoAnswer(f"does not answer properly: {told.name[:80]} answers at its address")
        return told

    async def close(self) -> None:
        """End all requests."""
        if self._session is not None:
            await self._session.close()

    def _url(self, member: Member, what: str, query: dict[str, str]) -> URL:
        try:
            base = URL(member.page)
        except ValueError as error:
            raise NoAnswer(f'does not answer: "{member.page[:80]}" is no address') from error
        if base.scheme not in {"http", "https"} or not base.host:
            raise NoAnswer("does not answer: it tells no address of its page")
        return base.joinpath("replica", what).with_query(
            {name: value for name, value in query.items() if value}
        )

    async def _fetch(self, url: URL, member: Member) -> bytes:
        context = self._trust.context() if self._trust and url.scheme == "https" else True
        async with self._open().get(
            url, ssl=context, allow_redirects=False, headers=self._authorization(url)
        ) as response:
            if response.status in {401, 403}:
                raise Unreadable("it refuses this replica's token (shards.service_account)")
            if response.status == 404:
                raise Unreadable(f"its version ({member.version or 'unknown'}) tells no part")
            if response.status != 200:
                raise Unreadable(f"it answered {response.status}")
            if response.content_type != replica_messages.KIND:
                raise Unreadable(f"it sent {response.content_type[:80]}")
            body = bytearray()
            async for piece in response.content.iter_chunked(_PIECE):
                body += piece
                if len(body) > replica_messages.MOST_BYTES:
                    raise Unreadable(f"it sent more than {replica_messages.MOST_BYTES >> 20} MiB")
            return bytes(body)

    def _authorization(self, url: URL) -> dict[str, str]:
        """Nothing in plaintext to another machine: a listener there would get the token."""
        if self._token is None or not (url.scheme == "https" or is_loopback(f"{url.host}:0")):
            return {}
        try:
            return {"Authorization": f"Bearer {self._token()}"}
        except Exception as error:  # noqa: BLE001 - of the reader; without a token the other answers
            log.debug("this replica's token can't be read", extra={"error": str(error)})
            return {}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A compressed body can be far larger than its counted bytes, so it is not unpacked.
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "sickbay"},
            )
        return self._session


def _why(error: Exception) -> str:
    """A short reason: the client's own text names its internals, which help no reader."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        text = cause.strerror or str(cause)
        # asyncio words some of its own, with the address that we name anyway.
        if cause.errno is not None and cause.errno > 0:
            text = os.strerror(cause.errno)
        return f"{error.host}:{error.port}: {text}"
    return str(error) or type(error).__name__
