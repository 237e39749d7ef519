"""The Kubernetes cluster behind the protocol of aggregator/quarantine/cluster.py."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping

from aggregator.kube import announcements, paths, rights
from aggregator.kube.access import Sources
from aggregator.kube.definition import read_definition
from aggregator.kube.errors import Failure
from aggregator.kube.evictions import deletion_of, eviction_of, read_deletion, read_refusal
from aggregator.kube.keys import signing_keys
from aggregator.kube.leases import KubeLeases
from aggregator.kube.limiter import Lane, Limiter
from aggregator.kube.news import Newsroom
from aggregator.kube.objects import (
    Bare,
    NodeObject,
    PodList,
    RawList,
    decode,
    from_taint,
    patched,
    to_meta,
    to_node,
    to_pod,
)
from aggregator.kube.quarantine_store import QuarantineStore
from aggregator.kube.record_store import RecordStore, record_place
from aggregator.kube.transport import (
    MERGE_PATCH,
    METADATA,
    METADATA_LIST,
    Counters,
    Transport,
    encode,
)
from aggregator.quarantine.cluster import (
    Evicted,
    EvictionResult,
    News,
    Node,
    NodeChange,
    NodeMeta,
    NotFound,
    Pod,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RecordText,
)

#: Nodes decoded between two looks at whatever else is to be done; about a millisecond.
_SLICE = 100
#: Requests under way: enough to keep an API server 10 ms away busy with 3,000 a second, few enough
#: that what is urgent finds room within milliseconds.
_AT_ONCE = 32


class KubeCluster:
    """Implements `Cluster`. Arguments in seconds.

    An empty ``kubeconfig`` means the pod's own service account, else the usual places. ``qps`` and
    ``burst`` bound our requests. ``deadline`` bounds one request; ``silence`` is how long a watch
    may say nothing. ``clock`` is monotonic, ``wall`` is the time for people. ``shards``: there may
    be other replicas, and the rights to know of them are looked for.
    """

    kind = "kubernetes"
    lists_all = True

    def __init__(
        self,
        *,
        kubeconfig: str = "",
        context: str = "",
        namespace: str = "sickbay",
        qps: float = 100.0,
        burst: int = 200,
        deadline: float = 10.0,
        silence: float = 100.0,
        shards: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._namespace = namespace
        self._clock = clock
        self._wall = wall
        self._silence = silence
        self._shards = shards
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        sources = Sources(kubeconfig, context, os.environ if environ is None else environ)
        limiter = Limiter(qps=qps, burst=burst, at_once=_AT_ONCE, clock=clock)
        self._transport = Transport(sources, limiter, clock=clock, rng=self._rng, deadline=deadline)
        self._record = RecordStore(self._transport, namespace)
        self.record_place = record_place(namespace)
        self._quarantines = QuarantineStore(self._transport)

    @property
    def counters(self) -> Counters:
        """Requests and how they ended, for metrics."""
        return self._transport.counters

    async def start(self) -> None:
        """Connect, look for our rights and the definition. Raises Refused with what is missing."""
        await self._transport.open()
        await rights.check(self._transport, self._namespace, shards=self._shards)

    async def close(self) -> None:
        await self._transport.close()

    async def signing_keys(self) -> tuple[str, str]:
        """The issuer of service account tokens, and its keys as JWKS text."""
        return await signing_keys(self._transport)

    def leases(self, *, deadline: float) -> KubeLeases:
        """The board of the replicas' Leases, beside the record. ``deadline``: seconds a request."""
        return KubeLeases(self._transport, self._namespace, deadline=deadline, wall=self._wall)

    async def news(self) -> AsyncIterator[News]:
        """See the protocol. Each caller has a view of its own; closing the iterator ends it."""
        told: asyncio.Queue[News | None] = asyncio.Queue()
        room = Newsroom(
            self._transport,
            namespace=self._namespace,
            clock=self._clock,
            rng=self._rng,
            silence=self._silence,
        )
        following = asyncio.create_task(room.follow(told.put_nowait), name="kube-news")
        following.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (news := await told.get()) is not None:
                yield news
            following.result()  # it never ends by itself: this raises what ended it
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

    async def list_nodes(self) -> list[NodeMeta]:
        """From the server's cache. Decoded by slices: 10,000 at once would hold up everything."""
        body = await self._transport.request(
            "GET",
            paths.NODES,
            kind="nodes",
            lane=Lane.STATUS,
            query={"resourceVersion": "0"},
            accept=METADATA_LIST,
        )
        found: list[NodeMeta] = []
        for raw in decode(body, RawList).items or ():
            found.append(to_meta(decode(raw, Bare)))
            if len(found) % _SLICE == 0:
                await asyncio.sleep(0)
        return found

    async def read_record(self) -> RecordText:
        return await self._record.read()

    async def write_record(self, text: str, version: str) -> RecordText:
        return await self._record.write(text, version)

    async def create_quarantine(self, node: str, spec: QuarantineSpec) -> Quarantine:
        return await self._quarantines.create(node, spec)

    async def read_quarantine(self, node: str) -> Quarantine | None:
        return await self._quarantines.read(node)

    async def write_quarantine_spec(
        self, quarantine: Quarantine, spec: QuarantineSpec
    ) -> Quarantine:
        return await self._quarantines.write_spec(quarantine, spec)

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        return await self._quarantines.write_status(quarantine, status)

    async def add_finalizer(self, quarantine: Quarantine) -> Quarantine:
        return await self._quarantines.add_finalizer(quarantine)

    async def drop_quarantine(self, quarantine: Quarantine) -> None:
        await self._quarantines.drop(quarantine)

    async def definition_is_going(self) -> bool:
        return (await read_definition(self._transport)).going

    async def read_node(self, name: str, *, cached: bool = False) -> Node | None:
        """``cached``: from the server's watch cache, without etcd; unless it has none."""
        if cached:
            found = await self._get_node(name, {"resourceVersion": "0"})
            if found is not None:
                return found
        return await self._get_node(name, None)

    async def _get_node(self, name: str, query: Mapping[str, str] | None) -> Node | None:
        try:
            body = await self._transport.request(
                "GET", paths.node(name), kind="nodes", lane=Lane.READ, query=query
            )
        except NotFound:
            return None
        return to_node(decode(body, NodeObject))

    async def patch_node(self, node: Node, change: NodeChange) -> Node:
        """The answer is metadata alone: the version says that the rest is as read, but for this."""
        metadata: dict[str, object] = {"resourceVersion": node.version, "uid": node.uid}
        if change.labels:
            metadata["labels"] = change.labels
        if change.annotations:
            metadata["annotations"] = change.annotations
        spec: dict[str, object] = {}
        if change.unschedulable is not None:
            spec["unschedulable"] = change.unschedulable
        if change.taints is not None:
            spec["taints"] = [from_taint(taint) for taint in change.taints]
        body = await self._transport.request(
            "PATCH",
            paths.node(node.name),
            kind="nodes",
            lane=Lane.RELEASE if _releases(node, change) else Lane.TAINT,
            body=encode({"metadata": metadata, "spec": spec} if spec else {"metadata": metadata}),
            content_type=MERGE_PATCH,
            accept=METADATA,
        )
        return patched(node, change, decode(body, Bare).metadata)

    async def pods_on(self, node: str) -> list[Pod]:
        body = await self._transport.request(
            "GET",
            paths.PODS,
            kind="pods",
            lane=Lane.EVICTION,
            query={"fieldSelector": f"spec.nodeName={node}"},
        )
        return [to_pod(pod) for pod in decode(body, PodList).items or ()]

    async def pods_labelled(self, namespace: str, label: str, value: str) -> list[Pod]:
        body = await self._transport.request(
            "GET",
            paths.pods(namespace),
            kind="pods",
            lane=Lane.EVICTION,
            query={"labelSelector": f"{label}={value}"},
        )
        return [to_pod(pod) for pod in decode(body, PodList).items or ()]

    async def delete_pod(self, pod: Pod, *, grace: int) -> EvictionResult:
        answer = await self._transport.ask(
            "DELETE",
            paths.pod(pod.namespace, pod.name),
            kind="pods",
            lane=Lane.EVICTION,
            body=encode(deletion_of(pod, grace)),
        )
        if isinstance(answer, Failure):
            return read_deletion(answer, pod)
        return EvictionResult(Evicted.ACCEPTED)

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> EvictionResult:
        answer = await self._transport.ask(
            "POST",
            paths.eviction(pod.namespace, pod.name),
            kind="pods/eviction",
            lane=Lane.EVICTION,
            body=encode(eviction_of(pod, dry_run=dry_run)),
        )
        if isinstance(answer, Failure):
            return read_refusal(answer)
        return EvictionResult(Evicted.ACCEPTED)

    async def announce(
        self, node: str, *, node_uid: str, quarantined: bool, reason: str, message: str
    ) -> None:
        await announcements.announce(
            self._transport,
            node,
            node_uid=node_uid,
            quarantined=quarantined,
            reason=reason,
            message=message,
            wall=self._wall,
        )


def _releases(node: Node, change: NodeChange) -> bool:
    """Whether the patch gives the node back: those go before all others."""
    if change.unschedulable is not None:
        return node.unschedulable and not change.unschedulable
    return change.taints is not None and len(change.taints) < len(node.taints)
