"""Rights by RBAC: the API server's authorizer hears of a binding a moment after it is stored."""

from typing import Any

from tests.controlplane.api import ApiClient
from tests.controlplane.waiting import wait_until

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def wait_in_force(client: ApiClient, binding: dict[str, Any], *, allowed: bool = True) -> None:
    """Wait until the first subject of a binding has the first right of its role, or has it not.

    Without a wait where the role has no rules yet, or nobody is bound.
    """
    review = _review(client, binding)
    if review is not None:
        wait_until(
            lambda: client.call("POST", REVIEWS, {"spec": review})["status"]["allowed"] is allowed,
            what=f"the authorizer to hear of {binding['metadata']['name']}",
        )


def unbind(client: ApiClient, path: str) -> None:
    """Delete a binding, and wait until its subject lacks the right; no other one may grant it."""
    binding = client.call("GET", path)
    client.call("DELETE", path)
    wait_in_force(client, binding, allowed=False)


def _review(client: ApiClient, binding: dict[str, Any]) -> dict[str, Any] | None:
    role, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
    folder = f"namespaces/{namespace}/roles" if role["kind"] == "Role" else "clusterroles"
    answer = client.request("GET", f"{_RBAC}/{folder}/{role['name']}")
    rules = answer.body.get("rules") if answer.status == 200 else None
    if not rules or not binding.get("subjects"):
        return None
    rule, subject = rules[0], binding["subjects"][0]
    user, groups = subject["name"], []
    if subject["kind"] == "Group":
        user, groups = "of-this-group", [subject["name"]]
    elif subject["kind"] == "ServiceAccount":
        home = subject.get("namespace", namespace)
        user = f"system:serviceaccount:{home}:{subject['name']}"
    who, verb = {"user": user, "groups": groups}, rule["verbs"][0]
    if "nonResourceURLs" in rule:
        return who | {"nonResourceAttributes": {"path": rule["nonResourceURLs"][0], "verb": verb}}
    resource, _, subresource = rule["resources"][0].partition("/")
    attributes = {
        "verb": verb,
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": subresource,
        "name": rule.get("resourceNames", [""])[0],
        "namespace": namespace,
    }
    return who | {"resourceAttributes": attributes}
