"""Follows the agents' pods, by metadata alone: which of them exist, and which were deleted.

A list and a watch, chosen by service account: those are the pods whose tokens count, whatever their
labels are. No failure here concerns another watch: tokens of deleted pods stay valid meanwhile.
docs/decisions/0020-tokens-of-deleted-pods.md gives the reasons.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

import msgspec

from aggregator.cluster.agent_pods import PodGone, PodSeen, PodSink, PodsListed
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import PartialObjectMetadata, decode
from aggregator.cluster.kubernetes.reflector import Resource, Watch
from aggregator.cluster.kubernetes.transport import METADATA, METADATA_LIST, Transport
from aggregator.cluster.port import ClusterError
from aggregator.runtime.tasks import run_until_first_exit

#: Seconds between two lists, at least: one of 10,000 pods is some 30 MB.
LIST_EVERY = 180.0
#: That pause is up to so much longer, so that replicas do not list together.
_SPREAD = 1.25
#: Seconds between two looks whether a list is wanted.
_POLL_EVERY = 5.0

log = logging.getLogger("sickbay.kubernetes")


class AgentPodInformer:
    """``namespace`` and ``account`` are those of the agents' service account.

    ``clock`` is monotonic seconds; ``silence`` see `Watch`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        namespace: str,
        account: str,
        clock: Callable[[], float],
        rng: random.Random,
        silence: float,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._watch = Watch(
            transport,
            Resource(
                paths.pods(namespace),
                {"fieldSelector": f"spec.serviceAccountName={account}"},
                list_accept=METADATA_LIST,
                watch_accept=METADATA,
                lane=Priority.STATUS,
            ),
            clock=clock,
            rng=rng,
            silence=silence,
        )

    async def follow(self, sink: PodSink) -> None:
        """Tell which pods there are, then each change, for ever. Raises only its cancellation.

        Another list comes where the sink wants one, and after a failure; `LIST_EVERY` after the
        last one at the earliest.
        """
        trouble = ""
        while True:
            began = self._clock()
            try:
                await self._list(sink, began)
                if trouble:
                    log.info("the agents' pods can be followed again")
                    trouble = ""
                await run_until_first_exit(
                    agent_pods=self._changes(sink), agent_pods_again=self._wanted(sink, began)
                )
            except ClusterError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    text = "the agents' pods can't be followed: tokens of deleted pods stay valid"
                    log.warning(text, extra={"error": trouble})
                await self._pause(began)

    async def _list(self, sink: PodSink, began: float) -> None:
        uids: set[str] = set()
        async with contextlib.aclosing(self._watch.pages()) as pages:
            async for page in pages:
                uids.update(map(_uid, page))
                await asyncio.sleep(0)
        sink.take(PodsListed(frozenset(uids), began))

    async def _changes(self, sink: PodSink) -> None:
        async with contextlib.aclosing(self._watch.changes()) as batches:
            async for batch in batches:
                for change in batch:
                    uid, gone = _uid(change.object), change.type == "DELETED"
                    sink.take(PodGone(uid) if gone else PodSeen(uid))

    async def _wanted(self, sink: PodSink, began: float) -> None:
        await self._pause(began)
        while True:
            if sink.wants_list():
                return
            await asyncio.sleep(_POLL_EVERY)

    async def _pause(self, began: float) -> None:
        """Until the next list may be asked for."""
        until = began + LIST_EVERY * self._rng.uniform(1.0, _SPREAD)
        await asyncio.sleep(max(0.0, until - self._clock()))


def _uid(raw: msgspec.Raw) -> str:
    return decode(raw, PartialObjectMetadata).metadata.uid
