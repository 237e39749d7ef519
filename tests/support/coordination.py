"""A membership view that a test controls: the test says which replicas are there."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from aggregator.replicas.membership.view import Member, MembershipView


def member(name: str) -> Member:
    return Member(name, f"epoch of {name}", f"{name}:8443", f"http://{name}:8080", "policy", "1.0")


class PlayedShards:
    """`Ownership` for the replica of this ``name``. ``asleep``: its Lease may be over."""

    def __init__(self, name: str, members: Iterable[str]) -> None:
        self.asleep = False
        self._name = name
        self._calls: list[Callable[[], None]] = []
        self.membership_view = MembershipView(
            name, {one: member(one) for one in members}, settled=True
        )

    def become(self, members: Iterable[str], *, frozen: str = "", settled: bool = True) -> None:
        """The membership view changes to this one now."""
        known = {one: member(one) for one in members}
        self.take(replace(self.membership_view, members=known, frozen=frozen, settled=settled))

    def take(self, membership_view: MembershipView) -> None:
        """The membership view is this one now."""
        self.membership_view = membership_view
        for call in self._calls:
            call()

    def owns(self, node: str) -> bool:
        owner = self.membership_view.owner(node)
        return owner is None or owner.name == self._name

    def may_act(self, node: str) -> bool:
        membership_view = self.membership_view
        return (
            self.owns(node)
            and membership_view.settled
            and not membership_view.frozen
            and not self.asleep
        )

    def owner_address(self, node: str) -> str:
        owner = self.membership_view.owner(node)
        return "" if owner is None or owner.name == self._name else owner.address

    def leads(self) -> bool:
        membership_view = self.membership_view
        leading = membership_view.leader is not None and membership_view.leader.name == self._name
        return (
            leading and membership_view.settled and not membership_view.frozen and not self.asleep
        )

    def on_change(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
