"""A token proves a pod and a Node of when it was signed; this refuses those that are gone.

A machine that was replaced keeps its name, and its predecessor's token is valid until it expires.
"""

from collections.abc import Awaitable, Callable

from attrs import define

from aggregator.ingest.deleted_pods import DeletedPods
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


@define(eq=False, repr=False, slots=False)
class CheckedAuthenticator:
    """Another authenticator, with checks of its pod and its Node against the cluster.

    A caller that can't be checked now is accepted. Its pod is checked afterwards, and the
    controller takes no action on a node that it has not read. Without ``is_current`` the Node is
    not checked.
    """

    _inner: Authenticator
    _deleted: DeletedPods
    _is_current: IsCurrent | None = None

    async def authenticate(self, caller: Caller) -> CallCredentials:
        credentials = await self._inner.authenticate(caller)
        await self._checked(credentials.identity)
        return credentials

    async def renew(self, identity: Identity, token: str) -> Identity:
        return await self._checked(await self._inner.renew(identity, token))

    async def _checked(self, identity: Identity) -> Identity:
        if self._deleted.is_gone(identity.pod_uid):
            raise IdentityError(Refusal.POD_DELETED, pod_deleted(identity))
        self._deleted.note(identity.pod_uid)
        node, uid = identity.node, identity.node_uid
        if self._is_current is not None and await self._is_current(node, uid) is False:
            text = (
                f"the credentials are of another Node object named {node!r} (UID {uid}), which is "
                "gone: the agent's pod must be made anew"
            )
            raise IdentityError(Refusal.ANOTHER_NODE, text)
        return identity


def pod_deleted(identity: Identity) -> str:
    """Why this identity counts no more, for the agent's log too."""
    return f"the pod of this token (UID {identity.pod_uid}) was deleted; a new pod gets its own"
