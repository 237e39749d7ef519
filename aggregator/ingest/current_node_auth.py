"""A token proves a Node object; this checks whether that is still the Node of its name.

A machine that was replaced keeps its name, and its predecessor's token is valid until it expires.
"""

from collections.abc import Awaitable, Callable

from aggregator.ingest.identity import (
    Authenticator,
    CallCredentials,
    Caller,
    Identity,
    IdentityError,
    Refusal,
)

#: Whether the cluster's Node of this name has this UID, or None if that is unknown now.
IsCurrent = Callable[[str, str], Awaitable[bool | None]]


class CurrentNodeAuthenticator:
    """Another authenticator, with a check of its Node against the cluster.

    A caller that can't be checked now is accepted: the controller checks again when it sees the
    cluster, and it takes no action on a node that it has not read.
    """

    def __init__(self, inner: Authenticator, is_current: IsCurrent) -> None:
        self._inner = inner
        self._is_current = is_current

    async def authenticate(self, caller: Caller) -> CallCredentials:
        credentials = await self._inner.authenticate(caller)
        await self._checked(credentials.identity)
        return credentials

    async def renew(self, identity: Identity, token: str) -> Identity:
        return await self._checked(await self._inner.renew(identity, token))

    async def _checked(self, identity: Identity) -> Identity:
        if await self._is_current(identity.node, identity.node_uid) is False:
            text = (
                f"the credentials are of another Node object named {identity.node!r} (UID "
                f"{identity.node_uid}), which is gone: the agent's pod must be made anew"
            )
            raise IdentityError(Refusal.ANOTHER_NODE, text)
        return identity
