"""The owners of each namespace's pods, as a label or an annotation of the namespace names them."""

from collections.abc import Mapping

#: Characters: an annotation may have 256 KiB, and each alert about a pod has its owner.
MOST_OWNER = 253


class NamespaceOwners:
    """``key`` is of the label or annotation; empty: no namespace has an owner.

    A label goes before an annotation of the same key. Namespaces that are not known have no owner.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._owners: dict[str, str] = {}

    def owner_of(self, namespace: str) -> str:
        """The owner's name; empty where none is known."""
        return self._owners.get(namespace, "")

    def update(
        self, namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]
    ) -> None:
        """Take the namespace as it is now."""
        owner = labels.get(self.key) or annotations.get(self.key, "")[:MOST_OWNER]
        if owner:
            self._owners[namespace] = owner
        else:
            self._owners.pop(namespace, None)

    def remove(self, namespace: str) -> None:
        """The namespace was deleted."""
        self._owners.pop(namespace, None)

    def keep_only(self, namespaces: set[str]) -> None:
        """Forget every namespace that a complete list does not have."""
        for gone in self._owners.keys() - namespaces:
            del self._owners[gone]
