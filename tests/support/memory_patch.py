"""A patch of a node in memory: its preconditions, and its effect."""

from aggregator.cluster.port import Node, NodeChange


def is_as_expected(now: Node, node: Node, change: NodeChange) -> bool:
    """The version and uid of a read; without a read, the contents that a JSON patch tests."""
    if now.uid != node.uid or node.unread is None:
        return now.uid == node.uid and now.version == node.version
    keys = {*node.unread.absent, *node.annotations, *change.annotations}
    return (
        now.unschedulable == node.unschedulable
        and now.taints == node.taints
        and now.labels == node.labels
        and all(now.annotations.get(key) == node.annotations.get(key) for key in keys)
    )


def merged(before: object, change: object) -> dict[str, str]:
    """The labels or annotations after a change; None removes a key."""
    assert isinstance(before, dict)
    assert isinstance(change, dict)
    found = {**before, **change}
    return {key: value for key, value in found.items() if value is not None}
