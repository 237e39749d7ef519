"""The Kubernetes cluster behind the protocol of aggregator/cluster/port.py."""

import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from aggregator.cluster.agent_pods import PodSink
from aggregator.cluster.capabilities import Capabilities
from aggregator.cluster.kind import OpenOptions
from aggregator.cluster.kubernetes import rbac
from aggregator.cluster.kubernetes.access_reviews import KubeAccessReviews
from aggregator.cluster.kubernetes.agent_pod_informer import AgentPodInformer
from aggregator.cluster.kubernetes.authority_client import KubeAuthorities
from aggregator.cluster.kubernetes.credentials import CredentialSources
from aggregator.cluster.kubernetes.informer import ClusterInformer
from aggregator.cluster.kubernetes.lease import KubeLease
from aggregator.cluster.kubernetes.limiter import Limiter
from aggregator.cluster.kubernetes.marked_nodes import MarkedNodes
from aggregator.cluster.kubernetes.namespace_informer import NamespaceInformer
from aggregator.cluster.kubernetes.node_client import KubeNodes
from aggregator.cluster.kubernetes.object_client import KubeObjects
from aggregator.cluster.kubernetes.oidc import signing_keys
from aggregator.cluster.kubernetes.pod_end_informer import PodEndInformer
from aggregator.cluster.kubernetes.quarantine_client import KubeQuarantines
from aggregator.cluster.kubernetes.read_ahead import ClusterReadAhead, EventView
from aggregator.cluster.kubernetes.reflector import Watches
from aggregator.cluster.kubernetes.server_version import check_version
from aggregator.cluster.kubernetes.shared_objects import KubeSharedObjects
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.cluster.pod_ends import PodEndSink
from aggregator.cluster.port import ClusterEvent, NodeMeta, QuarantineSeen
from aggregator.cluster.words import KUBERNETES

T = TypeVar("T")

#: Requests under way: enough to keep an API server 10 ms away busy with 3,000 a second, few enough
#: that an urgent request is sent within milliseconds.
_AT_ONCE = 32
#: Requests a second to another cluster, at first, and the seconds for an answer: a repair is rare.
_OTHER_QPS, _OTHER_BURST, _OTHER_DEADLINE = 5.0, 10, 10.0
_ALL = OpenOptions()


class KubeCluster(KubeQuarantines, KubeNodes, KubeSharedObjects):
    """Implements `OpenedCluster`; each base one protocol of the port. Arguments in seconds.

    An empty ``kubeconfig`` means the pod's own service account, else the usual places. ``qps`` and
    ``burst`` bound our requests. ``deadline`` bounds one request; ``silence`` is how long a watch
    may stay silent. ``clock`` is monotonic. ``options``: what is used, and which rights it needs.
    """

    words = KUBERNETES

    def __init__(
        self,
        *,
        kubeconfig: str = "",
        namespace: str = "sickbay",
        qps: float = 100.0,
        burst: int = 200,
        deadline: float = 10.0,
        silence: float = 100.0,
        options: OpenOptions = _ALL,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._namespace = namespace
        self._options = options
        rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        sources = CredentialSources(kubeconfig, "", os.environ if environ is None else environ)
        limiter = Limiter(qps=qps, burst=burst, at_once=_AT_ONCE, clock=clock)
        transport = Transport(sources, limiter, clock=clock, rng=rng, deadline=deadline)
        KubeQuarantines.__init__(
            self, transport, namespace, options.wall, operations=options.operations
        )
        KubeSharedObjects.__init__(self, transport, namespace)
        KubeNodes.__init__(
            self,
            transport,
            installation=namespace,
            marked_nodes=MarkedNodes(),
            watches=Watches(transport, clock, rng, silence),
            wall=options.wall,
        )
        #: Requests and how they ended, for metrics.
        self.counters = transport.counters
        self._environ = environ
        self._ahead = ClusterReadAhead(self)
        #: Of other clusters, by kubeconfig.
        self._others: dict[str, Transport] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            lease=self.lease,
            read_ahead=self._ahead,
            signing_keys=partial(signing_keys, self._transport),
            access_reviews=KubeAccessReviews(self._transport),
            authorities=KubeAuthorities(self._transport, self._namespace),
            objects=self.objects,
            carry_out=self.carry_out,
            counters=self.counters,
            follow_agent_pods=self.follow_agent_pods,
            follow_namespaces=self.follow_namespaces,
            follow_pod_ends=self.follow_pod_ends,
            runs_jobs=True,
            pod_notes=self,
        )

    async def start(self) -> None:
        """Connect, look for our rights and the definition. Raises Refused that lists the missing
        ones, or ClusterTooOld.
        """
        await self._transport.open()
        await check_version(self._transport)
        await rbac.check(self._transport, self._namespace, self._options)

    async def close(self) -> None:
        await self._ahead.close()
        await self._transport.close()
        for other in self._others.values():
            await other.close()

    def lease(self, deadline: float) -> KubeLease:
        """The store of the replicas' Lease, in the record's namespace. ``deadline``: seconds for a
        request.
        """
        return KubeLease(self._transport, self._namespace, deadline=deadline, wall=self._wall)

    async def follow_agent_pods(self, sink: PodSink) -> None:
        """For ever: which pods of the agents there are, by metadata. See `AgentPodInformer`."""
        namespace, _, account = self._options.agents.partition(":")
        await AgentPodInformer(self._watches, sink, namespace=namespace, account=account).follow()

    async def follow_namespaces(self, owners: NamespaceOwners) -> None:
        """For ever: who owns each namespace's pods. See `NamespaceInformer`."""
        await NamespaceInformer(self._watches, owners).follow()

    async def follow_pod_ends(self, sink: PodEndSink) -> None:
        """For ever: pods that anyone has stopped. See `PodEndInformer`."""
        await PodEndInformer(self._watches, sink).follow()

    async def carry_out(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        """A write that a person requested on the page. Raises ClusterError."""
        return await work(self._transport)

    def objects(self, kubeconfig: str = "") -> KubeObjects:
        """Objects of any kind in this cluster, or in that of another kubeconfig."""
        if not kubeconfig:
            return KubeObjects(self._transport)
        if kubeconfig not in self._others:
            environ, watches = self._environ, self._watches
            environ = os.environ if environ is None else environ
            self._others[kubeconfig] = Transport(
                CredentialSources(kubeconfig, "", environ),
                Limiter(qps=_OTHER_QPS, burst=_OTHER_BURST, at_once=_AT_ONCE, clock=watches.clock),
                clock=watches.clock,
                rng=watches.rng,
                deadline=_OTHER_DEADLINE,
            )
        return KubeObjects(self._others[kubeconfig])

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """See the protocol. Each caller has a view of its own; closing the iterator ends it."""
        view = self._ahead.take_view() or self.new_view()
        try:
            async for event in view.events():
                if isinstance(event, QuarantineSeen):
                    # Here, as its operations may have been written since it was seen.
                    yield QuarantineSeen(self.operations.known.join(event.quarantine))
                else:
                    yield event
        finally:
            await view.close()

    def new_view(self) -> EventView:
        """A view that begins now."""
        return EventView(
            ClusterInformer(
                self._watches,
                namespace=self._namespace,
                marked_nodes=self._marked_nodes,
                operations=self.operations.known if self._options.operations else None,
            )
        )

    async def list_nodes(self) -> list[NodeMeta]:
        """See the protocol. The first list may have been read ahead."""
        ahead = await self._ahead.take_nodes()
        return await self.read_nodes() if ahead is None else ahead
