"""What happens in the cluster: quarantines, uncordons, the record; whole, or said to be lost.

Three watches make one view. When one of them can't be followed without a gap the view is lost,
all three are listed anew, and what went meanwhile is told as gone. So the listener never has to
ask whether it missed something.

The order of the lists matters: quarantines before nodes. A node that was cordoned for a
quarantine of the first list is in the second, unless somebody uncordoned it.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from aggregator.kube import paths
from aggregator.kube.definition import DefinitionState, read_definition
from aggregator.kube.objects import RECORD_NAME, Bare, RecordObject, decode, to_record
from aggregator.kube.quarantines import decode_quarantine
from aggregator.kube.transport import METADATA, METADATA_LIST, Transport
from aggregator.kube.watches import Change, Kind, Watch
from aggregator.quarantine.cluster import (
    ClusterError,
    News,
    NodeUncordoned,
    Phase,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    RecordSeen,
    RecordText,
    Unreachable,
    ViewLost,
    ViewRestored,
)
from aggregator.together import together

#: A few replicas ask, one request each: what waits for the view are the faults of that time.
_BACKOFF_FIRST_S, _BACKOFF_MOST_S = 0.5, 5.0
#: A view that held for so long was no failed try: backoff begins anew.
_HELD_S = 10.0
#: Phases in which the node is unschedulable by our hand.
_CORDONED = frozenset({Phase.CORDONED, Phase.DRAINING, Phase.DRAINED})

_NO_RECORD = RecordText(text="", version="", stop="")

Tell = Callable[[News], None]


class Newsroom:
    """One listener's view of the cluster. `follow` runs for ever and gives everything to ``tell``.

    ``clock`` is monotonic seconds; ``rng`` spreads watches and backoff; ``silence`` see Watch.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        namespace: str,
        clock: Callable[[], float],
        rng: random.Random,
        silence: float,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._silence = silence
        record = f"metadata.name={RECORD_NAME}"
        self._record = self._watch(
            Kind("configmaps", paths.config_maps(namespace), {"fieldSelector": record})
        )
        self._quarantines = self._watch(
            Kind("quarantines", paths.QUARANTINES), before_open=self._check_definition
        )
        self._nodes = self._watch(
            Kind(
                "nodes",
                paths.NODES,
                {"fieldSelector": "spec.unschedulable=true"},
                list_accept=METADATA_LIST,
                watch_accept=METADATA,
            )
        )
        #: uid by node of every quarantine that was told and not told gone; outlasts a lost view.
        self._known: dict[str, str] = {}
        self._unschedulable: set[str] = set()
        self._definition = DefinitionState(uid="", going=False)

    async def follow(self, tell: Tell) -> None:
        """Tell everything, and what follows, for ever. Raises nothing but its cancellation."""
        tries = 0
        lost = ""
        while True:
            began = self._clock()
            try:
                await self._list_all(tell)
                lost = ""
                await self._follow_all(tell)
            except ClusterError as error:
                tries = 1 if self._clock() - began > _HELD_S else tries + 1
                if str(error) != lost:
                    lost = str(error)
                    tell(ViewLost(lost))
                await asyncio.sleep(self._backoff(tries, error))

    async def _list_all(self, tell: Tell) -> None:
        records = [to_record(decode(raw, RecordObject)) for raw in await self._record.read_all()]
        tell(RecordSeen(records[0] if records else _NO_RECORD))
        before = await read_definition(self._transport)
        if not before.uid:
            self._tell_all_gone(tell)
            raise _no_definition()
        quarantines = [decode_quarantine(raw) for raw in await self._quarantines.read_all()]
        await self._tell_missing({one.node: one.uid for one in quarantines}, before, tell)
        for one in quarantines:
            self._tell_quarantine(one, tell)
        nodes = {decode(raw, Bare).metadata.name for raw in await self._nodes.read_all()}
        cordoned = {one.node for one in quarantines if one.status.phase in _CORDONED}
        for node in sorted((self._unschedulable | cordoned) - nodes):
            tell(NodeUncordoned(node))
        self._unschedulable = nodes
        tell(ViewRestored(frozenset(self._known)))

    async def _tell_missing(self, now: dict[str, str], before: DefinitionState, tell: Tell) -> None:
        missing = {node: uid for node, uid in self._known.items() if now.get(node) != uid}
        # Asked after the list: a definition that was deleted between took its objects along.
        after = await read_definition(self._transport) if missing else before
        with_definition = after.going or after.replaces(self._definition)
        # The earlier reading: if they differ, what we listed may have been the other's, and to
        # take an uninstall for a release is the worse mistake.
        self._definition = before
        for node, uid in missing.items():
            del self._known[node]
            tell(QuarantineGone(node, uid, with_definition=with_definition))

    def _tell_all_gone(self, tell: Tell) -> None:
        for node, uid in self._known.items():
            tell(QuarantineGone(node, uid, with_definition=True))
        self._known.clear()

    async def _follow_all(self, tell: Tell) -> None:
        """Follow the three watches until one can't be followed; raises its error."""
        await together(
            kube_news_record=self._follow_record(tell),
            kube_news_quarantines=self._follow_quarantines(tell),
            kube_news_nodes=self._follow_nodes(tell),
        )

    async def _follow_record(self, tell: Tell) -> None:
        async with contextlib.aclosing(self._record.changes()) as batches:
            async for batch in batches:
                for change in batch:
                    gone = change.type == "DELETED"
                    record = None if gone else decode(change.object, RecordObject)
                    tell(RecordSeen(_NO_RECORD if record is None else to_record(record)))

    async def _follow_quarantines(self, tell: Tell) -> None:
        async with contextlib.aclosing(self._quarantines.changes()) as batches:
            async for batch in batches:
                # Asked once for all that was deleted before we asked.
                deleted = any(change.type == "DELETED" for change in batch)
                now = await read_definition(self._transport) if deleted else self._definition
                for change in batch:
                    self._tell_change(change, now, tell)
                self._expect(now)

    async def _check_definition(self) -> None:
        """A watch that ended may have ended with its definition: then a new one starts afresh."""
        self._expect(await read_definition(self._transport))

    def _expect(self, now: DefinitionState) -> None:
        """Raises where the definition is no longer the one that we listed under."""
        if not now.uid:
            raise _no_definition()
        if now.replaces(self._definition):
            raise Unreachable("the definition of quarantines was replaced: listing anew")

    def _tell_change(self, change: Change, definition: DefinitionState, tell: Tell) -> None:
        quarantine = decode_quarantine(change.object)
        if change.type != "DELETED":
            self._tell_quarantine(quarantine, tell)
            return
        self._known.pop(quarantine.node, None)
        with_definition = definition.going or definition.replaces(self._definition)
        tell(QuarantineGone(quarantine.node, quarantine.uid, with_definition=with_definition))

    def _tell_quarantine(self, quarantine: Quarantine, tell: Tell) -> None:
        self._known[quarantine.node] = quarantine.uid
        tell(QuarantineSeen(quarantine))

    async def _follow_nodes(self, tell: Tell) -> None:
        async with contextlib.aclosing(self._nodes.changes()) as batches:
            async for batch in batches:
                for change in batch:
                    node = decode(change.object, Bare).metadata.name
                    if change.type != "DELETED":
                        self._unschedulable.add(node)
                    elif node in self._unschedulable:
                        self._unschedulable.discard(node)
                        tell(NodeUncordoned(node))

    def _backoff(self, tries: int, error: ClusterError) -> float:
        """Full jitter, and never earlier than the server asked for."""
        most = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** min(tries, 10))
        return (error.retry_after or 0.0) + self._rng.uniform(0.0, most)

    def _watch(self, kind: Kind, before_open: Callable[[], Awaitable[None]] | None = None) -> Watch:
        return Watch(
            self._transport,
            kind,
            clock=self._clock,
            rng=self._rng,
            silence=self._silence,
            before_open=before_open,
        )


def _no_definition() -> Unreachable:
    return Unreachable(
        "the definition of quarantines is gone: apply deploy/kubernetes/crd.yaml", status=404
    )
