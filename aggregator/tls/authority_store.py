"""Where all replicas find their common authorities: a Secret with the keys, and a ConfigMap with
the certificates that agents trust. Each write is a compare-and-set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aggregator.tls.authority import Authority


class AuthorityStoreError(Exception):
    """A request failed. The text names object and reason."""


class AuthorityConflict(AuthorityStoreError):
    """The object has changed since it was read, or was made or deleted: read, decide again."""


@dataclass(frozen=True, slots=True)
class StoredAuthorities:
    """The content of the Secret. ``authorities`` are the usable ones, oldest first.

    ``damaged`` has the problem of each entry that can't be used, by its number.
    ``rotation_requested``: a person wants a new authority now.
    """

    authorities: tuple[Authority, ...]
    version: str
    damaged: Mapping[int, str] = field(default_factory=dict)
    rotation_requested: bool = False


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """The content of the ConfigMap: certificates in PEM, or any text that others wrote."""

    text: bytes
    version: str


class AuthorityStore(Protocol):
    """Reads are from the database itself, never from an older state. An empty ``version`` creates.

    All methods raise AuthorityStoreError; writes raise AuthorityConflict.
    """

    @property
    def secret_name(self) -> str:
        """The Secret as messages name it: "Secret NAMESPACE/NAME"."""
        ...

    @property
    def bundle_name(self) -> str:
        """The ConfigMap as messages name it."""
        ...

    async def read_authorities(self) -> StoredAuthorities | None:
        """None: the Secret is not there."""
        ...

    async def write_authorities(self, authorities: Sequence[Authority], version: str) -> None:
        """Replace all authorities, and end a request for rotation."""
        ...

    async def read_bundle(self) -> StoredBundle | None:
        """None: the ConfigMap is not there."""
        ...

    async def write_bundle(self, text: bytes, version: str) -> None:
        """Replace the certificates."""
        ...
