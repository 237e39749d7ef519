"""What we need of the cluster before we begin, and what a person must do where it is missing."""

import asyncio
from dataclasses import dataclass

from aggregator.kube import paths
from aggregator.kube.errors import Failure
from aggregator.kube.limiter import Lane
from aggregator.kube.objects import RECORD_NAME, Definition, Review, decode
from aggregator.kube.quarantines import DEFINITION, GROUP, PLURAL, VERSION
from aggregator.kube.transport import Transport, encode
from aggregator.quarantine.cluster import Refused

_DEFINITION_FILE = "deploy/kubernetes/crd.yaml"
_RIGHTS_FILE = "deploy/kubernetes/aggregator-rbac.yaml"


@dataclass(frozen=True, slots=True)
class Right:
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
        """As a SelfSubjectAccessReview asks for it."""
        resource, _, subresource = self.resource.partition("/")
        return {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }


def needed(namespace: str, *, shards: bool) -> list[Right]:
    """Every right that KubeCluster uses; aggregator-rbac.yaml grants these and no other.

    ``shards``: with those that several replicas need to know of each other.
    """
    leases = [
        Right(verb, "coordination.k8s.io", "leases", namespace)
        for verb in ("list", "create", "update")
    ]
    return [
        *(leases if shards else ()),
        *(
            Right(verb, GROUP, PLURAL)
            for verb in ("get", "list", "watch", "create", "patch", "delete")
        ),
        Right("patch", GROUP, f"{PLURAL}/status"),
        Right("get", "apiextensions.k8s.io", "customresourcedefinitions", name=DEFINITION),
        *(Right(verb, "", "nodes") for verb in ("get", "list", "watch", "patch")),
        Right("patch", "", "nodes/status"),
        Right("list", "", "pods"),
        Right("create", "", "pods/eviction"),
        *(
            Right(verb, "", "configmaps", namespace, RECORD_NAME)
            for verb in ("get", "list", "watch", "update")
        ),
        Right("create", "", "configmaps", namespace),
        Right("create", "events.k8s.io", "events", paths.EVENTS_NAMESPACE),
    ]


async def check(transport: Transport, namespace: str, *, shards: bool) -> None:
    """Raises Refused that lists all that is missing, and which file to apply."""
    problems = [
        await _missing_rights(transport, needed(namespace, shards=shards)),
        await _missing_definition(transport),
    ]
    found = [problem for problem in problems if problem]
    if found:
        raise Refused("; ".join(found))


async def _missing_rights(transport: Transport, rights: list[Right]) -> str:
    allowed = await asyncio.gather(*(_allowed(transport, right) for right in rights))
    missing = [str(right) for right, yes in zip(rights, allowed, strict=True) if not yes]
    if not missing:
        return ""
    return (
        f"this identity lacks rights in the cluster: {', '.join(missing)}"
        f" (apply {_RIGHTS_FILE}, or grant them to the identity that the aggregator runs as)"
    )


async def _missing_definition(transport: Transport) -> str:
    answer = await transport.ask(
        "GET", paths.THE_DEFINITION, kind="customresourcedefinitions", lane=Lane.RECORD
    )
    if not isinstance(answer, Failure):
        if decode(answer, Definition).serves(VERSION):
            return ""
        return f"the cluster's {DEFINITION} does not serve {VERSION} (apply {_DEFINITION_FILE})"
    if answer.code == 404:
        return f"the cluster has no definition of quarantines (apply {_DEFINITION_FILE})"
    if answer.code == 403:
        return ""  # among the missing rights already
    raise answer.error()


async def _allowed(transport: Transport, right: Right) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": right.attributes()},
    }
    body = await transport.request(
        "POST",
        paths.ACCESS_REVIEWS,
        kind="selfsubjectaccessreviews",
        lane=Lane.RECORD,
        body=encode(review),
    )
    return decode(body, Review).status.allowed
