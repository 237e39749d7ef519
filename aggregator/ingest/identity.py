"""Identity: how a stream proves which node it may report about.

An agent can report only about the node that its identity names. Three kinds: a service account
token that the cluster signed (`aggregator.ingest.tokens`), a certificate per node (mTLS), and for
trials on loopback the agent's own claim.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cryptography import x509

from aggregator.configfile.values import is_loopback

#: Seconds since the epoch.
Now = Callable[[], float]

#: Seconds by which the signer's clock and this machine's may differ.
LEEWAY = 10.0

#: The header with the agent's token when the stream opens, as "Bearer TOKEN".
AUTHORIZATION = "authorization"


class Refusal(enum.StrEnum):
    """Why a stream was refused or ended. Each reason is counted."""

    NO_CREDENTIALS = "no_credentials"
    BAD_TOKEN = "bad_token"  # noqa: S105  # a reason, not a secret
    EXPIRED = "expired"
    OTHER_ACCOUNT = "other_account"
    NO_NODE = "no_node"
    ANOTHER_NODE = "another_node"
    BAD_CERTIFICATE = "bad_certificate"
    NOT_LOOPBACK = "not_loopback"
    KEYS_UNAVAILABLE = "keys_unavailable"
    POD_DELETED = "pod_deleted"


class IdentityError(Exception):
    """The stream may not report. The text gives the reason, for the agent's log too, and has no
    secret.
    """

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal

    @property
    def passing(self) -> bool:
        """Whether the caller may be valid and should try again, because we can't verify it now."""
        return self.refusal is Refusal.KEYS_UNAVAILABLE

    @property
    def proven(self) -> bool:
        """Whether the caller is known, and is one that may not do this."""
        return self.refusal in {Refusal.OTHER_ACCOUNT, Refusal.NO_NODE, Refusal.ANOTHER_NODE}


@dataclass(frozen=True, slots=True)
class Identity:
    """The proven identity of a caller. ``expires`` is in seconds since the epoch, None for
    never.
    """

    node: str
    node_uid: str = ""
    pod_uid: str = ""
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class CallCredentials:
    """Verified credentials, before the Hello is read.

    ``nodes``: the nodes that they name; empty where the agent's own claim is trusted.
    """

    identity: Identity
    nodes: tuple[str, ...] = ()

    def claimed(self, node: str) -> Identity:
        """The identity of ``node``. Raises `IdentityError` where the credentials name another."""
        if self.nodes and node not in self.nodes:
            raise _another(node, self.nodes[0])
        return replace(self.identity, node=node)


@dataclass(frozen=True, slots=True)
class Caller:
    """The credentials that a new stream presents when it is opened."""

    peer: str
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificate: Mapping[str, Sequence[bytes]] = field(default_factory=dict, repr=False)

    def bearer(self) -> str:
        """The token that the stream was opened with; `IdentityError` without one."""
        scheme, _, token = self.metadata.get(AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise IdentityError(
                Refusal.NO_CREDENTIALS, f'no "{AUTHORIZATION}: Bearer TOKEN" in the metadata'
            )
        return token.strip()


class Authenticator(Protocol):
    """Proves a caller's identity, or raises `IdentityError`."""

    async def authenticate(self, caller: Caller) -> CallCredentials:
        """Verify the credentials that a new stream was opened with, before it is read from."""

    async def renew(self, identity: Identity, token: str) -> Identity:
        """The same identity, extended by credentials that came within its stream."""


def must_be_claimed(identity: Identity, claims: str) -> Identity:
    """``identity``, when it is of the node that the stream claims."""
    if identity.node != claims:
        raise _another(claims, identity.node)
    return identity


def _another(claims: str, node: str) -> IdentityError:
    text = f"Hello claims node {claims!r}, and the credentials are of node {node!r}"
    return IdentityError(Refusal.ANOTHER_NODE, text)


class CertificateAuthenticator:
    """mTLS: the agent's certificate has the node's name, as a DNS name or, without any, as CN.

    grpc has verified the chain against ``listen.tls.client_ca_file`` in the handshake. Names are
    compared letter by letter: a wildcard matches no node.
    """

    async def authenticate(self, caller: Caller) -> CallCredentials:
        pem = caller.certificate.get("x509_pem_cert")
        if not pem:
            raise IdentityError(Refusal.NO_CREDENTIALS, "no client certificate")
        try:
            certificate = x509.load_pem_x509_certificate(pem[0])
            names = _names(certificate)
        except ValueError as error:
            text = f"the client certificate can't be read: {error}"
            raise IdentityError(Refusal.BAD_CERTIFICATE, text) from None
        if not names:
            text = "the client certificate names no node (no DNS name, no CN)"
            raise IdentityError(Refusal.NO_NODE, text)
        expires = certificate.not_valid_after_utc.timestamp()
        return CallCredentials(Identity(names[0], expires=expires), tuple(names))

    async def renew(self, identity: Identity, token: str) -> Identity:  # noqa: ARG002
        """A certificate can't be renewed within its connection."""
        text = f"a token, where certificates prove who node {identity.node!r} is"
        raise IdentityError(Refusal.BAD_TOKEN, text)


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        pass
    else:
        names = san.value.get_values_for_type(x509.DNSName)
        if names:
            return names
    common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return [str(name.value) for name in common]


class TrustingAuthenticator:
    """``insecure-trust-hello``: the agent's claim. Only from this machine unless ``anywhere``."""

    def __init__(self, *, anywhere: bool = False) -> None:
        self._anywhere = anywhere

    async def authenticate(self, caller: Caller) -> CallCredentials:
        if not self._anywhere and not peer_is_local(caller.peer):
            text = "insecure-trust-hello believes only callers on its own machine"
            raise IdentityError(Refusal.NOT_LOOPBACK, text)
        return CallCredentials(Identity(""))

    async def renew(self, identity: Identity, token: str) -> Identity:  # noqa: ARG002
        """The identity is unchanged: the agent may send its token, but has no need to."""
        return identity


def peer_is_local(peer: str) -> bool:
    """Whether grpc's ``peer`` is on this machine: "unix:", "ipv4:127.0.0.1:1", "ipv6:[::1]:1"."""
    kind, _, address = peer.partition(":")
    if kind == "unix":
        return True
    return is_loopback(address.replace("%5B", "[").replace("%5D", "]"))
