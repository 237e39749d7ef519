"""Tokens for a page that requires one, where a kubeconfig leads to it.

The page's server could use a token wherever the API server takes it. So the first one tried is that
of the account sickbay-viewer, which may read and do nothing else, for ten minutes. The kubeconfig's
own token comes after it, for a person who may not make tokens of that account.
"""

from collections.abc import Iterator

from aggregator.cli.kube_session import KubeSession
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.port import UNGUARDED, ClusterError
from sickbay.json_text import read_json

#: The account of deploy/kubernetes/access.yaml.
VIEWER = "sickbay-viewer"
#: Seconds; the API server grants no less.
_LIFETIME = 600


def tokens(session: KubeSession, namespace: str) -> Iterator[str]:
    """Each is fetched when it is requested. An error means that there is none."""

    async def make(api: Transport) -> str:
        body = await api.request(
            "POST",
            paths.token(namespace, VIEWER),
            Priority.READ,
            body=encode({"spec": {"expirationSeconds": _LIFETIME}}),
            guard=UNGUARDED,
        )
        return str(read_json(body)["status"]["token"])

    async def own(api: Transport) -> str:
        scheme, _, token = (await api.credentials.authorization() or "").partition(" ")
        return token if scheme.lower() == "bearer" else ""

    for work in (make, own):
        try:
            token = session.attempt(work)
        except (ClusterError, ValueError, KeyError, TypeError):
            continue
        if token:
            yield token
