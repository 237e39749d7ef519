"""The bodies of node patches: against a version, or against the contents that were decided on.

A merge patch names the version of the read that it was decided on. A node that was not read has no
version: a JSON patch (RFC 6902) tests the contents instead, and the server applies it whole or
refuses it with 422. `test` with null means "absent", as the server omits empty fields.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from aggregator.cluster.kubernetes.objects import TaintObject, from_taint
from aggregator.cluster.port import Node, NodeChange, Unread

JsonOp = dict[str, Any]


def merge_patch(node: Node, change: NodeChange) -> dict[str, Any]:
    """The body of a merge patch against the node's version and uid."""
    metadata: dict[str, Any] = {"resourceVersion": node.version, "uid": node.uid}
    if change.labels:
        metadata["labels"] = change.labels
    if change.annotations:
        metadata["annotations"] = change.annotations
    spec: dict[str, Any] = {}
    if change.unschedulable is not None:
        spec["unschedulable"] = change.unschedulable
    if change.taints is not None:
        spec["taints"] = [from_taint(taint) for taint in change.taints]
    return {"metadata": metadata, "spec": spec} if spec else {"metadata": metadata}


def checked_patch(node: Node, change: NodeChange, unread: Unread) -> list[JsonOp]:
    """The operations of a JSON patch that tests all contents of ``node``, and then changes it."""
    taints = [from_taint(taint) for taint in node.taints] or None
    tests = [
        _test("/metadata/uid", node.uid),
        _test("/spec/unschedulable", node.unschedulable or None),
        _test("/spec/taints", taints),
        _test("/metadata/labels", dict(node.labels) or None),
    ]
    annotated = unread.annotated or bool(node.annotations)
    if annotated:
        keys = sorted({*unread.absent, *node.annotations, *change.annotations})
        tests += [
            _test(f"/metadata/annotations/{_escaped(key)}", node.annotations.get(key))
            for key in keys
        ]
    else:
        tests.append(_test("/metadata/annotations", None))
    return [
        *tests,
        *_of_spec(node, change),
        *_of_map("/metadata/labels", change.labels, node.labels, is_there=bool(node.labels)),
        *_of_map("/metadata/annotations", change.annotations, node.annotations, is_there=annotated),
    ]


def _of_spec(node: Node, change: NodeChange) -> Iterator[JsonOp]:
    if change.unschedulable is not None and change.unschedulable != node.unschedulable:
        yield {"op": "add", "path": "/spec/unschedulable", "value": change.unschedulable}
    if change.taints is not None and change.taints != node.taints:
        taints: list[TaintObject] = [from_taint(taint) for taint in change.taints]
        yield {"op": "add", "path": "/spec/taints", "value": taints}


def _of_map(
    path: str, change: Mapping[str, str | None], before: Mapping[str, str], *, is_there: bool
) -> Iterator[JsonOp]:
    if not is_there:
        new = {key: value for key, value in change.items() if value is not None}
        if new:
            yield {"op": "add", "path": path, "value": new}
        return
    for key, value in change.items():
        if value is not None:
            yield {"op": "add", "path": f"{path}/{_escaped(key)}", "value": value}
        elif key in before:
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}


def _test(path: str, value: object) -> JsonOp:
    return {"op": "test", "path": path, "value": value}


def _escaped(key: str) -> str:
    """The key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
