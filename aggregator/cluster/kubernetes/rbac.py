"""The permissions that sickbay needs to start, and the fix for a person where one is missing."""

import asyncio
from dataclasses import dataclass

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
from aggregator.cluster.port import Refused

OPERATIONS = "operations"
_BRING_DEFINITION = "apply deploy/kubernetes/crd.yaml, or `helm upgrade` with crds.enabled=true"
_RIGHTS_FILE = "deploy/kubernetes/aggregator-rbac.yaml"
#: All at once would need a connection each, and a TLS handshake costs both sides more than a
#: review.
_REVIEWS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Permission:
    """One thing that we must be allowed. An empty ``namespace`` is all of the cluster."""

    verb: str
    group: str
    resource: str  # with its subresource: pods/eviction
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}{f' {self.name}' if self.name else ''}{where}"

    def attributes(self) -> dict[str, str]:
        """As a SelfSubjectAccessReview has it."""
        resource, _, subresource = self.resource.partition("/")
        return {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }


def needed(namespace: str, options: OpenOptions) -> list[Permission]:
    """Every right that KubeCluster uses; aggregator-rbac.yaml grants these and no other.

    ``certificates``: with those for certificates that the aggregator makes itself. ``access``: with
    those to know the readers of the page. ``actions``: with those to carry out what people request
    by the page. ``evictions``, ``events``: with those to create these. ``operations``: with
    all of those to Operations.
    """
    authorities = [
        *(Permission(verb, "", "secrets", namespace, CA_KEYS_NAME) for verb in ("get", "update")),
        Permission("create", "", "secrets", namespace),
        *(Permission(verb, "", "configmaps", namespace, CA_NAME) for verb in ("get", "update")),
    ]
    lease = [
        *(
            Permission(verb, "coordination.k8s.io", "leases", namespace, LEASE_NAME)
            for verb in ("get", "update")
        ),
        Permission("create", "coordination.k8s.io", "leases", namespace),
    ]
    reviews = [
        Permission("create", "authentication.k8s.io", "tokenreviews"),
        Permission("create", "authorization.k8s.io", "subjectaccessreviews"),
    ]
    plurals = (PLURAL, OPERATIONS) if options.operations else (PLURAL,)
    in_default = Permission("create", "events.k8s.io", "events", paths.EVENTS_NAMESPACE)
    return [
        *(reviews if options.access else ()),
        *(
            (Permission("patch", "", "configmaps", namespace, STOP_NAME),)
            if options.actions
            else ()
        ),
        *lease,
        *(authorities if options.certificates else ()),
        *(
            Permission(verb, GROUP, plural)
            for plural in plurals
            for verb in ("get", "list", "watch", "patch", "delete", "create")
        ),
        *(Permission("patch", GROUP, f"{plural}/status") for plural in plurals),
        *(
            Permission("get", "apiextensions.k8s.io", "customresourcedefinitions", name=name)
            for name in _definitions(options)
        ),
        *(Permission(verb, "", "nodes") for verb in ("get", "list", "watch", "patch")),
        Permission("patch", "", "nodes/status"),
        *(Permission(verb, "", "pods") for verb in ("list", "watch")),
        *((Permission("create", "", "pods/eviction"),) if options.evictions else ()),
        *(
            Permission(verb, "", "configmaps", namespace, RECORD_NAME)
            for verb in ("get", "list", "watch", "update")
        ),
        *(
            Permission(verb, "", "configmaps", namespace, STOP_NAME)
            for verb in ("get", "list", "watch")
        ),
        Permission("create", "", "configmaps", namespace),
        *((in_default,) if options.events else ()),
    ]


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


async def _missing_rights(transport: Transport, rights: list[Permission]) -> str:
    few = asyncio.Semaphore(_REVIEWS_AT_ONCE)

    async def allows(right: Permission) -> bool:
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
    answer = await transport.try_request("GET", paths.definition(name), Priority.RECORD)
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


async def is_allowed(transport: Transport, right: Permission) -> bool:
    """Whether this identity has the right, by a SelfSubjectAccessReview."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": right.attributes()},
    }
    body = await transport.request(
        "POST", paths.ACCESS_REVIEWS, Priority.RECORD, body=encode(review)
    )
    return decode(body, Review).status.allowed
