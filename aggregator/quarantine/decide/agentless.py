"""Nodes on which no agent can run, by their labels. Pure.

A Fargate node takes no pod of a DaemonSet, and a virtual kubelet runs none. Such nodes never
report, so they count for no limit and no quorum.
"""

from collections.abc import Iterable, Mapping

from aggregator.cluster.port import NodeMeta

#: Labels of these nodes: the key, and the value.
_SHIPPED = (("eks.amazonaws.com/compute-type", "fargate"), ("type", "virtual-kubelet"))


class AgentlessNodes:
    """``labels``: those of a site, as "KEY=VALUE" or "KEY", in addition to the shipped ones."""

    def __init__(self, labels: Iterable[str] = ()) -> None:
        parts = (one.partition("=") for one in labels)
        own = tuple((key, value if equals else None) for key, equals, value in parts)
        self._labels: tuple[tuple[str, str | None], ...] = (*own, *_SHIPPED)

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is one of them."""
        return any(
            labels.get(key) == value if value is not None else key in labels
            for key, value in self._labels
        )

    def others(self, nodes: Iterable[NodeMeta]) -> list[NodeMeta]:
        """The nodes on which an agent can run."""
        return [meta for meta in nodes if not self.has(meta.labels)]
