"""Where things are in the API."""

from urllib.parse import quote

from aggregator.cluster.kubernetes.objects import CA_KEYS_NAME, CA_NAME, RECORD_NAME, STOP_NAME
from aggregator.cluster.kubernetes.quarantine_codec import DEFINITION, GROUP, PLURAL, VERSION
from aggregator.cluster.objects import ObjectResource
from aggregator.cluster.port import Refused

NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
PODS = "/api/v1/pods"
QUARANTINES = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
OPERATIONS = f"/apis/{GROUP}/{VERSION}/operations"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THE_DEFINITION = f"{DEFINITIONS}/{DEFINITION}"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SUBJECT_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
#: Nodes live in no namespace; Events about such objects live in this one.
EVENTS_NAMESPACE = "default"
#: All Events of the cluster, of both API groups.
CORE_EVENTS = "/api/v1/events"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{EVENTS_NAMESPACE}/events"


def kind_of(path: str) -> str:
    """The kind of object at a path, with the subresource: nodes, pods/eviction; else discovery."""
    match path.split("/")[1:]:
        case ["api", _, *rest] | ["apis", _, _, *rest] if rest:
            if rest[0] == "namespaces" and len(rest) > 2:
                rest = rest[2:]
            return "/".join((rest[0], *rest[2:]))
    return "discovery"


def quoted(name: str) -> str:
    """A name as one part of a path: one from outside must not reach another path.

    Raises Refused for a name that the API server ignores: its path is that of all such objects.
    "." and ".." would be resolved by the HTTP client.
    """
    if name.strip("/") in {"", ".", ".."}:
        raise Refused(f"{name!r} is no object's name")
    return quote(name, safe="")


def definition(name: str) -> str:
    return f"{DEFINITIONS}/{quoted(name)}"


def node(name: str) -> str:
    return f"{NODES}/{quoted(name)}"


def quarantine(name: str) -> str:
    return f"{QUARANTINES}/{quoted(name)}"


def api_group(group: str) -> str:
    return f"/apis/{quoted(group)}"


def api_version(version: str) -> str:
    """Of "v1" or "GROUP/VERSION": which kinds it serves."""
    group, _, name = version.rpartition("/")
    return f"{api_group(group)}/{quoted(name)}" if group else f"/api/{quoted(name)}"


def objects(resource: ObjectResource, namespace: str) -> str:
    """All objects of a resource, in one namespace or (empty text) in all of them."""
    where = f"/namespaces/{quoted(namespace)}" if namespace else ""
    return f"{api_version(resource.api_version)}{where}/{quoted(resource.plural)}"


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{quoted(namespace)}/pods"


def pod(namespace: str, name: str) -> str:
    return f"{pods(namespace)}/{quoted(name)}"


def eviction(namespace: str, name: str) -> str:
    return f"{pod(namespace, name)}/eviction"


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{quoted(namespace)}/configmaps"


def record(namespace: str) -> str:
    return f"{config_maps(namespace)}/{RECORD_NAME}"


def stop(namespace: str) -> str:
    return f"{config_maps(namespace)}/{STOP_NAME}"


def ca(namespace: str) -> str:
    return f"{config_maps(namespace)}/{CA_NAME}"


def secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{quoted(namespace)}/secrets"


def token(namespace: str, account: str) -> str:
    return f"/api/v1/namespaces/{quoted(namespace)}/serviceaccounts/{quoted(account)}/token"


def ca_keys(namespace: str) -> str:
    return f"{secrets(namespace)}/{CA_KEYS_NAME}"


def leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{quoted(namespace)}/leases"


def lease(namespace: str, name: str) -> str:
    return f"{leases(namespace)}/{quoted(name)}"
