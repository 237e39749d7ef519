"""A token proves a pod that was there when it was signed; this refuses those of deleted pods."""

from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.identity import (
    Authenticator,
    CallCredentials,
    Caller,
    Identity,
    IdentityError,
    Refusal,
)


class LivePodAuthenticator:
    """Another authenticator, without the tokens of pods that are known to be deleted.

    It makes no request: an agent whose pod is not known yet is accepted, and checked afterwards.
    """

    def __init__(self, inner: Authenticator, deleted: DeletedPods) -> None:
        self._inner = inner
        self._deleted = deleted

    async def authenticate(self, caller: Caller) -> CallCredentials:
        credentials = await self._inner.authenticate(caller)
        self._checked(credentials.identity)
        return credentials

    async def renew(self, identity: Identity, token: str) -> Identity:
        return self._checked(await self._inner.renew(identity, token))

    def _checked(self, identity: Identity) -> Identity:
        if self._deleted.is_gone(identity.pod_uid):
            raise IdentityError(Refusal.POD_DELETED, pod_deleted(identity))
        self._deleted.note(identity.pod_uid)
        return identity


def pod_deleted(identity: Identity) -> str:
    """Why this identity counts no more, for the agent's log too."""
    return f"the pod of this token (UID {identity.pod_uid}) was deleted; a new pod gets its own"
