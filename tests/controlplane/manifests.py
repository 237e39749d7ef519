"""Creates or updates all objects of a YAML text, as `kubectl apply --server-side` does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.controlplane.api import APPLY_PATCH, Answer, ApiClient, ApiError
from tests.controlplane.rights import wait_in_force
from tests.controlplane.waiting import wait_until
from tests.support.yaml_documents import read_documents

_FIELD_MANAGER = "sickbay-tests"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


def apply(client: ApiClient, source: str | Path, *, namespace: str = "default") -> list[Any]:
    """Apply every document of a YAML text (str) or file or folder (Path), in order.

    Objects without a namespace go into `namespace`. A CustomResourceDefinition is waited for
    until its kind is served, and a binding until it is in force. Returns the objects as they are
    now. Raises ApiError.

    A document that this client applied before is not sent again while the server has the object
    as that left it: most tests apply the same manifests, and a definition costs 50 ms of CPU.
    """
    return [_apply_one(client, document, namespace) for document in _documents(source)]


def delete(client: ApiClient, source: str | Path, *, namespace: str = "default") -> None:
    """Delete what `apply` made of the same source, last document first. Raises ApiError.

    An object that is gone is no error.
    """
    for document in reversed(list(_documents(source))):
        path = _object_path(client, document, namespace)
        answer = client.request("DELETE", path)
        if answer.status not in {200, 202, 404}:
            raise ApiError(f"delete {document['kind']} {document['metadata']['name']}", answer)


def resource_path(client: ApiClient, api_version: str, kind: str, namespace: str) -> str:
    """The path of a kind's collection, from the server's own discovery.

    Raises LookupError where the server doesn't serve that kind.
    """
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    for resource in _served(client, root):
        if resource["kind"] == kind and "/" not in resource["name"]:
            inside = f"/namespaces/{namespace}" if resource["namespaced"] else ""
            return f"{root}{inside}/{resource['name']}"
    raise LookupError(f"the API server serves no {kind} in {api_version}")


def _served(client: ApiClient, root: str) -> list[Any]:
    """The resources of a group and version. Kubernetes' own are asked for once."""
    known: list[Any] | None = client.discovered.get(root)
    if known is not None:
        return known
    answer = client.request("GET", root)
    served: list[Any] = answer.body["resources"] if answer.status == 200 else []
    group = root.split("/")[2]
    if served and (root.startswith("/api/") or "." not in group or group.endswith(".k8s.io")):
        client.discovered[root] = served
    return served


def _documents(source: str | Path) -> Iterator[dict[str, Any]]:
    if isinstance(source, Path):
        files = sorted(source.glob("*.y*ml")) if source.is_dir() else [source]
        texts = [file.read_text(encoding="utf-8") for file in files]
    else:
        texts = [source]
    for text in texts:
        for document in read_documents(text):
            if document is None:
                continue
            if document["kind"] == "List":
                yield from document["items"]
            else:
                yield document


def _apply_one(client: ApiClient, document: dict[str, Any], namespace: str) -> Any:
    path = _object_path(client, document, namespace)
    sent = json.dumps(document).encode()
    known, applied = client.applied.get(path, (b"", None))
    if known == sent and _version(client, path) == applied["metadata"]["resourceVersion"]:
        return applied
    parameters = f"fieldManager={_FIELD_MANAGER}&force=true"
    answer = client.request("PATCH", f"{path}?{parameters}", sent, APPLY_PATCH)
    if answer.status not in {200, 201}:
        raise ApiError(f"apply {document['kind']} {document['metadata']['name']}", answer)
    client.applied[path] = (sent, answer.body)
    if document["kind"] == "CustomResourceDefinition":
        _wait_served(client, document)
    elif document["kind"].endswith("RoleBinding"):
        wait_in_force(client, answer.body)
    return answer.body


def _version(client: ApiClient, path: str) -> str | None:
    """The resourceVersion of the object as it is now, or None where there is none."""
    answer = client.request("GET", path, headers={"Accept": _METADATA})
    return str(answer.body["metadata"]["resourceVersion"]) if answer.status == 200 else None


def _object_path(client: ApiClient, document: dict[str, Any], namespace: str) -> str:
    metadata = document["metadata"]
    inside = metadata.get("namespace", namespace)
    collection = resource_path(client, document["apiVersion"], document["kind"], inside)
    return f"{collection}/{metadata['name']}"


def _wait_served(client: ApiClient, definition: dict[str, Any]) -> None:
    spec = definition["spec"]
    for version in spec["versions"]:
        if not version["served"]:
            continue
        root = f"/apis/{spec['group']}/{version['name']}"

        def listed(root: str = root) -> Answer | None:
            answer = client.request("GET", f"{root}/{spec['names']['plural']}?limit=1")
            # The server names the kind in its discovery a while after it serves it.
            named = [each["kind"] for each in _served(client, root)]
            return answer if answer.status == 200 and spec["names"]["kind"] in named else None

        wait_until(listed, what=f"{root} to be served", timeout_s=20)
