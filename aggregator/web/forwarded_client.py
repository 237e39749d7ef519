"""The headers that a gateway adds to a reader's request, and those that the controller accepts.

A token or a cookie is forwarded as the reader sent it, so that the controller authenticates each
reader itself. A gateway ends the reader's TLS: it adds the certificate that the reader has proven
to hold, and the reader's address. Both count only with a token of the replicas' own account.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

#: The gateway's own token. A gateway passes on no request that has it.
REPLICA = "X-Sickbay-Replica"
_CERTIFICATE = "X-Sickbay-Client-Certificate"
_ADDRESS = "X-Sickbay-Client-Address"
NAMES = (REPLICA, _CERTIFICATE, _ADDRESS)
#: In lower case. A reader's own are not passed on.
HEADERS = frozenset(name.lower() for name in NAMES)

#: Verifies a replica's token. Raises AccessRefused.
VerifyReplica = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Client:
    address: str
    certificate: bytes | None


_CLIENT: web.RequestKey[_Client] = web.RequestKey("sickbay.client", _Client)


def added_headers(request: web.Request, token: str) -> Mapping[str, str]:
    """For the request that is forwarded to the controller. ``token`` is this replica's own."""
    headers = {REPLICA: token, _ADDRESS: request.remote or ""}
    certificate = _presented(request)
    if certificate is not None:
        headers[_CERTIFICATE] = base64.b64encode(certificate).decode()
    return headers


async def accept(request: web.Request, verify: VerifyReplica | None) -> None:
    """Let `address_of` and `certificate_of` be the reader's, where a gateway passed the request on.

    Raises AccessRefused for a token that is not a replica's.
    """
    token = request.headers.get(REPLICA, "")
    if not token or verify is None:
        return
    await verify(token)
    encoded = request.headers.get(_CERTIFICATE, "")
    try:
        certificate = base64.b64decode(encoded, validate=True) if encoded else None
    except (binascii.Error, ValueError):
        certificate = None
    request[_CLIENT] = _Client(request.headers.get(_ADDRESS, ""), certificate)


def address_of(request: web.Request) -> str:
    """The reader's address; empty: unknown."""
    client = request.get(_CLIENT)
    return client.address if client is not None else request.remote or ""


def certificate_of(request: web.Request) -> bytes | None:
    """The certificate whose key the reader has proven to hold, in DER."""
    client = request.get(_CLIENT)
    return client.certificate if client is not None else _presented(request)


def _presented(request: web.Request) -> bytes | None:
    transport = request.transport
    if transport is None:
        return None
    shell: Any = transport.get_extra_info("ssl_object")
    return shell.getpeercert(binary_form=True) if shell is not None else None
