"""The keys that the API server signs service account tokens with, from its discovery document."""

import json

from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import Refused

_DISCOVERY = "/.well-known/openid-configuration"
_KEYS = "/openid/v1/jwks"


async def signing_keys(transport: Transport) -> tuple[str, str]:
    """The issuer's name, and the key set (JWKS) as JSON text. Raises `ClusterError`.

    Every service account may read both (ClusterRole system:service-account-issuer-discovery).
    """
    document = json.loads(await transport.get(_DISCOVERY, Priority.RECORD))
    issuer = document.get("issuer")
    if not isinstance(issuer, str) or not issuer:
        raise Refused("the API server's discovery document names no issuer of tokens")
    # It answers 406 to a client that accepts application/json only.
    keys = await transport.get(_KEYS, Priority.RECORD, accept="*/*")
    return issuer, keys.decode()
