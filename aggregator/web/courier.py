"""Carries a question to another replica's page, and back what is an answer: nothing else.

The other is believed to be a replica because the council names its address and TLS its certificate.
Still its answers are bounded in time and size, redirects are not followed, and what can't be read
is no answer.
"""

import asyncio
import logging
import os
import ssl
from pathlib import Path
from typing import TypeVar

import aiohttp
from yarl import URL

from aggregator.certificates.authorities import AuthoritiesError, trusting
from aggregator.shards.council import Member
from aggregator.web import parts
from aggregator.web.parts import Answer, Past, Story, Unreadable

log = logging.getLogger("sickbay.web")

_T = TypeVar("_T", Answer, Past, Story)
_PIECE = 1 << 18


class NoAnswer(Exception):
    """Why there is none, to be read after the replica's name: "does not answer: ..."."""


class TrustError(Exception):
    """The file of authorities can't be read; says which and why."""


class Trust:
    """The authorities that sign the replicas' certificates, read again when the file changes.

    ``ca_file``: None for the system's. Raises TrustError when it can't be read.
    """

    def __init__(self, ca_file: Path | None) -> None:
        self._file = ca_file
        self._context: ssl.SSLContext | None = None  # the system's are many, and may not be needed
        try:
            self._seen = self._look()
            if ca_file is not None:
                self._context = self._load()
        except AuthoritiesError as error:
            raise TrustError(f"shards.ca_file: {error}") from error

    def context(self) -> ssl.SSLContext:
        """To connect with. While a changed file can't be read, what was read before counts."""
        try:
            now = self._look()
            if self._context is None or now != self._seen:
                self._context, self._seen = self._load(), now
        except AuthoritiesError as error:
            if self._context is None:
                raise
            log.warning("the replicas' authorities can't be read", extra={"error": str(error)})
        return self._context

    def _load(self) -> ssl.SSLContext:
        return ssl.create_default_context() if self._file is None else trusting(self._file)

    def _look(self) -> tuple[int, int]:
        if self._file is None:
            return (0, 0)
        try:
            stat = self._file.stat()
        except OSError as error:
            text = f"{self._file} can't be read: {error.strerror}; expected a readable file"
            raise AuthoritiesError(text) from error
        return (stat.st_ino, stat.st_mtime_ns)


class Courier:
    """Asks. Opens nothing before the first question; close it at the end."""

    def __init__(self, trust: Trust | None, *, deadline: float) -> None:
        self._trust = trust
        self._deadline = deadline
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, member: Member, what: str, kind: type[_T], **query: str) -> _T:
        """GET /replica/WHAT of its page. Raises NoAnswer."""
        url = self._url(member, what, query)
        try:
            async with asyncio.timeout(self._deadline):
                told = parts.decode(await self._fetch(url, member), kind)
        except TimeoutError as error:
            raise NoAnswer(f"does not answer: nothing within {self._deadline:g} s") from error
        except Unreadable as error:
            raise NoAnswer(f"does not answer properly: {error}") from error
        except aiohttp.ClientSSLError as error:
            raise NoAnswer(f"does not answer properly: its certificate: {error}") from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise NoAnswer(f"does not answer: {_why(error)}") from error
        except aiohttp.ClientError as error:
            raise NoAnswer(f"does not answer properly: {error}") from error
        if isinstance(told, Answer) and told.name != member.name:
            raise NoAnswer(f"does not answer properly: {told.name[:80]} answers at its address")
        return told

    async def close(self) -> None:
        """No more questions."""
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
        async with self._open().get(url, ssl=context, allow_redirects=False) as response:
            if response.status == 404:
                raise Unreadable(f"its version ({member.version or 'unknown'}) tells no part")
            if response.status != 200:
                raise Unreadable(f"it answered {response.status}")
            if response.content_type != parts.KIND:
                raise Unreadable(f"it sent {response.content_type[:80]}")
            body = bytearray()
            async for piece in response.content.iter_chunked(_PIECE):
                body += piece
                if len(body) > parts.MOST_BYTES:
                    raise Unreadable(f"it sent more than {parts.MOST_BYTES >> 20} MiB")
            return bytes(body)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # What is compressed can be far larger than what was counted: nothing is unpacked.
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "sickbay"},
            )
        return self._session


def _why(error: Exception) -> str:
    """In few words: the client names its own means, which tell nobody anything."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        text = cause.strerror or str(cause)
        # asyncio words some of its own, with the address that we name anyway.
        if cause.errno is not None and cause.errno > 0:
            text = os.strerror(cause.errno)
        return f"{error.host}:{error.port}: {text}"
    return str(error) or type(error).__name__
