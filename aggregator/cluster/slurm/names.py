"""An agent's name is not always the NodeName: it is mapped, and an ambiguous one is refused."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from aggregator.cluster.port import Guard, NotFound, Refused
from aggregator.cluster.slurm.client import ControllerFacts, SlurmClient
from aggregator.cluster.slurm.state import SlurmJob, SlurmNode

log = logging.getLogger("sickbay.slurm")

NameField = Literal["name", "hostname", "address"]
_IN_SLURM = {"name": "NodeName", "hostname": "NodeHostname", "address": "NodeAddr"}


@dataclass(frozen=True, slots=True)
class NameRules:
    """``by``: the field of a Slurm node that is its agent's name. ``pairs``: agents' names by
    NodeName, which come before it.
    """

    by: NameField = "name"
    pairs: Mapping[str, str] = field(default_factory=dict)

    def agent_of(self, node: SlurmNode) -> str:
        """The name of the node's agent, as far as this node alone shows it."""
        return self.pairs.get(node.name) or str(getattr(node, self.by))

    def index(self, nodes: Iterable[SlurmNode]) -> "NameIndex":
        """Which node each agent's name means."""
        claims: dict[str, list[str]] = {}
        for one in nodes:
            if agent := self.agent_of(one):
                claims.setdefault(agent, []).append(one.name)
        nodes_of = {agent: found[0] for agent, found in claims.items() if len(found) == 1}
        ambiguous = {agent: tuple(found) for agent, found in claims.items() if len(found) > 1}
        return NameIndex(nodes_of, {node: agent for agent, node in nodes_of.items()}, ambiguous)


@dataclass(frozen=True, slots=True)
class NameIndex:
    """NodeNames by agents' names, and back; ``ambiguous`` names with the nodes that claim them."""

    node_of: Mapping[str, str] = field(default_factory=dict)
    agent_of: Mapping[str, str] = field(default_factory=dict)
    ambiguous: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class MappedSlurm:
    """`SlurmClient` under the agents' names; ``client`` has the NodeNames."""

    def __init__(self, client: SlurmClient, rules: NameRules) -> None:
        self._client = client
        self._rules = rules
        self._index = NameIndex()

    @property
    def user(self) -> str:
        return self._client.user

    async def read_nodes(self, names: Collection[str] | None = None) -> list[SlurmNode]:
        if names is None:
            return self._named(await self._read_all())
        if not self._index.node_of.keys() >= set(names):
            await self._read_all()
        # One name that is ambiguous must not fail the read of all others.
        nodes = [node for one in names if (node := self._index.node_of.get(one))]
        found = self._named(await self._client.read_nodes(nodes)) if nodes else []
        # A node may have another hostname now: then its name is another agent's.
        return [one for one in found if one.name in names]

    async def read_jobs(self, node: str) -> list[SlurmJob]:
        found = await self._find(node)
        return await self._client.read_jobs(found) if found else []

    async def read_controller(self) -> ControllerFacts:
        return await self._client.read_controller()

    async def drain(self, node: str, reason: str, *, guard: Guard) -> None:
        await self._client.drain(await self._expect(node), reason, guard=guard)

    async def undrain(self, node: str, *, guard: Guard) -> None:
        await self._client.undrain(await self._expect(node), guard=guard)

    async def write_reason(self, node: str, words: str, *, guard: Guard) -> None:
        await self._client.write_reason(await self._expect(node), words, guard=guard)

    async def reboot(self, node: str, *, guard: Guard) -> None:
        await self._client.reboot(await self._expect(node), guard=guard)

    async def cancel_reboot(self, node: str) -> None:
        await self._client.cancel_reboot(await self._expect(node))

    def _named(self, nodes: Iterable[SlurmNode]) -> list[SlurmNode]:
        """The nodes under their agents' names, without those whose name is ambiguous."""
        known = self._index.agent_of
        return [
            replace(one, name=known[one.name])
            for one in nodes
            if one.name in known and known[one.name] == self._rules.agent_of(one)
        ]

    async def _read_all(self) -> list[SlurmNode]:
        nodes = await self._client.read_nodes()
        before, self._index = self._index.ambiguous, self._rules.index(nodes)
        if self._index.ambiguous != before:
            for agent in self._index.ambiguous:
                log.warning("name of several slurm nodes", extra={"error": self._refusal(agent)})
        return nodes

    async def _find(self, agent: str) -> str:
        """The NodeName; empty where Slurm has no such node, or several."""
        if agent not in self._index.node_of:
            await self._read_all()
        return self._index.node_of.get(agent, "")

    async def _expect(self, agent: str) -> str:
        found = await self._find(agent)
        if agent in self._index.ambiguous:
            raise Refused(self._refusal(agent))
        if not found:
            raise NotFound(f"Slurm has no node with {_IN_SLURM[self._rules.by]} {agent}")
        return found

    def _refusal(self, agent: str) -> str:
        nodes = ", ".join(sorted(self._index.ambiguous[agent])[:5])
        return (
            f"{agent} means several nodes of Slurm ({nodes}): each has it as "
            f"{_IN_SLURM[self._rules.by]}; set cluster.slurm.names"
        )
