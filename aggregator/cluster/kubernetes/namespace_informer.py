"""Follows the namespaces, by metadata alone: a label of each may name the owner of its pods.

A list and a watch, only where a route of alerts needs owners. No failure here concerns another
watch: alerts then have the owners that were known last.
"""

import contextlib
import logging

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import PartialObjectMetadata, decode
from aggregator.cluster.kubernetes.reflector import Follower, Resource, Watches, WatchEvent
from aggregator.cluster.kubernetes.transport import METADATA, METADATA_LIST
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.cluster.port import ClusterError
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.kubernetes")

_RIGHTS_FILE = "deploy/examples/alert-owners-rbac.yaml"


class NamespaceInformer(Follower):
    """Keeps the owners as the namespaces name them."""

    #: Up to half a minute and a minute between two tries: a missing right does not come in seconds.
    _BACKOFF = Backoff(first=5.0, most=60.0, spread=0.5)

    def __init__(self, watches: Watches, owners: NamespaceOwners) -> None:
        kind = Resource(
            paths.NAMESPACES,
            list_accept=METADATA_LIST,
            watch_accept=METADATA,
            lane=Priority.STATUS,
        )
        super().__init__(watches, kind)
        self._owners = owners

    def _report(self, error: ClusterError | None) -> None:
        if error is None:
            log.info(
                "the namespaces' owners can be read again", extra={"event": "alerts.owners_known"}
            )
            return
        right = f"; {_RIGHTS_FILE} grants the right" if error.status == 403 else ""
        log.warning(
            "the namespaces' owners can't be read: routes with owners miss alerts",
            extra={"event": "alerts.owners_unknown", "error": f"{error}{right}"},
        )

    async def _begin(self) -> None:
        found: set[str] = set()
        async with contextlib.aclosing(self._watch.pages()) as pages:
            async for page in pages:
                for raw in page:
                    meta = decode(raw, PartialObjectMetadata).metadata
                    self._owners.update(meta.name, meta.labels or {}, meta.annotations or {})
                    found.add(meta.name)
        self._owners.keep_only(found)

    def _take(self, change: WatchEvent) -> None:
        meta = decode(change.object, PartialObjectMetadata).metadata
        if change.type == "DELETED":
            self._owners.remove(meta.name)
        else:
            self._owners.update(meta.name, meta.labels or {}, meta.annotations or {})
