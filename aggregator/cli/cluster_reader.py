"""Reads what the cluster itself knows, while no aggregator answers: Quarantines, Nodes."""

import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

from aggregator.cli import cluster_view
from aggregator.cli.api_calls import with_api
from aggregator.cli.errors import CommandFailed
from aggregator.cli.kube_session import KubeSession
from aggregator.cli.text_table import printable
from aggregator.cli.tunnel import AggregatorPod
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import (
    ConfigMap,
    PartialObjectMetadata,
    PodObject,
    decode,
    to_pod,
    to_stop,
)
from aggregator.cluster.kubernetes.operation_client import NODE_LABEL, join_operations, label_of
from aggregator.cluster.kubernetes.quarantine_codec import decode_quarantine
from aggregator.cluster.kubernetes.reflector import Resource, list_pages, read_objects
from aggregator.cluster.kubernetes.transport import METADATA_LIST, Transport
from aggregator.cluster.port import ClusterError, NotFound, Quarantine, Refused
from aggregator.quarantine.decide.drain_plan import work_of

T = TypeVar("T")

#: Events of the answer at most.
_EVENTS = "500"


class ClusterReader:
    """Answers in the shapes of the aggregator's API. Each method raises CommandFailed.

    ``trouble`` is why no aggregator answers; the first answer writes it to stderr. ``pods`` are the
    aggregator's pods as far as they are known.
    """

    def __init__(
        self,
        session: KubeSession,
        namespace: str,
        *,
        trouble: str = "",
        pods: Sequence[AggregatorPod] = (),
    ) -> None:
        self._session = session
        self._namespace = namespace
        self._trouble = trouble
        self._pods = pods
        self._announced = False

    def quarantines(self) -> dict[str, Any]:
        return cluster_view.quarantines_answer(self.call(_all_quarantines))

    @with_api
    async def quarantine(self, api: Transport, node: str) -> dict[str, Any] | None:
        """One item of the list, or None where the node has no quarantine."""
        found = await read_quarantine(api, node)
        return cluster_view.quarantine_answer(found) if found is not None else None

    def nodes(self) -> dict[str, Any]:
        return cluster_view.nodes_answer(self.call(_all_quarantines))

    @with_api
    async def status(self, api: Transport) -> dict[str, Any]:
        found, stop = await _all_quarantines(api), await self._stop(api)
        return cluster_view.status_answer(self._trouble, stop, self._pods, found)

    @with_api
    async def node(self, api: Transport, name: str) -> dict[str, Any]:
        found = await read_quarantine(api, name)
        node = await _node(api, name)
        if node is None and found is None:
            raise CommandFailed(f'there is no node "{name}"\n  See: kubectl get nodes')
        return cluster_view.node_answer(name, node or None, found, time.time())

    @with_api
    async def objects_about(self, api: Transport, name: str) -> tuple[dict[str, Any], list[str]]:
        """The Node, its Quarantine, Operations and Events as the API server has them, by "node",
        "quarantine", "operations" and "events"; and why some are missing.
        """
        about = f"involvedObject.kind=Node,involvedObject.name={name}"
        wanted = {
            "node": (paths.node(name), {}),
            "quarantine": (paths.quarantine(name), {}),
            "operations": (paths.OPERATIONS, {"labelSelector": f"{NODE_LABEL}={label_of(name)}"}),
            "events": (paths.CORE_EVENTS, {"fieldSelector": about, "limit": _EVENTS}),
        }
        found, missing = {}, []
        for kind, (where, query) in wanted.items():
            try:
                body = await api.get(where, Priority.READ, query=query)
                found[kind] = json.loads(body)
            except ClusterError as error:
                missing.append(f"{kind}: {error}")
        return found, missing

    @with_api
    async def labels_with(self, api: Transport, selector: str) -> dict[str, dict[str, str]]:
        """The labels of the nodes that a selector of Kubernetes selects, by their names."""
        nodes = Resource(
            paths.NODES,
            {"labelSelector": selector},
            list_accept=METADATA_LIST,  # a node has 15 KB, and a fleet 10,000 of them
            lane=Priority.READ,
        )
        listed = await read_objects(api, nodes, lambda raw: raw)
        found = [decode(raw, PartialObjectMetadata).metadata for raw in listed]
        return {one.name: one.labels or {} for one in found}

    @with_api
    async def work_on(self, api: Transport, nodes: Collection[str]) -> dict[str, list[str]]:
        """The pods with work, by their node: neither those that have ended nor daemons' pods."""
        wanted = frozenset(nodes)
        kind = Resource(
            paths.PODS,
            {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"},
            lane=Priority.READ,
        )
        found: dict[str, list[str]] = {}
        async with contextlib.aclosing(list_pages(api, kind)) as pages:
            async for page in pages:
                pods = [to_pod(decode(raw, PodObject)) for raw in page.items or ()]
                for pod in work_of(pods):
                    if pod.node in wanted:
                        found.setdefault(pod.node, []).append(pod.key)
        return found

    def call(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        found = self._session.call(work)
        if self._trouble and not self._announced:
            self._announced = True
            text = f"sickbay: {self._trouble}\n  Shown are the Quarantines of the cluster."
            sys.stderr.write(printable(text) + "\n")
        return found

    async def _stop(self, api: Transport) -> str | None:
        try:
            where = paths.stop(self._namespace)
            body = await api.get(where, Priority.READ)
        except ClusterError:
            return None
        return to_stop(decode(body, ConfigMap)).reason or ""


async def read_quarantine(api: Transport, node: str) -> Quarantine | None:
    """The node's Quarantine, or None where it has none. Raises ClusterError."""
    where = paths.quarantine(node)
    try:
        body = await api.get(where, Priority.READ)
    except NotFound:
        return None
    [found] = await join_operations(api, [decode_quarantine(body)], node)
    return found


async def _node(api: Transport, name: str) -> dict[str, Any] | None:
    """The Node object, or None where there is none, empty where the account may not read it."""
    try:
        body = await api.get(paths.node(name), Priority.READ)
    except NotFound:
        return None
    except Refused as error:
        if error.status != 403:
            raise
        return {}
    found: dict[str, Any] = json.loads(body)
    return found


async def _all_quarantines(api: Transport) -> list[Quarantine]:
    try:
        kind = Resource(paths.QUARANTINES, lane=Priority.READ)
        found = await read_objects(api, kind, decode_quarantine)
    except NotFound as error:
        raise CommandFailed(
            "this cluster knows no quarantines: is it the right one?\n"
            "  Set --kubeconfig or --context, or the aggregator's address: --url"
        ) from error
    return await join_operations(api, found)
