"""Objects of any kind: implements `ObjectStore`.

A kind's path comes from the API server itself (discovery, which every identity may read), as no
rule leads from a kind to its plural.
Shapes: https://kubernetes.io/docs/reference/using-api/api-concepts/#api-discovery
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.deletion import request_deletion
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import Meta, PartialObjectMetadata, RawList, decode
from aggregator.cluster.kubernetes.rbac import is_allowed
from aggregator.cluster.kubernetes.transport import METADATA, Transport, encode
from aggregator.cluster.objects import ClusterObject, ObjectKind, ObjectResource
from aggregator.cluster.port import Guard, NotFound, Refused
from aggregator.cluster.users import Access

#: Objects decoded before the event loop runs other tasks; some milliseconds.
_SLICE = 50


class _Served(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class _ServedList(msgspec.Struct, frozen=True):
    """meta/v1 APIResourceList."""

    resources: list[_Served] | None = None


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str = ""


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    """meta/v1 APIGroup."""

    preferred_version: _Version = _Version()


class KubeObjects:
    """Implements `ObjectStore`. The transport is opened at the first request, if it is not yet."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._known: dict[ObjectKind, ObjectResource] = {}

    async def resource(self, kind: ObjectKind) -> ObjectResource:
        known = self._known.get(kind)
        if known is not None:
            return known
        try:
            found = await self._discover(kind)
        except NotFound as error:
            raise NotFound(f"the cluster has no kind {kind}", status=404) from error
        self._known[kind] = found
        return found

    async def _discover(self, kind: ObjectKind) -> ObjectResource:
        api_version = kind.api_version
        if api_version.endswith("/"):
            group = decode(await self._read(paths.api_group(kind.group)), _Group)
            api_version = group.preferred_version.group_version
        body = await self._read(paths.api_version(api_version))
        for one in decode(body, _ServedList).resources or ():
            if one.kind == kind.kind and "/" not in one.name:
                return ObjectResource(api_version, kind.kind, one.name, one.namespaced)
        raise NotFound(f"{api_version} has no kind {kind.kind}", status=404)

    async def get(
        self, resource: ObjectResource, namespace: str, name: str
    ) -> ClusterObject | None:
        try:
            body = await self._read(_path(resource, namespace, name))
        except NotFound:
            return None
        return _to_object(body)

    async def find(
        self, resource: ObjectResource, which: Callable[[Mapping[str, Any]], bool]
    ) -> Sequence[ClusterObject]:
        body = await self._read(paths.objects(resource, ""), query={"resourceVersion": "0"})
        found: list[ClusterObject] = []
        for number, raw in enumerate(decode(body, RawList).items or (), 1):
            if which(decode(raw, dict)):
                found.append(_to_object(raw))
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        return found

    async def select(
        self, resource: ObjectResource, namespace: str, labels: Mapping[str, str]
    ) -> Sequence[ClusterObject]:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        path = paths.objects(resource, namespace)
        body = await self._read(path, query={"labelSelector": selector})
        return [_to_object(raw) for raw in decode(body, RawList).items or ()]

    async def create(
        self,
        resource: ObjectResource,
        namespace: str,
        content: Mapping[str, Any],
        *,
        guard: Guard,
    ) -> ClusterObject:
        path = paths.objects(resource, namespace if resource.namespaced else "")
        await self._transport.open()
        body = await self._transport.request(
            "POST", path, Priority.PHASE, body=encode(content), guard=guard
        )
        return _to_object(body)

    async def annotate(
        self,
        resource: ObjectResource,
        found: ClusterObject,
        annotations: Mapping[str, str | None],
        *,
        guard: Guard,
    ) -> None:
        fence = {"uid": found.uid, "resourceVersion": found.version}
        await self._transport.open()
        await self._transport.request(
            "PATCH",
            _path(resource, found.namespace, found.name),
            Priority.PHASE,
            body=encode({"metadata": {**fence, "annotations": dict(annotations)}}),
            accept=METADATA,
            guard=guard,
        )

    async def delete(
        self,
        resource: ObjectResource,
        found: ClusterObject,
        *,
        as_read: bool,
        guard: Guard,
        foreground: bool = False,
    ) -> None:
        await self._transport.open()
        await request_deletion(
            self._transport,
            _path(resource, found.namespace, found.name),
            Priority.PHASE,
            found.uid,
            found.version if as_read else "",
            # A Job's own default leaves its pods behind.
            propagation="Foreground" if foreground else "Background",
            guard=guard,
        )

    async def lacks(
        self, resource: ObjectResource, namespace: str, verbs: Sequence[str]
    ) -> Sequence[str]:
        await self._transport.open()
        where = namespace if resource.namespaced else ""
        rights = [Access(verb, resource.group, resource.plural, where) for verb in verbs]
        allowed = [await is_allowed(self._transport, right) for right in rights]
        return [str(right) for right, yes in zip(rights, allowed, strict=True) if not yes]

    async def _read(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        await self._transport.open()
        return await self._transport.get(path, Priority.BACKGROUND, query=query)


def _path(resource: ObjectResource, namespace: str, name: str) -> str:
    """Raises Refused for a name that would reach another path: the API server decodes a quoted
    slash before it looks for a subresource.
    """
    for part in (namespace, name):
        if "/" in part or "%" in part:
            raise Refused(f"{part!r} is no object's name")
    where = paths.objects(resource, namespace if resource.namespaced else "")
    return f"{where}/{paths.quoted(name)}"


def _to_object(raw: bytes | msgspec.Raw) -> ClusterObject:
    meta: Meta = decode(raw, PartialObjectMetadata).metadata
    return ClusterObject(
        meta.name,
        meta.namespace,
        meta.uid,
        meta.resource_version,
        meta.deletion_timestamp is not None,
        meta.annotations or {},
        decode(raw, dict),
    )
