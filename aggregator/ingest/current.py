"""A token proves a Node object; this asks whether that is still the Node of its name.

A machine that was replaced keeps its name, and its predecessor's token is good until it expires.
"""

from collections.abc import Awaitable, Callable

from aggregator.ingest.identity import Authenticator, Caller, Identity, IdentityError, Refusal

#: Whether the cluster's Node of this name has this UID; None: that can't be told now.
IsCurrent = Callable[[str, str], Awaitable[bool | None]]


class CurrentNodeAuthenticator:
    """Another authenticator, and the cluster's word on the Node that it proves.

    Who can't be told apart now is let in: the controller asks again when it sees the cluster, and
    nothing is done about a node that it has not read.
    """

    def __init__(self, inner: Authenticator, is_current: IsCurrent) -> None:
        self._inner = inner
        self._is_current = is_current

    async def identify(self, caller: Caller) -> Identity:
        return await self._checked(await self._inner.identify(caller))

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
