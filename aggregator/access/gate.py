"""Decides on each request: the identity behind it, and whether that has the right."""

from collections.abc import Sequence

from aggregator.access.identity import (
    AccessRefused,
    Authorizer,
    RequestAuthenticator,
    RequestFacts,
    UserIdentity,
)
from aggregator.cluster.users import Access

#: The right to read page and API.
READ = Access("list", "sickbay.dev", "quarantines")
#: The right to read the metrics alone; READ includes it.
METRICS = Access("get", path="/metrics")


class AccessGate:
    """``authenticators`` in the order in which they count. ``anonymous``: all clients may read.

    ``actions``: whether people may act by page and API at all.
    """

    def __init__(
        self,
        authenticators: Sequence[RequestAuthenticator],
        authorizer: Authorizer,
        *,
        anonymous: bool,
        actions: bool = False,
    ) -> None:
        self._authenticators = tuple(authenticators)
        self._authorizer = authorizer
        self.anonymous = anonymous
        self.actions = actions

    async def identify(self, facts: RequestFacts) -> UserIdentity | None:
        """The identity, or None where the request presents no proof of one.

        Raises AccessRefused for a proof that is not valid.
        """
        for one in self._authenticators:
            found = await one.authenticate(facts)
            if found is not None:
                return found
        return None

    async def require(self, facts: RequestFacts, *any_of: Access) -> UserIdentity:
        """The identity, which has one of these rights if any are given. Raises AccessRefused."""
        identity = await self.identify(facts)
        if identity is None:
            raise AccessRefused(
                401,
                "no_credentials",
                "you are not logged in",
                "Send a bearer token (of kubectl create token ACCOUNT, or of a line of "
                "access.tokens_file), or a client certificate.",
            )
        for access in any_of:
            if await self._authorizer.allows(identity, access):
                return identity
        if any_of:
            raise missing_right(identity, any_of[0])
        return identity

    async def allows(self, identity: UserIdentity, *all_of: Access) -> bool:
        """Whether it has each of these rights. Raises AccessRefused where that is not known."""
        for access in all_of:
            if not await self._authorizer.allows(identity, access):
                return False
        return True

    async def expect(self, identity: UserIdentity, *all_of: Access) -> None:
        """Raises AccessRefused unless it has each of these rights."""
        for access in all_of:
            if not await self._authorizer.allows(identity, access):
                raise missing_right(identity, access)


def missing_right(identity: UserIdentity, access: Access) -> AccessRefused:
    """403: the identity is proven, and lacks a right."""
    if identity.how == "oidc":
        hint = (
            "A group of yours has to be among access.oidc.operators, or to read among "
            "access.oidc.viewers."
        )
    elif identity.how == "static-token":
        hint = "The line of your token in access.tokens_file has to have the role operator."
    else:
        role = "sickbay-viewer" if access in {READ, METRICS} else "sickbay-operator"
        name = identity.name
        account = name.removeprefix("system:serviceaccount:")
        who = f"--serviceaccount={account}" if account != name else f"--user={name}"
        hint = (
            f"An administrator can grant it: kubectl create clusterrolebinding NAME "
            f"--clusterrole={role} {who}"
        )
    return AccessRefused(
        403, "no_right", f"{identity.name[:256]} lacks the right to {access}", hint
    )
