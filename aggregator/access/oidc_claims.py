"""The claims of an ID token: its user, its groups and its log-in. Pure.

The rules are those of OpenID Connect Core, 3.1.3.7.
"""

import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.runtime.text import visible

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


def check_claims(claims: Mapping[str, Any], *, client_id: str, nonce: str) -> None:
    """The rules that the library does not have. Raises ClaimRefused."""
    party = claims.get("azp")
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if party != client_id and (party is not None or several):
        raise ClaimRefused(f"its authorized party is {_shown(party)}, expected {client_id}")
    found = claims.get("nonce")
    text = found.encode(errors="replace") if isinstance(found, str) else b""
    if not hmac.compare_digest(text, nonce.encode()):
        raise ClaimRefused("its nonce is not that of this log-in")


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
