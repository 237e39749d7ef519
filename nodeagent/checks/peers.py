"""Whether this node reaches the other nodes that the aggregator names: edges of a graph.

One edge that fails accuses neither end: the aggregator sees which node's edges fail. Reasons:
``unreachable`` (answered before and does not now: failed), ``never-answered`` (unknown: a firewall
may drop echoes). The component is the peer's address.
"""

import asyncio

from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.model import Observation, Status
from nodeagent.sources.gateway import echo
from nodeagent.sources.host import HostRoots
from nodeagent.sources.peers import Peers

NAME = "peers"
#: Packets get lost: only after this number without an answer does a peer count as silent.
_TRIES = 2


def evaluate(address: str, seconds: float | None, trouble: str, *, answered: bool) -> Observation:
    """Pure. ``seconds`` is None without an answer; ``answered``: it has answered before."""
    if seconds is not None:
        message = f"answers an echo in {seconds * 1000:.1f} ms"
        return Observation(NAME, address, Status.OK, "", message)
    message = trouble or f"no answer to {_TRIES} echoes"
    if answered:
        return Observation(NAME, address, Status.FAILED, "unreachable", message)
    return Observation(NAME, address, Status.UNKNOWN, "never-answered", message)


class PeerCheck:
    """All peers are probed at once."""

    def __init__(self, machine: HostRoots, peers: Peers) -> None:
        self._machine = machine
        self._peers = peers
        self._answered: set[str] = set()

    async def run_check(self) -> Report:
        addresses = self._peers.addresses
        self._answered &= set(addresses)
        report = await asyncio.gather(*(self._probe(address) for address in addresses))
        return report or Off("the aggregator names no peers")

    async def _probe(self, address: str) -> Observation:
        seconds, trouble = None, ""
        for _ in range(_TRIES):
            try:
                seconds = await echo(address, "", self._machine.clock)
            except OSError as error:  # no route, or no answer on the link
                trouble = error.strerror or str(error)
            if seconds is not None:
                self._answered.add(address)
                break
        return evaluate(address, seconds, trouble, answered=address in self._answered)


SPEC = CheckSpec(
    name=NAME,
    sees="other nodes that no longer answer this one",
    source="ICMP echoes to up to 8 nodes that the aggregator names",
    cost="1 ms of CPU every 30 s; no cost without an aggregator",
    blind_to="peers that never answered (a firewall); whether a peer is down or the way to it; "
    "after a restart of the agent: which peers answered before it",
    interval=30.0,
    deadline=10.0,
    build=lambda sources, _: PeerCheck(sources.machine, sources.peers),
)
