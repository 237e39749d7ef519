"""Follows the agents' pods, by metadata alone: which of them exist, and which were deleted.

A list and a watch, chosen by service account: those are the pods whose tokens count, whatever their
labels are. No failure here concerns another watch: tokens of deleted pods stay valid meanwhile.
docs/decisions/0020-tokens-of-deleted-pods.md gives the reasons.
"""

import asyncio
import contextlib
import logging

import msgspec

from aggregator.cluster.agent_pods import PodGone, PodSeen, PodSink, PodsListed
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import PartialObjectMetadata, decode
from aggregator.cluster.kubernetes.reflector import Follower, Resource, Watches, WatchEvent
from aggregator.cluster.kubernetes.transport import METADATA, METADATA_LIST
from aggregator.cluster.port import ClusterError
from aggregator.runtime.tasks import run_until_first_exit

#: Seconds between two lists, at least: one of 10,000 pods is some 30 MB.
LIST_EVERY = 180.0
#: That pause is up to this much longer, so that replicas do not list together.
_SPREAD = 1.25
#: Seconds between two checks whether a list is wanted.
_POLL_EVERY = 5.0

log = logging.getLogger("sickbay.kubernetes")


class AgentPodInformer(Follower):
    """Reports which pods of the agents there are, then each change. ``namespace`` and ``account``
    are those of their service account.

    Another list comes where the sink wants one, and after a failure; `LIST_EVERY` after the last
    one at the earliest.
    """

    def __init__(self, watches: Watches, sink: PodSink, *, namespace: str, account: str) -> None:
        kind = Resource(
            paths.pods(namespace),
            {"fieldSelector": f"spec.serviceAccountName={account}"},
            list_accept=METADATA_LIST,
            watch_accept=METADATA,
            lane=Priority.STATUS,
        )
        super().__init__(watches, kind)
        self._sink = sink
        self._began = 0.0

    async def _begin(self) -> None:
        self._began = self._clock()
        uids: set[str] = set()
        async with contextlib.aclosing(self._watch.pages()) as pages:
            async for page in pages:
                uids.update(map(_uid, page))
                await asyncio.sleep(0)
        self._sink.take(PodsListed(frozenset(uids), self._began))

    async def _follow(self) -> None:
        await run_until_first_exit(agent_pods=super()._follow(), agent_pods_again=self._wanted())

    def _take(self, change: WatchEvent) -> None:
        uid, gone = _uid(change.object), change.type == "DELETED"
        self._sink.take(PodGone(uid) if gone else PodSeen(uid))

    async def _wanted(self) -> None:
        await self._pause()
        while not self._sink.wants_list():  # noqa: ASYNC110 - the sink has no event
            await asyncio.sleep(_POLL_EVERY)

    async def _pause(self, failures: int = 0) -> None:  # noqa: ARG002
        """Until the next list may be requested."""
        until = self._began + LIST_EVERY * self._rng.uniform(1.0, _SPREAD)
        await asyncio.sleep(max(0.0, until - self._clock()))

    def _report(self, error: ClusterError | None) -> None:
        if error is None:
            log.info("the agents' pods can be followed again")
            return
        text = "the agents' pods can't be followed: tokens of deleted pods stay valid"
        log.warning(text, extra={"error": str(error)})


def _uid(raw: msgspec.Raw) -> str:
    return decode(raw, PartialObjectMetadata).metadata.uid
