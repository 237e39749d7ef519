"""Projected service account tokens, verified offline against the cluster's published keys.

Any pod of any tenant can get a token with our audience, and it names that pod's node. So the
account decides: only *our* service account's token identifies the node that it names. The signature
stays valid until the token expires, also when its pod is gone: `checked_auth` knows of those.
"""

from collections.abc import Mapping
from typing import Any

import jwt
from attrs import define, field

from aggregator.ingest.identity import (
    LEEWAY,
    CallCredentials,
    Caller,
    Identity,
    IdentityError,
    Now,
    Refusal,
    must_be_claimed,
)
from aggregator.ingest.jwks import ALGORITHMS, JwksCache

MAX_TOKEN = 16_384


@define(eq=False, repr=False, slots=False)
class TokenAuthenticator:
    """Bearer tokens of one service account.

    ``service_account`` is "namespace:name"; an empty ``issuer`` means the one that the API server
    publishes with its keys; ``now`` is seconds since the epoch. ``key``: the configuration's key
    for the account, for people.
    """

    _keys: JwksCache
    _audience: str = field(kw_only=True)
    _service_account: str = field(kw_only=True)
    _issuer: str = field(kw_only=True)
    _now: Now = field(kw_only=True)
    _key: str = field(default="identity.service_account", kw_only=True)

    async def authenticate(self, caller: Caller) -> CallCredentials:
        identity = await self.verify(caller.bearer())
        return CallCredentials(identity, (identity.node,))

    async def renew(self, identity: Identity, token: str) -> Identity:
        """A newer token of the same node; of the same Node object, if the cluster reports which."""
        renewed = must_be_claimed(await self.verify(token), identity.node)
        if renewed.node_uid != identity.node_uid:
            text = f"the renewed token is of another Node named {identity.node!r}"
            raise IdentityError(Refusal.ANOTHER_NODE, text)
        return renewed

    async def verify(self, token: str) -> Identity:
        """The identity of the token's bearer, or `IdentityError`."""
        return _identity(await self._claims(token))

    async def verify_account(self, token: str) -> float:
        """Verify that it is of the account, on any node. Returns its end (seconds since the epoch).

        Raises `IdentityError`.
        """
        return float((await self._claims(token))["exp"])

    async def _claims(self, token: str) -> Mapping[str, Any]:
        claims = await self._signed(token)
        self._check_times(claims)
        subject = f"system:serviceaccount:{self._service_account}"
        if claims.get("sub") != subject:
            text = (
                f"the token is of {_shown(claims.get('sub'))}; only {subject} may report"
                f" ({self._key})"
            )
            raise IdentityError(Refusal.OTHER_ACCOUNT, text)
        return claims

    async def _signed(self, token: str) -> Mapping[str, Any]:
        if len(token) > MAX_TOKEN:
            raise IdentityError(Refusal.BAD_TOKEN, f"longer than {MAX_TOKEN} characters")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise IdentityError(Refusal.BAD_TOKEN, f"no signed token: {error}") from None
        kid = header.get("kid")
        if not isinstance(kid, str) or not kid:
            raise IdentityError(Refusal.BAD_TOKEN, "the token does not name the key that signed it")
        key = await self._keys.key(kid)
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer or self._keys.issuer,
                # Times are compared with our own clock, which is an argument.
                options={
                    "require": ["exp", "iss", "aud", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidAudienceError:
            text = f'the token is for another audience; expected is "{self._audience}"'
            raise IdentityError(Refusal.BAD_TOKEN, text) from None
        except jwt.PyJWTError as error:
            raise IdentityError(Refusal.BAD_TOKEN, str(error)) from None
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now, exp, nbf = self._now(), claims["exp"], claims.get("nbf", 0)
        if not _is_time(exp) or not _is_time(nbf):
            raise IdentityError(Refusal.BAD_TOKEN, "exp or nbf is no time")
        if now >= exp + LEEWAY:
            raise IdentityError(Refusal.EXPIRED, f"the token expired {now - exp:.0f} s ago")
        if now < nbf - LEEWAY:
            text = f"not valid for another {nbf - now:.0f} s: is a clock wrong?"
            raise IdentityError(Refusal.BAD_TOKEN, text)


def _identity(claims: Mapping[str, Any]) -> Identity:
    """From the claims that the API server adds to a token bound to a pod."""
    bound = claims.get("kubernetes.io")
    bound = bound if isinstance(bound, dict) else {}
    node, pod = bound.get("node"), bound.get("pod")
    if not isinstance(node, dict) or not isinstance(pod, dict):
        text = "the token is not bound to a pod on a node (Kubernetes 1.30 and later name it)"
        raise IdentityError(Refusal.NO_NODE, text)
    values = (node.get("name"), node.get("uid"), pod.get("uid"))
    if not all(isinstance(value, str) and value for value in values):
        raise IdentityError(Refusal.NO_NODE, "the token names no node")
    name, node_uid, pod_uid = (str(value) for value in values)
    return Identity(name, node_uid, pod_uid, float(claims["exp"]))


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return str(value)[:200] if isinstance(value, str) else "nobody"
