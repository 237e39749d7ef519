"""Acting through the Kubernetes API, with the person's own kubeconfig and rights."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from aggregator.cli import actions
from aggregator.cli.api_calls import ApiCalls, with_api
from aggregator.cli.errors import CommandFailed
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import (
    STOP_NAME,
    ConfigMap,
    PartialObjectMetadata,
    PodList,
    decode,
    to_pod,
    to_stop,
)
from aggregator.cluster.kubernetes.operation_client import (
    KubeOperations,
    join_operations,
    list_operations,
    operation_body,
)
from aggregator.cluster.kubernetes.quarantine_codec import (
    GROUP,
    VERSION,
    decode_quarantine,
    encode_spec,
)
from aggregator.cluster.kubernetes.transport import METADATA, Transport, encode
from aggregator.cluster.port import (
    UNGUARDED,
    Conflict,
    NotFound,
    Operation,
    OperationSpec,
    QuarantineSpec,
    Refused,
)
from aggregator.rfc3339 import write_time

T = TypeVar("T")


class KubeActions:
    """`ClusterActions` on the cluster of ``session``; the record is in ``namespace``.

    ``how`` are the options that select that cluster again, for people; it begins with a space.
    ``dry_run``: nothing is stored.
    """

    def __init__(
        self, session: ApiCalls, namespace: str, *, how: str, dry_run: bool = False
    ) -> None:
        self._session = session
        #: The API server checks a write with this, as any other, and then forgets it.
        self._dry = {"dryRun": "All"} if dry_run else None
        self._namespace = namespace
        self._how = how

    def call(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        """The result of ``work``. Raises CommandFailed."""
        return self._session.call(work)

    @with_api
    async def stop(self, api: Transport, reason: str) -> str:
        before = await self._stop(api)
        await self._set_stop(api, reason)
        if before is None:
            return actions.stopped_by_new_switch(self._namespace, reason, how=self._how)
        return actions.stopped(before, reason, how=self._how)

    @with_api
    async def resume(self, api: Transport) -> str:
        before = await self._stop(api)
        try:
            await self._set_stop(api, "")
        except Refused as error:
            if before or error.status != 403:
                raise
        return actions.resumed_in_cluster(before or "", how=self._how)

    @with_api
    async def release(self, api: Transport, node: str) -> str:
        where = paths.quarantine(node)
        try:
            body = await api.get(where, Priority.RELEASE)
            found = decode_quarantine(body)
            fence = {"preconditions": {"uid": found.uid}}
            await self._write(api, "DELETE", where, fence, Priority.RELEASE)
        except NotFound as error:
            raise CommandFailed(actions.none_such(node, how=self._how)) from error
        return actions.released(node, found.spec, how=self._how)

    @with_api
    async def open_order(self, api: Transport, node: str) -> str:
        try:
            body = await api.get(paths.quarantine(node), Priority.RELEASE)
        except NotFound:
            return ""
        [found] = await join_operations(api, [decode_quarantine(body)], node)
        return actions.order_open(node, found.status.repair)

    @with_api
    async def quarantine(self, api: Transport, node: str, spec: QuarantineSpec) -> str:
        await _must_be_a_node(api, node)
        stop = await self._stop_if_seen(api)
        fields = msgspec.to_builtins(encode_spec(spec))
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Quarantine",
            "metadata": {"name": node},
            "spec": {name: value for name, value in fields.items() if value is not None},
        }
        try:
            await self._write(api, "POST", paths.QUARANTINES, body, Priority.TAINT)
        except Conflict as error:
            known = await api.get(paths.quarantine(node), Priority.TAINT)
            change = f"kubectl edit quarantine {node}, or release it first"
            text = actions.already(node, decode_quarantine(known).spec, change=change)
            raise CommandFailed(text) from error
        except NotFound as error:
            raise CommandFailed(
                f"this cluster knows no quarantines: {error}\n"
                "  Is sickbay installed? kubectl apply --server-side -f crd.yaml"
            ) from error
        return actions.quarantined(node, spec, stop=stop, how=self._how)

    @with_api
    async def drain_preview(self, api: Transport, node: str) -> str:
        await _must_be_a_node(api, node)
        pods, staying = await _pods_on(api, node)
        return actions.preview(node, pods, staying)

    @with_api
    async def annotate(self, api: Transport, node: str, change: actions.AnnotationChange) -> str:
        where = paths.node(node)
        try:
            body = await api.get(where, Priority.RECORD, accept=METADATA)
            meta = decode(body, PartialObjectMetadata).metadata
            if change.idle and not change.changes(meta.annotations or {}):
                return change.idle
            changed = {"uid": meta.uid, "annotations": change.annotations}
            await self._write(api, "PATCH", where, {"metadata": changed})
        except NotFound as error:
            raise CommandFailed(f'there is no node "{node}"\n  See: kubectl get nodes') from error
        return change.message

    @with_api
    async def request_operation(self, api: Transport, name: str, spec: OperationSpec) -> str:
        await _must_be_a_node(api, spec.node)
        try:
            await self._write(api, "POST", paths.OPERATIONS, operation_body(name, spec))
        except NotFound as error:
            raise CommandFailed(
                f"this cluster knows no operations: {error}\n"
                "  Is sickbay installed? kubectl apply --server-side -f crd.yaml"
            ) from error
        return actions.operation_requested(name, spec, how=self._how)

    @with_api
    async def operation(self, api: Transport, name: str) -> Operation | None:
        return await KubeOperations(api, time.time).read(name)

    @with_api
    async def cancel_operations(self, api: Transport, node: str) -> str:
        found = [one for one in await list_operations(api) if one.spec.node == node]
        there = [one for one in found if one.is_open]
        if not there:
            raise CommandFailed(actions.none_open(node, how=self._how))
        for one in there:
            where = f"{paths.OPERATIONS}/{paths.quoted(one.name)}"
            fence = {"preconditions": {"uid": one.uid}}
            with contextlib.suppress(NotFound):
                await self._write(api, "DELETE", where, fence, Priority.RELEASE)
        return actions.operations_cancelled(node, there, how=self._how)

    async def _write(
        self,
        api: Transport,
        method: str,
        where: str,
        body: Mapping[str, object],
        lane: Priority = Priority.RECORD,
    ) -> None:
        """Send a write, which the API server checks and then forgets in a dry run."""
        await api.request(method, where, lane, query=self._dry, body=encode(body), guard=UNGUARDED)

    # -- the stop switch -----------------------------------------------------------------

    async def _stop(self, api: Transport) -> str | None:
        """Why it is stopped, "" when it is not, None where the switch's object does not exist."""
        try:
            where = paths.stop(self._namespace)
            body = await api.get(where, Priority.RECORD)
        except NotFound:
            return None
        return to_stop(decode(body, ConfigMap)).reason or ""

    async def _stop_if_seen(self, api: Transport) -> str | None:
        """The same, except that a person without the right to read the switch gets None as well."""
        try:
            return await self._stop(api) or ""
        except Refused as error:
            if error.status != 403:
                raise
            return None

    async def _set_stop(self, api: Transport, reason: str) -> None:
        """Write the switch.

        The time makes each writing a change, also of an unchanged reason: a resume ends what an
        aggregator keeps of a switch that was deleted while it was set.
        """
        change = {"data": {"reason": reason, "at": write_time(time.time())}}
        try:
            await self._write(api, "PATCH", paths.stop(self._namespace), change)
        except NotFound:
            await self._make_stop(api, change)

    async def _make_stop(self, api: Transport, change: Mapping[str, object]) -> None:
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": STOP_NAME}, **change}
        try:
            await self._write(api, "POST", paths.config_maps(self._namespace), made)
        except Conflict:
            await self._write(api, "PATCH", paths.stop(self._namespace), change)  # another wrote it
        except NotFound as error:
            raise CommandFailed(
                f"there is no namespace {self._namespace}\n  Where is sickbay? Set --namespace"
            ) from error


async def _must_be_a_node(api: Transport, node: str) -> None:
    """A typo must not become a quarantine of no node. A person without the right to read nodes is
    not checked.
    """
    try:
        body = await api.get(paths.node(node), Priority.RECORD, accept=METADATA)
        decode(body, PartialObjectMetadata)
    except NotFound as error:
        raise CommandFailed(f'there is no node "{node}"\n  See: kubectl get nodes') from error
    except Refused as error:
        if error.status != 403:
            raise


async def _pods_on(api: Transport, node: str) -> tuple[list[str] | None, int]:
    """The pods that a drain would evict, and how many stay. None where they can't be listed."""
    query = {"fieldSelector": f"spec.nodeName={node}"}
    try:
        body = await api.get(paths.PODS, Priority.READ, query=query)
    except Refused as error:
        if error.status != 403:
            raise
        return None, 0
    found = [to_pod(one) for one in decode(body, PodList).items or ()]
    alive = [pod for pod in found if pod.phase not in {"Succeeded", "Failed"}]
    going = [pod for pod in alive if not pod.mirror and pod.owner_kind != "DaemonSet"]
    return [f"{pod.namespace}/{pod.name}" for pod in going], len(alive) - len(going)
