"""Networks that fail in known ways: which nodes probe which, as the aggregator names them, and what
each then sees. The question of blame is left to other modules.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aggregator.health.model import Status
from aggregator.ingest.probe_assignment import ProbeRings
from aggregator.policy.network.triangulate import PEERS, REACH, Triangulation

RACK = 16
TARGET = "tcp://registry.example.org:443"


@dataclass
class Network:
    """Nodes in racks of ``RACK``; each rack has a leaf switch and a gateway of its own.

    ``down``: nodes that no node reaches and that reach none. ``mute``: nodes whose own probes all
    fail, though others reach them. ``missed``: targets that no node reaches. ``walls`` are sets of
    nodes that no packet enters or leaves. ``noise`` is the share of edges that fail by chance.
    ``silent``: nodes whose agents send no message any more.
    """

    size: int
    rng: random.Random
    down: set[int] = field(default_factory=set)
    mute: set[int] = field(default_factory=set)
    gateways_down: set[int] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)
    walls: list[set[int]] = field(default_factory=list)
    noise: float = 0.0
    silent: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        probe_rings = ProbeRings()
        for node in range(self.size):
            probe_rings.put(name(node), address(node))
        whose = {address(node): node for node in range(self.size)}
        self.peers = [
            [whose[peer] for peer in probe_rings.peers(name(node))] for node in range(self.size)
        ]

    def assigned(self, node: int) -> tuple[str, ...]:
        """The addresses that the node is asked to probe."""
        return tuple(address(peer) for peer in self.peers[node])

    def observers(self, node: int) -> list[int]:
        """The nodes that are asked to probe this one."""
        return [other for other in range(self.size) if node in self.peers[other]]

    def _passes(self, one: int, other: int) -> bool:
        if one in self.down or other in self.down:
            return False
        return all((one in wall) == (other in wall) for wall in self.walls)

    def _lost_by_chance(self) -> bool:
        return self.noise > 0 and self.rng.random() < self.noise

    def report_all(
        self,
        found: Triangulation,
        *,
        labels: bool = True,
        order: Callable[[list[int]], None] = lambda _: None,
    ) -> None:
        """All that the agents see now. A silent agent's last report stands: that all was well."""
        nodes = list(range(self.size))
        order(nodes)
        for node in nodes:
            found.enlist(name(node), listed=True)
            found.place(name(node), address(node))
            found.assign(name(node), self.assigned(node))
            if labels:
                found.label(name(node), [f"rack=r{node // RACK}"])
            found.set_report(name(node), reporting=node not in self.silent)
        for node in nodes:
            for check, component, reached in self._seen_by(node):
                fine = reached or node in self.silent
                found.set_edge(name(node), check, component, Status.OK if fine else Status.FAILED)

    def _seen_by(self, node: int) -> Iterable[tuple[str, str, bool]]:
        alone = node in self.down or node in self.mute
        for peer in self.peers[node]:
            fine = not alone and self._passes(node, peer) and not self._lost_by_chance()
            fine = fine and not self._behind_gateway(node, peer)
            yield PEERS, address(peer), fine
        gateway = not alone and node // RACK not in self.gateways_down
        yield REACH, "gateway", gateway and not self._lost_by_chance()
        reached = gateway and TARGET not in self.missed and not self._lost_by_chance()
        yield REACH, TARGET, reached

    def _behind_gateway(self, one: int, other: int) -> bool:
        """A gateway that is down passes no packet between its rack and the others."""
        racks = {one // RACK, other // RACK}
        return len(racks) > 1 and bool(racks & self.gateways_down)


def name(node: int) -> str:
    return f"node-{node}"


def address(node: int) -> str:
    return f"10.{node // 65536}.{node // 256 % 256}.{node % 256}"
