"""The keys that the API server signs service account tokens with, from its discovery document."""

import json

from aggregator.kube.limiter import Lane
from aggregator.kube.transport import Transport
from aggregator.quarantine.cluster import Refused

_DISCOVERY = "/.well-known/openid-configuration"
_KEYS = "/openid/v1/jwks"


async def signing_keys(transport: Transport) -> tuple[str, str]:
    """The issuer's name, and the key set (JWKS) as JSON text. Raises `ClusterError`.

    Every service account may read both (ClusterRole system:service-account-issuer-discovery).
    """
    document = json.loads(
        await transport.request("GET", _DISCOVERY, kind="discovery", lane=Lane.RECORD)
    )
    issuer = document.get("issuer")
    if not isinstance(issuer, str) or not issuer:
        raise Refused("the API server's discovery document names no issuer of tokens")
    # It answers 406 to whoever accepts application/json alone.
    keys = await transport.request("GET", _KEYS, kind="keys", lane=Lane.RECORD, accept="*/*")
    return issuer, keys.decode()
