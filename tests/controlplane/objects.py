"""Nodes, pods and tokens, which almost every test of a cluster needs."""

import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.controlplane import manifests, rights
from tests.controlplane.api import JSON, STRATEGIC_PATCH, Answer, ApiClient, ApiError
from tests.controlplane.commands import KUBELET_LABEL
from tests.controlplane.versions import kubernetes_version
from tests.controlplane.waiting import wait_until
from tests.support.present import of_type

T = TypeVar("T")
R = TypeVar("R")

LINGER = "sickbay.test/linger"
"""Pod annotation; "true": once deleted, the pod stays Terminating."""

PENDING = "sickbay.test/pending"
"""Pod annotation; "true": the pod never starts."""

_PARALLEL = 16
#: The UUIDs in a node's status.nodeInfo.
_NODE_IDS = ("bootID", "machineID", "systemUUID")


class ClusterObjects:
    """Makes, changes and removes objects as the administrator."""

    client: ApiClient

    def request(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> Answer:
        """Send one request; any HTTP status is an answer, (status, parsed body)."""
        return self.client.request(method, path, body, content_type)

    def call(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> Any:
        """As `request`, but returns the body. Raises ApiError unless the status is 2xx."""
        return self.client.call(method, path, body, content_type)

    def apply(self, source: str | Path, *, namespace: str = "default") -> list[Any]:
        """Create or update the documents of a YAML text, file or folder; see manifests.apply."""
        return manifests.apply(self.client, source, namespace=namespace)

    def bind(self, name: str, role: str, subject: dict[str, str]) -> None:
        """Make a ClusterRoleBinding, and wait until it is in force."""
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }
        self.apply(json.dumps(binding))

    def unbind(self, path: str) -> None:
        """Delete a RoleBinding or ClusterRoleBinding; see rights.unbind."""
        rights.unbind(self.client, path)

    @contextmanager
    def applied(self, source: str | Path) -> Iterator[None]:
        """`apply`, and delete at the end: a right that stays hides from a later test its lack."""
        self.apply(source)
        try:
            yield
        finally:
            manifests.delete(self.client, source)

    # -- namespaces ------------------------------------------------------------

    def create_namespace(self, name: str) -> None:
        """Create a namespace; with a controller manager, wait until pods can be made in it."""
        metadata = {"name": name}
        self.call("POST", "/api/v1/namespaces", {"metadata": metadata})
        if self.makes_service_accounts:
            self.wait_for_object(f"/api/v1/namespaces/{name}/serviceaccounts/default")

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace, pods that linger in it too. Doesn't wait for the end."""
        self.delete_pods(name)
        self._delete(f"/api/v1/namespaces/{name}")

    def delete_pods(self, namespace: str) -> list[Any]:
        """Delete all pods of a namespace at once, those that linger too; returns them."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        deleted: list[Any] = self.call("DELETE", pods, {"gracePeriodSeconds": 0})["items"]
        return deleted

    @property
    def makes_service_accounts(self) -> bool:
        """Whether namespaces get their `default` ServiceAccount."""
        raise NotImplementedError

    # -- nodes -----------------------------------------------------------------

    def create_nodes(
        self,
        n: int,
        prefix: str = "node",
        *,
        start: int = 0,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        gpus: int = 8,
        ready: bool = True,
    ) -> list[str]:
        """Create `n` nodes, `prefix`-00000 and so on from `start`; returns their names.

        Each has a boot id of its own. With ready=False a node has no condition at first; kwok
        makes it Ready at once, unless its label sickbay.test/kubelet is "away". All except the
        first are copies in etcd, which cost the API server a tenth of requests.
        """
        names = [f"{prefix}-{start + index:05d}" for index in range(n)]
        if not names:
            return []
        first, *others = names
        body = node_object(first, labels or {}, annotations or {}, gpus=gpus, ready=ready)
        made = self.call("POST", "/api/v1/nodes", body)
        own = [made["metadata"]["uid"], *(made["status"]["nodeInfo"][key] for key in _NODE_IDS)]
        copies = (_own_ids(own) | {first: name} for name in others)
        version = self.copy_object(f"minions/{first}", copies)
        self.wait_for_node_cache(version or made["metadata"]["resourceVersion"])
        return names

    def wait_for_node_cache(self, version: str = "") -> None:
        """Wait until the API server's cache of nodes has all changes up to this version, or now.

        The aggregator lists nodes from that cache. A list that may not be older than a version is
        answered only when the cache has it.
        """
        if not version:
            version = self.call("GET", "/api/v1/nodes?limit=1")["metadata"]["resourceVersion"]
        fresh = f"resourceVersion={version}&resourceVersionMatch=NotOlderThan"
        path = f"/api/v1/nodes?limit=1&{fresh}"
        # It answers 504 where the cache is 3 s behind.
        wait_until(lambda: self.request("GET", path).status == 200, what="the cache of nodes")

    def copy_object(self, key: str, copies: Iterable[Mapping[str, str]]) -> str:
        """Copy an object in the cluster's storage, each time with these words exchanged.

        Returns the resourceVersion of the last copy, or "" for none.
        """
        raise NotImplementedError

    def delete_nodes(self, names: Iterable[str]) -> None:
        """Delete these nodes; those that are gone already are no error."""
        _each(list(names), lambda name: self._delete(f"/api/v1/nodes/{name}"))

    def node(self, name: str) -> Any:
        """The Node as it is now."""
        return self.call("GET", f"/api/v1/nodes/{name}")

    def reboot_node(self, name: str) -> str:
        """Give the node a new boot id, as a kubelet does after a reboot; returns it."""
        boot_id = str(uuid.uuid4())
        self._patch_node_status(name, {"nodeInfo": {"bootID": boot_id}})
        return boot_id

    def lose_kubelet(self, name: str) -> None:
        """This node has no kubelet any more: its pods neither start nor end.

        Its Ready condition becomes Unknown, as the node lifecycle controller would set it.
        """
        self._label_node(name, "away")
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "lastTransitionTime": now,
        }
        self._patch_node_status(name, {"conditions": [condition]})

    # -- pods --------------------------------------------------------------------

    def create_pod(
        self,
        namespace: str,
        name: str,
        *,
        node: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        service_account: str | None = None,
        gpus: int = 0,
        spec: Mapping[str, Any] | None = None,
    ) -> Any:
        """Create a pod, on `node` or where the scheduler puts it. `spec` is merged over its spec.

        It tolerates no taint, so a pod that names its node skips the scheduler, not the taints'
        NoExecute.
        """
        limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
        container = {"name": "main", "image": "example.test/main:1", "resources": limits}
        pod_spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 30}
        if node is not None:
            pod_spec["nodeName"] = node
        if service_account is not None:
            pod_spec["serviceAccountName"] = service_account
        metadata = {
            "name": name,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        }
        body = {"metadata": metadata, "spec": pod_spec | dict(spec or {})}
        return self.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    def create_pods(
        self, namespace: str, nodes: Sequence[str], *, prefix: str = "", **like: Any
    ) -> None:
        """A pod on each node, as `create_pod` makes it, with the prefix and the node as its name.

        All except the first are copies in etcd. The names of the nodes have one length.
        """
        first, *others = nodes
        name = f"{prefix}{first}"
        uid = self.create_pod(namespace, name, node=first, **like)["metadata"]["uid"]
        copies = (_own_ids([uid]) | {first: node} for node in others)
        self.copy_object(f"pods/{namespace}/{name}", copies)

    def wait_pod_running(self, namespace: str, name: str, *, timeout_s: float = 15.0) -> Any:
        """Wait until the pod's phase is Running; returns the pod. Raises TimeoutError."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"

        def running() -> Any:
            pod = self.call("GET", path)
            return pod if pod["status"].get("phase") == "Running" else None

        return wait_until(running, what=f"pod {namespace}/{name} to run", timeout_s=timeout_s)

    def evict(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Answer:
        """Ask for an eviction (policy/v1), with these preconditions; 201 if it is granted."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {k: v for k, v in preconditions.items() if v}},
        }
        return self.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    # -- service accounts ------------------------------------------------------------

    def create_service_account(self, namespace: str, name: str) -> None:
        """Create a ServiceAccount."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.call("POST", path, {"metadata": {"name": name}})

    def token_for(
        self,
        namespace: str,
        service_account: str,
        audience: str | None = "sickbay",
        *,
        pod: str | None = None,
        expiration_s: int = 3600,
    ) -> str:
        """A service account token (TokenRequest), as a kubelet gets it for a projected volume.

        Bound to `pod` (a name in the same namespace) it carries the kubernetes.io claims of the
        pod and, if the pod is on one, of its node. audience=None: the API server itself. The
        server grants no less than 600 s.
        """
        spec: dict[str, Any] = {"expirationSeconds": expiration_s}
        if audience is not None:
            spec["audiences"] = [audience]
        if pod is not None:
            uid = self.call("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        return of_type(self.call("POST", path, {"spec": spec})["status"]["token"], str)

    # -- waiting -------------------------------------------------------------------

    def wait_for_object(self, path: str, *, timeout_s: float = 15.0) -> Any:
        """Wait until GET `path` finds something; returns it. Raises TimeoutError."""

        def found() -> Any:
            answer = self.request("GET", path)
            return answer.body if answer.status == 200 else None

        return wait_until(found, what=f"{path} to exist", timeout_s=timeout_s)

    def wait_gone(self, path: str, *, timeout_s: float = 15.0) -> None:
        """Wait until GET `path` answers 404. Raises TimeoutError."""
        wait_until(
            lambda: self.request("GET", path).status == 404,
            what=f"{path} to be gone",
            timeout_s=timeout_s,
        )

    def _delete(self, path: str) -> None:
        answer = self.request("DELETE", path)
        if answer.status not in {200, 202, 404, 409}:
            raise ApiError(f"DELETE {path}", answer)

    def _label_node(self, name: str, kubelet: str | None) -> None:
        body = {"metadata": {"labels": {KUBELET_LABEL: kubelet}}}
        self.call("PATCH", f"/api/v1/nodes/{name}", body, STRATEGIC_PATCH)

    def _patch_node_status(self, name: str, status: Mapping[str, Any]) -> None:
        body = {"status": status}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", body, STRATEGIC_PATCH)


def node_object(
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    gpus: int,
    ready: bool,
) -> dict[str, Any]:
    """A Node as the kubelet of a GPU machine registers it."""
    resources = {"cpu": "128", "memory": "2Ti", "pods": "110"}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
    own = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    node_info = {
        "bootID": str(uuid.uuid4()),
        "machineID": uuid.uuid4().hex,
        "systemUUID": str(uuid.uuid4()),
        "kernelVersion": "6.8.0",
        "osImage": "test",
        "containerRuntimeVersion": "kwok://0",
        "kubeletVersion": kubernetes_version(),
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}] if ready else []
    return {
        "metadata": {"name": name, "labels": own | dict(labels), "annotations": dict(annotations)},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "nodeInfo": node_info,
            "addresses": [{"type": "Hostname", "address": name}],
            "conditions": conditions,
        },
    }


def _own_ids(like: Iterable[str]) -> dict[str, str]:
    """A new UUID for each of these, written like it."""
    new = ((old, uuid.uuid4()) for old in like)
    return {old: str(own) if "-" in old else own.hex for old, own in new}


def _each(items: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """Do `work` for each item, some at a time. The first error is raised after the others ended."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(work, items))
