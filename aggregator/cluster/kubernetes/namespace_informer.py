"""Follows the namespaces, by metadata alone: a label of each may name the owner of its pods.

A list and a watch, only where a route of alerts asks for owners. No failure here concerns another
watch: alerts then have the owners that were known last.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import PartialObjectMetadata, decode
from aggregator.cluster.kubernetes.reflector import Resource, Watch
from aggregator.cluster.kubernetes.transport import METADATA, METADATA_LIST, Transport
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.cluster.port import ClusterError
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.kubernetes")

#: Up to half a minute and a minute between two tries: a missing right does not come in seconds.
_BACKOFF = Backoff(first=5.0, most=60.0, spread=0.5)
_RIGHTS_FILE = "deploy/examples/alert-owners-rbac.yaml"


class NamespaceInformer:
    """``clock`` is monotonic seconds; ``silence`` see `Watch`."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        silence: float,
    ) -> None:
        self._rng = rng
        self._watch = Watch(
            transport,
            Resource(
                paths.NAMESPACES,
                list_accept=METADATA_LIST,
                watch_accept=METADATA,
                lane=Priority.STATUS,
            ),
            clock=clock,
            rng=rng,
            silence=silence,
        )

    async def follow(self, owners: NamespaceOwners) -> None:
        """Keep the owners as the namespaces name them, for ever. Raises only its cancellation."""
        trouble, failures = "", 0
        while True:
            try:
                await self._list(owners)
                if trouble:
                    log.info(
                        "the namespaces' owners can be read again",
                        extra={"event": "alerts.owners_known"},
                    )
                trouble, failures = "", 0
                await self._follow_changes(owners)
            except ClusterError as error:
                failures += 1
                if str(error) != trouble:
                    trouble = str(error)
                    right = f"; {_RIGHTS_FILE} grants the right" if error.status == 403 else ""
                    log.warning(
                        "the namespaces' owners can't be read: routes with owners miss alerts",
                        extra={"event": "alerts.owners_unknown", "error": f"{trouble}{right}"},
                    )
                await asyncio.sleep(_BACKOFF.pause(failures, self._rng))

    async def _list(self, owners: NamespaceOwners) -> None:
        found: set[str] = set()
        async with contextlib.aclosing(self._watch.pages()) as pages:
            async for page in pages:
                for raw in page:
                    meta = decode(raw, PartialObjectMetadata).metadata
                    owners.update(meta.name, meta.labels or {}, meta.annotations or {})
                    found.add(meta.name)
        owners.keep_only(found)

    async def _follow_changes(self, owners: NamespaceOwners) -> None:
        async with contextlib.aclosing(self._watch.changes()) as batches:
            async for batch in batches:
                for change in batch:
                    meta = decode(change.object, PartialObjectMetadata).metadata
                    if change.type == "DELETED":
                        owners.remove(meta.name)
                    else:
                        owners.update(meta.name, meta.labels or {}, meta.annotations or {})
