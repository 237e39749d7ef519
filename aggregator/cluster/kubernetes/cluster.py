"""The Kubernetes cluster behind the protocol of aggregator/cluster/port.py."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from aggregator.cluster.agent_pods import PodSink
from aggregator.cluster.kubernetes import (
    condition_writer,
    event_writer,
    node_condition,
    node_tests,
    paths,
    rbac,
)
from aggregator.cluster.kubernetes.access_reviews import KubeAccessReviews
from aggregator.cluster.kubernetes.agent_pod_informer import AgentPodInformer
from aggregator.cluster.kubernetes.authority_client import KubeAuthorities
from aggregator.cluster.kubernetes.condition_lister import list_conditions
from aggregator.cluster.kubernetes.crd import read_definition
from aggregator.cluster.kubernetes.credentials import CredentialSources
from aggregator.cluster.kubernetes.errors import Failure
from aggregator.cluster.kubernetes.evictions import (
    deletion_of,
    eviction_of,
    read_deletion,
    read_refusal,
)
from aggregator.cluster.kubernetes.informer import ClusterInformer
from aggregator.cluster.kubernetes.lease import KubeLease
from aggregator.cluster.kubernetes.limiter import Limiter, Priority
from aggregator.cluster.kubernetes.list_reader import ListReader
from aggregator.cluster.kubernetes.marked_nodes import MarkedNodes
from aggregator.cluster.kubernetes.namespace_informer import NamespaceInformer
from aggregator.cluster.kubernetes.node_patch import checked_patch, merge_patch
from aggregator.cluster.kubernetes.object_client import KubeObjects
from aggregator.cluster.kubernetes.objects import (
    NodeObject,
    PartialObjectMetadata,
    PodList,
    decode,
    patched,
    to_meta,
    to_node,
    to_pod,
)
from aggregator.cluster.kubernetes.oidc import signing_keys
from aggregator.cluster.kubernetes.pod_end_informer import PodEndInformer
from aggregator.cluster.kubernetes.quarantine_client import QuarantineStore
from aggregator.cluster.kubernetes.record_client import RecordStore, record_place
from aggregator.cluster.kubernetes.reflector import Resource, Watch
from aggregator.cluster.kubernetes.server_version import check_version
from aggregator.cluster.kubernetes.stop_client import StopStore
from aggregator.cluster.kubernetes.transport import (
    JSON_PATCH,
    MERGE_PATCH,
    METADATA,
    METADATA_LIST,
    RequestCounters,
    Transport,
    encode,
)
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.cluster.pod_ends import PodEndSink
from aggregator.cluster.port import (
    AdmissionRefused,
    ClusterEvent,
    Conflict,
    Evicted,
    EvictionResult,
    Guard,
    ListedNodeTest,
    Node,
    NodeChange,
    NodeCondition,
    NodeEvent,
    NodeGuard,
    NodeMeta,
    NodeTestCondition,
    NotFound,
    Pod,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RecordText,
    Refused,
    StopText,
    WrittenConditions,
)
from aggregator.cluster.words import KUBERNETES
from aggregator.policy.node_condition import ReportedConditions
from aggregator.policy.slurm_reason import SLURM_TYPES

T = TypeVar("T")

#: Seconds for the list of all nodes: that of 50,000 is 200 MB, and a busy server needs a while.
_LIST_S = 60.0
#: Nodes decoded before the event loop runs other tasks; about a millisecond.
_SLICE = 100
#: Requests under way: enough to keep an API server 10 ms away busy with 3,000 a second, few enough
#: that an urgent request is sent within milliseconds.
_AT_ONCE = 32
#: Requests a second to another cluster, at first, and the seconds for an answer: a repair is rare.
_OTHER_QPS, _OTHER_BURST, _OTHER_DEADLINE = 5.0, 10, 10.0


class KubeCluster:
    """Implements `Cluster`. Arguments in seconds.

    An empty ``kubeconfig`` means the pod's own service account, else the usual places. ``qps`` and
    ``burst`` bound our requests. ``deadline`` bounds one request; ``silence`` is how long a watch
    may stay silent. ``clock`` is monotonic, ``wall`` is the time for people. ``certificates``: the
    rights are looked for that it takes for certificates that the aggregator makes itself.
    ``agents``: "namespace:name" of the agents'
    service account where their pods are to be followed; empty: they are not. ``access``: the page
    asks who its readers are. ``actions``: people act by the page.
    """

    words = KUBERNETES
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
        certificates: bool = False,
        agents: str = "",
        access: bool = False,
        actions: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._namespace = self.installation = namespace
        self._clock = clock
        self._wall = wall
        self._silence = silence
        self._certificates = certificates
        self._agents_namespace, _, self._agents_account = agents.partition(":")
        self._access, self._actions = access, actions
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        sources = CredentialSources(kubeconfig, context, os.environ if environ is None else environ)
        limiter = Limiter(qps=qps, burst=burst, at_once=_AT_ONCE, clock=clock)
        self._transport = Transport(sources, limiter, clock=clock, rng=self._rng, deadline=deadline)
        self._environ = environ
        #: Of other clusters, by kubeconfig.
        self._others: dict[str, Transport] = {}
        self._record = RecordStore(self._transport, namespace)
        self._stop = StopStore(self._transport, namespace)
        self.record_place = record_place(namespace)
        self._quarantines = QuarantineStore(self._transport, namespace, wall)
        self._marked_nodes = MarkedNodes()

    @property
    def counters(self) -> RequestCounters:
        """Requests and how they ended, for metrics."""
        return self._transport.counters

    async def start(self) -> None:
        """Connect, look for our rights and the definition. Raises Refused that lists the missing
        ones, or ClusterTooOld.
        """
        await self._transport.open()
        await check_version(self._transport)
        await rbac.check(
            self._transport,
            self._namespace,
            certificates=self._certificates,
            access=self._access,
            actions=self._actions,
        )

    async def close(self) -> None:
        await self._transport.close()
        for other in self._others.values():
            await other.close()

    async def signing_keys(self) -> tuple[str, str]:
        """The issuer of service account tokens, and its keys as JWKS text."""
        return await signing_keys(self._transport)

    def lease(self, *, deadline: float) -> KubeLease:
        """The store of the replicas' Lease, in the record's namespace. ``deadline``: seconds for a
        request.
        """
        return KubeLease(self._transport, self._namespace, deadline=deadline, wall=self._wall)

    async def follow_agent_pods(self, sink: PodSink) -> None:
        """For ever: which pods of the agents there are, by metadata. See `AgentPodInformer`."""
        informer = AgentPodInformer(
            self._transport,
            namespace=self._agents_namespace,
            account=self._agents_account,
            clock=self._clock,
            rng=self._rng,
            silence=self._silence,
        )
        await informer.follow(sink)

    async def follow_namespaces(self, owners: NamespaceOwners) -> None:
        """For ever: who owns each namespace's pods. See `NamespaceInformer`."""
        informer = NamespaceInformer(
            self._transport, clock=self._clock, rng=self._rng, silence=self._silence
        )
        await informer.follow(owners)

    async def follow_pod_ends(self, sink: PodEndSink) -> None:
        """For ever: pods that anyone has stopped. See `PodEndInformer`."""
        informer = PodEndInformer(
            self._transport, clock=self._clock, rng=self._rng, silence=self._silence
        )
        await informer.follow(sink)

    async def carry_out(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        """A write that a person asked for by the page. Raises ClusterError."""
        return await work(self._transport)

    def objects(self, kubeconfig: str = "") -> KubeObjects:
        """Objects of any kind in this cluster, or in that of another kubeconfig."""
        if not kubeconfig:
            return KubeObjects(self._transport)
        if kubeconfig not in self._others:
            environ = os.environ if self._environ is None else self._environ
            self._others[kubeconfig] = Transport(
                CredentialSources(kubeconfig, "", environ),
                Limiter(qps=_OTHER_QPS, burst=_OTHER_BURST, at_once=_AT_ONCE, clock=self._clock),
                clock=self._clock,
                rng=self._rng,
                deadline=_OTHER_DEADLINE,
            )
        return KubeObjects(self._others[kubeconfig])

    def access_reviews(self) -> KubeAccessReviews:
        """Tokens and rights: the user that a token names, and the actions that a user may take."""
        return KubeAccessReviews(self._transport)

    def authorities(self) -> KubeAuthorities:
        """The store of the certificate authorities that the aggregator makes itself."""
        return KubeAuthorities(self._transport, self._namespace)

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """See the protocol. Each caller has a view of its own; closing the iterator ends it."""
        told: asyncio.Queue[ClusterEvent | None] = asyncio.Queue()
        room = ClusterInformer(
            self._transport,
            namespace=self._namespace,
            clock=self._clock,
            rng=self._rng,
            silence=self._silence,
            marked_nodes=self._marked_nodes,
        )
        following = asyncio.create_task(room.follow(told.put_nowait), name="kube-news")
        following.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (news := await told.get()) is not None:
                yield news
            following.result()  # it never ends by itself: this raises its error
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

    async def list_nodes(self) -> list[NodeMeta]:
        """From the server's cache, decoded as they come: 100,000 at once would stop the loop."""
        reader = ListReader(lambda raw: to_meta(decode(raw, PartialObjectMetadata)))
        await self._transport.request(
            "GET",
            paths.NODES,
            kind="nodes",
            lane=Priority.STATUS,
            query={"resourceVersion": "0"},
            accept=METADATA_LIST,
            deadline=_LIST_S,
            sink=reader,
        )
        return reader.finish()

    def has_condition(self, kind: str) -> bool:
        return kind not in SLURM_TYPES

    async def list_conditions(self, types: Collection[str]) -> list[ReportedConditions]:
        return await list_conditions(self._transport, types)

    async def list_node_tests(self, taint: str) -> list[ListedNodeTest]:
        return await node_tests.list_node_tests(self._transport, taint)

    async def read_record(self) -> RecordText:
        return await self._record.read()

    async def write_record(
        self, text: str, version: str, *, guard: Guard | None = None
    ) -> RecordText:
        return await self._record.write(text, version, guard=guard)

    async def read_stop(self) -> StopText:
        return await self._stop.read()

    async def create_quarantine(
        self, node: str, spec: QuarantineSpec, *, guard: Guard | None = None
    ) -> Quarantine:
        return await self._quarantines.create(node, spec, guard=guard)

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

    async def read_node(
        self, name: str, *, cached: bool = False, background: bool = False
    ) -> Node | None:
        """``cached``: from the server's watch cache, without etcd; unless it has none."""
        lane = Priority.EVICTION if background else Priority.READ
        if cached:
            found = await self._get_node(name, {"resourceVersion": "0"}, lane)
            if found is not None:
                return found
        return await self._get_node(name, None, lane)

    async def _get_node(
        self, name: str, query: Mapping[str, str] | None, lane: Priority
    ) -> Node | None:
        try:
            body = await self._transport.request(
                "GET", paths.node(name), kind="nodes", lane=lane, query=query
            )
        except NotFound:
            return None
        return to_node(decode(body, NodeObject))

    async def wait_for_node(self, name: str) -> None:
        """A watch of this one name: it begins with the Node, if it is there."""
        one = {"fieldSelector": f"metadata.name={name}"}
        watch = Watch(
            self._transport,
            Resource("nodes", paths.NODES, one, watch_accept=METADATA),
            clock=self._clock,
            rng=self._rng,
            silence=self._silence,
        )
        async with contextlib.aclosing(watch.changes()) as batches:
            async for batch in batches:
                if any(change.type != "DELETED" for change in batch):
                    return

    async def patch_node(
        self, node: Node, change: NodeChange, *, guard: Guard | None = None
    ) -> Node:
        """The answer is metadata only: by its version the rest is as read, except this change."""
        checked = node.unread is not None
        body = encode(
            checked_patch(node, change, node.unread)
            if node.unread is not None
            else merge_patch(node, change)
        )
        try:
            answer = await self._transport.request(
                "PATCH",
                paths.node(node.name),
                kind="nodes",
                lane=Priority.RELEASE if _releases(node, change) else Priority.TAINT,
                body=body,
                content_type=JSON_PATCH if checked else MERGE_PATCH,
                accept=METADATA,
                guard=guard,
                node=node.name,
            )
        except AdmissionRefused:
            raise
        except Refused as error:
            if checked and error.status == 422:  # a test failed: the node is not as expected
                raise Conflict(str(error), status=422) from error
            raise
        return patched(node, change, decode(answer, PartialObjectMetadata).metadata)

    async def pods_on(
        self, node: str, *, background: bool = False, guard: Guard | None = None
    ) -> list[Pod]:
        body = await self._transport.request(
            "GET",
            paths.PODS,
            kind="pods",
            # For a drain that has not begun, after the evictions of those that have.
            lane=Priority.PHASE if guard is not None else _of_drains(background=background),
            query={"fieldSelector": f"spec.nodeName={node}"},
            guard=guard,
            node=node,  # the read that ends a drain is a report of its node
            is_list=True,
        )
        return [to_pod(pod) for pod in decode(body, PodList).items or ()]

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]:
        body = await self._transport.request(
            "GET",
            paths.pods(namespace),
            kind="pods",
            lane=_of_drains(background=background),
            query={"labelSelector": f"{label}={value}"},
            is_list=True,
        )
        return [to_pod(pod) for pod in decode(body, PodList).items or ()]

    async def delete_pod(
        self, pod: Pod, *, grace: int, background: bool = False, guard: Guard | None = None
    ) -> EvictionResult:
        answer = await self._transport.ask(
            "DELETE",
            paths.pod(pod.namespace, pod.name),
            kind="pods",
            lane=_of_drains(background=background),
            body=encode(deletion_of(pod, grace)),
            guard=guard,
        )
        if isinstance(answer, Failure):
            return read_deletion(answer, pod)
        return EvictionResult(Evicted.ACCEPTED)

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard | None = None,
    ) -> EvictionResult:
        answer = await self._transport.ask(
            "POST",
            paths.eviction(pod.namespace, pod.name),
            kind="pods/eviction",
            lane=_of_drains(background=background),
            # Webhooks and the audit log go by the query alone, the eviction itself by the body.
            query={"dryRun": "All"} if dry_run else None,
            body=encode(eviction_of(pod, dry_run=dry_run)),
            guard=guard,
        )
        if isinstance(answer, Failure):
            return read_refusal(answer)
        return EvictionResult(Evicted.ACCEPTED)

    async def announce(
        self, node: str, *, node_uid: str, quarantined: bool, reason: str, message: str
    ) -> None:
        await node_condition.publish(
            self._transport,
            node,
            node_uid=node_uid,
            quarantined=quarantined,
            reason=reason,
            message=message,
            wall=self._wall,
            marked_nodes=self._marked_nodes,
        )

    async def write_event(self, event: NodeEvent) -> None:
        await event_writer.write_event(self._transport, event)

    async def write_conditions(
        self,
        node: str,
        *,
        node_uid: str,
        wanted: Mapping[str, NodeCondition | None],
        guard: NodeGuard | None = None,
    ) -> WrittenConditions:
        return await condition_writer.write_conditions(
            self._transport,
            node,
            node_uid=node_uid,
            wanted=wanted,
            installation=self.installation,
            wall=self._wall,
            guard=guard,
        )

    async def write_test_condition(
        self, node: str, *, node_uid: str, condition: NodeTestCondition
    ) -> None:
        await node_tests.write_test_condition(
            self._transport, node, node_uid=node_uid, condition=condition, wall=self._wall
        )


def _of_drains(*, background: bool) -> Priority:
    return Priority.BACKGROUND if background else Priority.EVICTION


def _releases(node: Node, change: NodeChange) -> bool:
    """Whether the patch releases the node: such patches go before all others."""
    if change.unschedulable is not None:
        return node.unschedulable and not change.unschedulable
    return change.taints is not None and len(change.taints) < len(node.taints)
