"""Shards whose council a test plays: who is there is what the test says."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from aggregator.shards.council import Council, Member


def member(name: str) -> Member:
    return Member(name, f"epoch of {name}", f"{name}:8443", f"http://{name}:8080", "policy", "1.0")


class PlayedShards:
    """Implements `Shards` for the replica of this ``name``. ``asleep``: its Lease may be over."""

    def __init__(self, name: str, members: Iterable[str]) -> None:
        self.asleep = False
        self._name = name
        self._calls: list[Callable[[], None]] = []
        self.council = Council(name, {one: member(one) for one in members}, settled=True)

    def become(self, members: Iterable[str], *, frozen: str = "", settled: bool = True) -> None:
        """The council is another one now."""
        known = {one: member(one) for one in members}
        self.take(replace(self.council, members=known, frozen=frozen, settled=settled))

    def take(self, council: Council) -> None:
        """This is the council now."""
        self.council = council
        for call in self._calls:
            call()

    def owns(self, node: str) -> bool:
        owner = self.council.owner(node)
        return owner is None or owner.name == self._name

    def may_act(self, node: str) -> bool:
        council = self.council
        return self.owns(node) and council.settled and not council.frozen and not self.asleep

    def home(self, node: str) -> str:
        owner = self.council.owner(node)
        return "" if owner is None or owner.name == self._name else owner.address

    def leads(self) -> bool:
        council = self.council
        leading = council.leader is not None and council.leader.name == self._name
        return leading and council.settled and not council.frozen and not self.asleep

    def on_change(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
