"""Replicas on loopback: real web servers, a membership made by hand, and faulty servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from aggregator.quarantine.state.agent_view import AgentView
from aggregator.quarantine.state.fleet import FleetState
from aggregator.replicas.membership.view import Member, MembershipView
from aggregator.web.event_broker import EventBroker
from tests.web.support import Hands, ListHistory, Served, running_clocks, serving, well

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


class Town:
    """The replicas that are there. Each replica has an identity, and hears when the set changes."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.frozen = ""
        self.settled = True
        self._calls: list[Callable[[], None]] = []

    def joins(self, name: str, page: str = "", **more: Any) -> None:
        since = float(len(self.members))
        member = Member(name, page=page, version="0.1.0", policy_hash="p1", since=since)
        self.members[name] = replace(member, **more)
        self.notify()

    def leaves(self, name: str) -> None:
        del self.members[name]
        self.notify()

    def notify(self) -> None:
        for call in self._calls:
            call()

    def listen(self, call: Callable[[], None]) -> None:
        self._calls.append(call)


class Seat:
    """`Ownership` as one replica of the town has it."""

    def __init__(self, me: str, town: Town) -> None:
        self._me = me
        self._town = town
        self._membership_view = MembershipView(me, {})

    @property
    def membership_view(self) -> MembershipView:
        town = self._town
        members: Mapping[str, Member] = MappingProxyType(dict(town.members))
        fresh = MembershipView(self._me, members, frozen=town.frozen, settled=town.settled)
        if fresh != self._membership_view:
            self._membership_view = fresh
        return self._membership_view

    def owns(self, node: str) -> bool:
        owner = self.membership_view.owner(node)
        return owner is None or owner.name == self._me

    def may_act(self, node: str) -> bool:
        return self.owns(node) and self._town.settled and not self._town.frozen

    def owner_address(self, node: str) -> str:
        owner = self.membership_view.owner(node)
        return owner.address if owner is not None and owner.name != self._me else ""

    def leads(self) -> bool:
        leader = self.membership_view.leader
        return leader is not None and leader.name == self._me

    def on_change(self, call: Callable[[], None]) -> None:
        self._town.listen(call)


def owned(fleet: FleetState, seat: Seat) -> FleetState:
    """This replica's view of the fleet: all Quarantines, and the evidence of its own nodes."""
    mine = replace(fleet, node_summaries={})
    for name, node_summary in fleet.node_summaries.items():
        mine.node_summaries[name] = (
            node_summary
            if seat.owns(name)
            else replace(
                node_summary,
                agent=AgentView(),
                decision=replace(node_summary.decision, incidents={}, hold=None, would=""),
                work=replace(node_summary.work, last_error=""),
                quarantine_view=replace(node_summary.own_quarantine_view(), release_held=""),
            )
        )
    return mine


@dataclass
class Replicas:
    """The replicas that run, and how to stop one."""

    town: Town
    served: dict[str, Served] = field(default_factory=dict)
    stops: dict[str, AsyncExitStack] = field(default_factory=dict)

    async def stop(self, name: str) -> None:
        await self.stops.pop(name).aclose()

    def owner(self, node: str) -> str:
        owner = Seat("", self.town).membership_view.owner(node)
        assert owner is not None
        return owner.name

    def nodes_of(self, name: str) -> list[str]:
        every = next(iter(self.served.values())).fleet.node_summaries
        return [node for node in every if self.owner(node) == name]


@asynccontextmanager
async def replicas(
    fleet: FleetState, names: tuple[str, ...] = ("a", "b", "c"), *, town: Town | None = None
) -> AsyncIterator[Replicas]:
    """Each with its own part of the fleet. Of names that the town knows already none is started."""
    town = town or Town()
    for name in names:
        town.joins(name)
    running = Replicas(town)
    async with AsyncExitStack() as ending:
        for number, name in enumerate(names):
            stack = await ending.enter_async_context(AsyncExitStack())
            seat = Seat(name, town)
            served = await stack.enter_async_context(
                serving(
                    owned(fleet, seat),
                    running_clocks(),
                    history=ListHistory(),
                    feed=EventBroker(epoch=100 + number),
                    shards=seat,
                )
            )
            running.served[name], running.stops[name] = served, stack
            town.members[name] = replace(town.members[name], page=served.url)
        town.notify()
        yield running


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[str]:
    """A server at an address: its URL."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()


def hands() -> Hands:
    """Evidence dated by the clock that the servers run on."""
    return Hands(now=time.monotonic())


def plain_fleet(count: int = 30) -> FleetState:
    fleet = FleetState(mode="drain", limits={"concurrent": "20"})
    for number in range(count):
        well(fleet, f"node-{number}", hands().now)
    return fleet


async def told_until(served: Served, path: str, happened: Callable[[Any], object]) -> Any:
    """Ask until it is so; the answer."""
    async with asyncio.timeout(60):
        while not happened(told := await served.json(path)):  # noqa: ASYNC110 - it asks a server
            await asyncio.sleep(0.05)
        return told


def whole(told: Any) -> bool:
    return bool(told["replicas"]) and not any(one["trouble"] for one in told["replicas"])
