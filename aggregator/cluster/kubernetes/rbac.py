"""The permissions that sickbay needs to start, and the fix for a person where one is missing."""

import asyncio

from aggregator.cluster.kind import OpenOptions
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.errors import Failure
from aggregator.cluster.kubernetes.lease import NAME as LEASE_NAME
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import (
    CA_KEYS_NAME,
    CA_NAME,
    RECORD_NAME,
    STOP_NAME,
    Definition,
    Review,
    decode,
)
from aggregator.cluster.kubernetes.quarantine_codec import DEFINITION, GROUP, PLURAL, VERSION
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.port import UNGUARDED, Refused
from aggregator.cluster.users import Access

OPERATIONS = "operations"
_BRING_DEFINITION = "apply deploy/kubernetes/crd.yaml, or `helm upgrade` with crds.enabled=true"
_RIGHTS_FILE = "deploy/kubernetes/aggregator-rbac.yaml"
#: All at once would need a connection each, and a TLS handshake costs both sides more than a
#: review.
_REVIEWS_AT_ONCE = 4


def needed(namespace: str, options: OpenOptions) -> list[Access]:
    """Every right that KubeCluster uses; aggregator-rbac.yaml grants these and no other.

    ``certificates``: with those for certificates that the aggregator makes itself. ``access``: with
    those to know the readers of the page. ``actions``: with those to carry out what people request
    by the page. ``evictions``, ``events``: with those to create these. ``operations``: with
    all of those to Operations.
    """
    own = {"namespace": namespace}
    found = [
        *_rights("get update", "coordination.k8s.io", "leases", name=LEASE_NAME, **own),
        *_rights("create", "coordination.k8s.io", "leases", **own),
        *_rights("get list watch patch", "", "nodes"),
        *_rights("patch", "", "nodes/status"),
        *_rights("list watch", "", "pods"),
        *_rights("get list watch update", "", "configmaps", name=RECORD_NAME, **own),
        *_rights("get list watch", "", "configmaps", name=STOP_NAME, **own),
        *_rights("create", "", "configmaps", **own),
    ]
    for plural in (PLURAL, OPERATIONS) if options.operations else (PLURAL,):
        found += _rights("get list watch patch delete create", GROUP, plural)
        found += _rights("patch", GROUP, f"{plural}/status")
    for name in _definitions(options):
        found += _rights("get", "apiextensions.k8s.io", "customresourcedefinitions", name=name)
    if options.access:
        found += _rights("create", "authentication.k8s.io", "tokenreviews")
        found += _rights("create", "authorization.k8s.io", "subjectaccessreviews")
    if options.actions:
        found += _rights("patch", "", "configmaps", name=STOP_NAME, **own)
    if options.certificates:
        found += _rights("get update", "", "secrets", name=CA_KEYS_NAME, **own)
        found += _rights("create", "", "secrets", **own)
        found += _rights("get update", "", "configmaps", name=CA_NAME, **own)
    if options.evictions:
        found += _rights("create", "", "pods/eviction")
    if options.events:
        found += _rights("create", "events.k8s.io", "events", namespace=paths.EVENTS_NAMESPACE)
    return found


def _rights(verbs: str, group: str, resource: str, **where: str) -> list[Access]:
    """``verbs`` have blanks between them."""
    return [Access(verb, group, resource, **where) for verb in verbs.split()]


def attributes_of(access: Access) -> dict[str, object]:
    """The right as a SubjectAccessReview has it."""
    if access.path:
        return {"nonResourceAttributes": {"verb": access.verb, "path": access.path}}
    resource, _, subresource = access.resource.partition("/")
    names = ("verb", "group", "namespace", "name")
    found = {name: getattr(access, name) for name in names}
    return {"resourceAttributes": {**found, "resource": resource, "subresource": subresource}}


async def check(transport: Transport, namespace: str, options: OpenOptions) -> None:
    """Raises Refused that lists all that is missing, and which file to apply. See `needed`."""
    rights = needed(namespace, options)
    problems = [
        await _missing_rights(transport, rights),
        *[await _missing_definition(transport, name) for name in _definitions(options)],
    ]
    found = [problem for problem in problems if problem]
    if found:
        raise Refused("; ".join(found))


def _definitions(options: OpenOptions) -> tuple[str, ...]:
    return (DEFINITION, f"{OPERATIONS}.{GROUP}") if options.operations else (DEFINITION,)


async def _missing_rights(transport: Transport, rights: list[Access]) -> str:
    few = asyncio.Semaphore(_REVIEWS_AT_ONCE)

    async def allows(right: Access) -> bool:
        async with few:
            return await is_allowed(transport, right)

    allowed = await asyncio.gather(*map(allows, rights))
    missing = [str(right) for right, yes in zip(rights, allowed, strict=True) if not yes]
    if not missing:
        return ""
    return (
        f"this identity lacks rights in the cluster: {', '.join(missing)}"
        f" (apply {_RIGHTS_FILE} or repeat the `helm upgrade`, or grant them to the identity that"
        " the aggregator runs as)"
    )


async def _missing_definition(transport: Transport, name: str) -> str:
    answer = await transport.try_request(
        "GET", paths.definition(name), Priority.RECORD, guard=UNGUARDED
    )
    if not isinstance(answer, Failure):
        if decode(answer, Definition).serves(VERSION):
            return ""
        return f"the cluster's {name} does not serve {VERSION} ({_BRING_DEFINITION})"
    if answer.code == 404:
        plural = name.partition(".")[0]
        return f"the cluster has no definition of {plural} ({_BRING_DEFINITION})"
    if answer.code == 403:
        return ""  # among the missing rights already
    raise answer.error()


async def is_allowed(transport: Transport, right: Access) -> bool:
    """Whether this identity has the right, by a SelfSubjectAccessReview."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": attributes_of(right),
    }
    body = await transport.request(
        "POST", paths.ACCESS_REVIEWS, Priority.RECORD, body=encode(review), guard=UNGUARDED
    )
    return decode(body, Review).status.allowed
