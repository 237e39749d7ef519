"""Published keys that verify tokens: a JWKS (RFC 7517)."""

import logging
from collections.abc import Collection, Sequence

import jwt

log = logging.getLogger(__name__)


class KeysError(ValueError):
    """The published document is no set of keys that we can use."""


def read_key_set(document: object, algorithms: Collection[str]) -> Sequence[jwt.PyJWK]:
    """The keys for these algorithms. Raises KeysError where there is none.

    HMAC must not be among them: a public key must never be taken for a shared secret. PyJWT's own
    set is given up for one malformed key.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeysError("the published document is not a key set")
    found = [key for key in map(_read_key, listed) if key and key.algorithm_name in algorithms]
    if not found:
        raise KeysError(f"no key is published that signs with one of {', '.join(algorithms)}")
    return found


def _read_key(listed: object) -> jwt.PyJWK | None:
    if not isinstance(listed, dict) or listed.get("kty") not in ("RSA", "EC"):
        return None
    try:
        return jwt.PyJWK(listed)
    except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.info("a published key can't be used", extra={"error": repr(error)})
        return None
