"""A Secret and a ConfigMap in memory, whose requests a test may interleave, and files in memory."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aggregator.tls.authority import Authority, DamagedPem, ServingPair, read_bundle
from aggregator.tls.authority_store import (
    AuthorityConflict,
    AuthorityStoreError,
    StoredAuthorities,
    StoredBundle,
)
from aggregator.tls.pair_files import PairFiles


async def _at_once() -> None:
    return


class MemoryAuthorities:
    """The content that all replicas share. ``turn`` is awaited before each request is served."""

    secret_name = "Secret sickbay/sickbay-ca-keys"
    bundle_name = "ConfigMap sickbay/sickbay-ca"

    def __init__(self) -> None:
        self.secret: StoredAuthorities | None = None
        self.bundle: StoredBundle | None = None
        self.turn: Callable[[], Awaitable[None]] = _at_once
        self.away = self.refuses_writes = False
        #: How many authorities were ever made.
        self.made: list[Authority] = []
        self._version = 0

    async def read_authorities(self) -> StoredAuthorities | None:
        await self._served()
        return self.secret

    async def write_authorities(self, authorities: Sequence[Authority], version: str) -> None:
        await self._served()
        self._may_write()
        if (self.secret.version if self.secret is not None else "") != version:
            raise AuthorityConflict("the Secret has changed")
        self.put_secret(*authorities)

    async def read_bundle(self) -> StoredBundle | None:
        await self._served()
        return self.bundle

    async def write_bundle(self, text: bytes, version: str) -> None:
        await self._served()
        self._may_write()
        if (self.bundle.version if self.bundle is not None else "") != version:
            raise AuthorityConflict("the ConfigMap has changed")
        self.put_bundle(text)

    def put_secret(
        self, *authorities: Authority, damaged: dict[int, str] | None = None, rotate: bool = False
    ) -> None:
        """As a write by a person does: whatever the version was."""
        self.made += [one for one in authorities if one not in self.made]
        self.secret = StoredAuthorities(
            tuple(authorities),
            self._next(),
            damaged=damaged or {},
            rotation_requested=rotate,
        )

    def put_bundle(self, text: bytes) -> None:
        self.bundle = StoredBundle(text, self._next())

    @property
    def trusted(self) -> bytes:
        """The content that an agent would read now."""
        return self.bundle.text if self.bundle is not None else b""

    def _next(self) -> str:
        self._version += 1
        return str(self._version)

    def _may_write(self) -> None:
        if self.refuses_writes:
            raise AuthorityStoreError("field is immutable when `immutable` is set")

    async def _served(self) -> None:
        await self.turn()
        if self.away:
            raise AuthorityStoreError("the API server is out of reach")


class MemoryFiles(PairFiles):
    """One replica's folder."""

    def __init__(self) -> None:
        super().__init__(Path("/memory"))
        self._pair: ServingPair | None = None
        self._bundle = b""

    def read_pair(self) -> ServingPair | None:
        return self._pair

    def write_pair(self, pair: ServingPair) -> None:
        self._pair = pair

    def read_bundle(self) -> bytes:
        return self._bundle

    def write_bundle(self, text: bytes) -> None:
        self._bundle = text


@functools.lru_cache(maxsize=256)
def names_in(bundle: bytes) -> frozenset[str]:
    """The names of the authorities in a bundle; none where it is damaged."""
    try:
        return frozenset(one.subject.rfc4514_string() for one in read_bundle(bundle))
    except DamagedPem:
        return frozenset()


def trusts(bundle: bytes, pair: ServingPair) -> bool:
    """Whether an agent with this bundle accepts the certificate, apart from its dates.

    By the authority's name, which is random: signatures are verified elsewhere.
    """
    return pair.certificate.issuer.rfc4514_string() in names_in(bundle)
