"""The claims of an ID token: its user, its audience and its end. Pure.

The rules are those of OpenID Connect Core, 3.1.3.7.
"""

import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.runtime.text import visible

#: Seconds by which the issuer's clock and ours may differ.
LEEWAY = 60.0
#: Characters of a user's name, and groups of one user that are compared.
_MOST_NAME, _MOST_GROUPS = 256, 10_000
#: Kubernetes' own users and groups: a claim must not name one.
_RESERVED = "system:"


class ClaimRefused(Exception):
    """The token proves nothing to us; the text states why, without a secret."""


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """The claims that name the user and the groups."""

    user: str = "email"
    groups: str = "groups"


def check_claims(
    claims: Mapping[str, Any], *, issuer: str, client_id: str, nonce: str, now: float
) -> None:
    """``now``: wall clock seconds. Raises ClaimRefused."""
    if claims.get("iss") != issuer:
        raise ClaimRefused(f"its issuer is {_shown(claims.get('iss'))}, expected {issuer}")
    listed = claims.get("aud")
    audiences = listed if isinstance(listed, list) else [listed]
    if client_id not in audiences:
        raise ClaimRefused(f"it is for {_shown(listed)}, expected the client {client_id}")
    party = claims.get("azp")
    if party != client_id and (party is not None or len(audiences) > 1):
        raise ClaimRefused(f"its authorized party is {_shown(party)}, expected {client_id}")
    _check_times(claims, now)
    found = claims.get("nonce")
    text = found.encode(errors="replace") if isinstance(found, str) else b""
    if not hmac.compare_digest(text, nonce.encode()):
        raise ClaimRefused("its nonce is not that of this log-in")


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    expires, issued = _seconds(claims, "exp"), _seconds(claims, "iat")
    begins = _seconds(claims, "nbf") if "nbf" in claims else issued
    if expires <= now - LEEWAY:
        raise ClaimRefused(
            f"it expired {now - expires:.0f} s ago by this machine's clock, which may be wrong"
        )
    if max(issued, begins) > now + LEEWAY:
        raise ClaimRefused(
            f"it begins {max(issued, begins) - now:.0f} s in the future by this machine's clock, "
            "which may be wrong"
        )


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    found = claims.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e11:
        raise ClaimRefused(f"its claim {name} is {_shown(found)}, expected seconds since the epoch")
    return float(found)


def user_of(claims: Mapping[str, Any], names: ClaimNames) -> str:
    """The user's name. Raises ClaimRefused."""
    found = claims.get(names.user)
    if not isinstance(found, str) or not 0 < len(found) <= _MOST_NAME or not found.isprintable():
        raise ClaimRefused(f"its claim {names.user} is {_shown(found)}, expected a user's name")
    if found.startswith(_RESERVED):
        raise ClaimRefused(f"its claim {names.user} names a user of {_RESERVED}")
    if names.user == "email" and claims.get("email_verified", True) is not True:
        raise ClaimRefused("its email address is not verified")
    return found


def groups_of(
    claims: Mapping[str, Any], names: ClaimNames, known: Collection[str]
) -> Sequence[str]:
    """Those of the ``known`` groups that the token names, each once."""
    found = claims.get(names.groups, [])
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    named = {one for one in listed[:_MOST_GROUPS] if isinstance(one, str)}
    return sorted(named.intersection(known))


def _shown(value: object) -> str:
    return visible(repr(value), 200)
