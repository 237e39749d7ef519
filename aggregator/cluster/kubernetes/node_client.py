"""Nodes and their pods in the API: read, patched, drained, and annotated with conditions."""

import contextlib
from collections.abc import Collection, Mapping

from attrs import define, field

from aggregator.cluster.kubernetes import node_tests, paths
from aggregator.cluster.kubernetes.condition_lister import list_conditions
from aggregator.cluster.kubernetes.errors import Failure
from aggregator.cluster.kubernetes.evictions import (
    deletion_of,
    eviction_of,
    read_deletion,
    read_refusal,
)
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.list_reader import ListReader
from aggregator.cluster.kubernetes.node_condition import KubeNodeConditions
from aggregator.cluster.kubernetes.node_patch import checked_patch, merge_patch
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
from aggregator.cluster.kubernetes.reflector import Resource, Watches
from aggregator.cluster.kubernetes.transport import (
    JSON_PATCH,
    MERGE_PATCH,
    METADATA,
    METADATA_LIST,
    encode,
)
from aggregator.cluster.port import (
    AdmissionRefused,
    Conflict,
    Evicted,
    EvictionResult,
    Guard,
    ListedNodeTest,
    Node,
    NodeChange,
    NodeMeta,
    NotFound,
    Pod,
    Refused,
)
from aggregator.policy.node_condition import ReportedConditions
from aggregator.policy.slurm_reason import SLURM_TYPES

#: Seconds for the list of all nodes: that of 50,000 is 200 MB, and a busy server needs a while.
_LIST_S = 60.0


@define(eq=False, repr=False, slots=False)
class KubeNodes(KubeNodeConditions):
    """Implements `NodesAndPods`."""

    lists_all = True

    _watches: Watches = field(kw_only=True)

    async def read_nodes(self) -> list[NodeMeta]:
        """From the server's cache, decoded as they come: 100,000 at once would stop the loop."""
        reader = ListReader(lambda raw: to_meta(decode(raw, PartialObjectMetadata)))
        await self._transport.get(
            paths.NODES,
            Priority.STATUS,
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

    async def list_node_tests(
        self, taint: str, tested: Collection[str] = ()
    ) -> list[ListedNodeTest]:
        return await node_tests.list_node_tests(self._transport, taint, tested)

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
            body = await self._transport.get(paths.node(name), lane, query=query)
        except NotFound:
            return None
        return to_node(decode(body, NodeObject))

    async def wait_for_node(self, name: str) -> None:
        """A watch of this one name: it begins with the Node, if it is there."""
        one = {"fieldSelector": f"metadata.name={name}"}
        watch = self._watches.of(Resource(paths.NODES, one, watch_accept=METADATA))
        async with contextlib.aclosing(watch.changes()) as batches:
            async for batch in batches:
                if any(change.type != "DELETED" for change in batch):
                    return

    async def patch_node(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        """The answer is metadata only: by its version the rest is as read, except this change."""
        checked = node.unread is not None
        body = encode(
            checked_patch(node, change, node.unread)
            if node.unread is not None
            else merge_patch(node, change)
        )
        try:
            lane = Priority.RELEASE if _releases(node, change) else Priority.TAINT
            answer = await self._transport.request(
                "PATCH",
                paths.node(node.name),
                lane,
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

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]:
        lane, query = _of_drains(background=background), {"fieldSelector": f"spec.nodeName={node}"}
        # ``node``: the read that ends a drain is a report of its node.
        body = await self._transport.get(paths.PODS, lane, query=query, node=node, is_list=True)
        return [to_pod(pod) for pod in decode(body, PodList).items or ()]

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]:
        lane, query = _of_drains(background=background), {"labelSelector": f"{label}={value}"}
        body = await self._transport.get(paths.pods(namespace), lane, query=query, is_list=True)
        return [to_pod(pod) for pod in decode(body, PodList).items or ()]

    async def delete_pod(
        self, pod: Pod, *, grace: int, background: bool = False, guard: Guard
    ) -> EvictionResult:
        where, lane = paths.pod(pod.namespace, pod.name), _of_drains(background=background)
        body = encode(deletion_of(pod, grace))
        answer = await self._transport.try_request("DELETE", where, lane, body=body, guard=guard)
        if isinstance(answer, Failure):
            return read_deletion(answer, pod)
        return EvictionResult(Evicted.ACCEPTED)

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard,
    ) -> EvictionResult:
        where, lane = paths.eviction(pod.namespace, pod.name), _of_drains(background=background)
        # Webhooks and the audit log read the query alone, the eviction itself reads the body.
        query = {"dryRun": "All"} if dry_run else None
        body = encode(eviction_of(pod, dry_run=dry_run))
        answer = await self._transport.try_request(
            "POST", where, lane, query=query, body=body, guard=guard
        )
        if isinstance(answer, Failure):
            return read_refusal(answer)
        return EvictionResult(Evicted.ACCEPTED)

    async def annotate_pod(self, pod: Pod, annotations: Mapping[str, str], *, guard: Guard) -> None:
        """Against the pod's uid and version. Raises Refused where the right is missing."""
        metadata = {"uid": pod.uid, "resourceVersion": pod.version, "annotations": annotations}
        try:
            where = paths.pod(pod.namespace, pod.name)
            await self._transport.request(
                "PATCH",
                where,
                Priority.EVICTION,
                body=encode({"metadata": metadata}),
                accept=METADATA,
                guard=guard,
            )
        except AdmissionRefused:
            raise
        except Refused as error:
            if error.status == 403:
                text = (
                    f"{pod.key} may not be annotated: {pod.namespace} has not bound the "
                    "ClusterRole sickbay-aggregator-notice (deploy/examples/notice-rbac.yaml)"
                )
                raise Refused(text, status=403) from error
            raise


def _of_drains(*, background: bool) -> Priority:
    return Priority.BACKGROUND if background else Priority.EVICTION


def _releases(node: Node, change: NodeChange) -> bool:
    """Whether the patch releases the node: such patches go before all others."""
    if change.unschedulable is not None:
        return node.unschedulable and not change.unschedulable
    return change.taints is not None and len(change.taints) < len(node.taints)
