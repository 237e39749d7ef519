"""Whether this node reaches its gateway and the configured targets. Evidence, not blame.

One target that fails says nothing of this node: the aggregator sees how many nodes it fails for.
Components: ``gateway``, ``gateway-ipv6``, and each target as ``tcp://host:port``.
Reasons: ``unreachable`` (no answer; failed), ``no-route`` (the default route of a gateway that
answered is gone; failed), ``never-answered`` (a gateway of which nothing was ever heard: unknown,
some answer nobody), ``refused`` (the host answers and the service does not), ``timeout``,
``unresolved`` (no address for its name) and ``error``: failed; ``no-procfs``: unknown.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.disks import SpokenOf
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.gateway import PATIENCE, Answer, GatewayProbe
from nodeagent.sources.machine import Machine
from nodeagent.sources.network import Route, default_routes
from nodeagent.sources.targets import ResolveError, Resolver, connect
from nodeagent.units import host_port

NAME = "reach"


@dataclass(frozen=True, slots=True)
class Target:
    """A TCP service. ``str`` is its component."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


def parse_targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Of "tcp://host:port" or "host:port". Raises ValueError."""
    return tuple(dict.fromkeys(_parse_target(text) for text in texts))


def _parse_target(text: str) -> Target:
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "tcp":
        raise ValueError(f'"{text}": only tcp:// targets are known')
    host, port = host_port(rest if separator else text)
    if not host:
        raise ValueError(f'"{text}" has no host')
    return Target(host, port)


def judge_gateway(component: str, route: Route, answer: Answer, *, answered: bool) -> Observation:
    """Pure. ``answered``: this gateway was heard of before."""
    message = f"{route.gateway} on {route.interface}: {answer.how}"
    if answer.reachable:
        return Observation(NAME, component, Status.OK, "", message)
    if answered:
        return Observation(NAME, component, Status.FAILED, "unreachable", message)
    return Observation(NAME, component, Status.UNKNOWN, "never-answered", message)


class Reach:
    """Everything is asked at once; each question has its own deadline."""

    def __init__(self, machine: Machine, resolver: Resolver, targets: Sequence[Target]) -> None:
        self._machine = machine
        self._resolver = resolver
        self._targets = targets
        self._probe = GatewayProbe(machine.clock)
        self._answered: dict[str, str] = {}  # component -> the gateway that answered
        self._unanswered: dict[str, int] = {}  # component -> looks, while it never has
        self._spoken_of = SpokenOf()

    async def look(self) -> Report:
        gateways, targets = await asyncio.gather(
            self._gateways(), asyncio.gather(*(self._target(t) for t in self._targets))
        )
        report = [*gateways, *targets]
        gone = self._spoken_of.gone(NAME, report)
        return [*report, *gone] if report or gone else Off("no gateway and no targets")

    async def _gateways(self) -> list[Observation]:
        try:
            routes = default_routes(self._machine)
        except OSError as error:
            return [Observation(NAME, "gateway", Status.UNKNOWN, "no-procfs", str(error))]
        found = {_component(route): route for route in routes if route.gateway is not None}
        lost = [
            Observation(NAME, component, Status.FAILED, "no-route", f"there was one via {gateway}")
            for component, gateway in self._answered.items()
            if component not in {_component(route) for route in routes}
        ]
        asked = await asyncio.gather(*(self._gateway(c, route) for c, route in found.items()))
        return [*asked, *lost]

    async def _gateway(self, component: str, route: Route) -> Observation:
        gateway = str(route.gateway)
        patience = PATIENCE if self._worth_patience(component, gateway) else 0.0
        answer = await self._probe.ask(route, patience=patience)
        if answer.reachable:
            self._answered[component] = gateway
        answered = self._answered.get(component) == gateway
        return judge_gateway(component, route, answer, answered=answered)

    def _worth_patience(self, component: str, gateway: str) -> bool:
        """Not at every look for one that never answers: some never do, by design."""
        if self._answered.get(component) == gateway:
            return True
        looks = self._unanswered[component] = self._unanswered.get(component, 0) + 1
        return looks <= 3 or looks % 10 == 0

    async def _target(self, target: Target) -> Observation:
        try:
            addresses = await self._resolver.addresses(target.host)
        except ResolveError as error:
            return Observation(NAME, str(target), Status.FAILED, "unresolved", str(error))
        connection = await connect(addresses, target.port, self._machine.clock)
        if connection.reason:
            self._resolver.doubt(target.host)
        status = Status.FAILED if connection.reason else Status.OK
        return Observation(NAME, str(target), status, connection.reason, connection.message)


def _component(route: Route) -> str:
    return "gateway-ipv6" if ":" in (route.gateway or "") else "gateway"


def build(sources: Sources, options: Mapping[str, Any]) -> Reach:
    machine = sources.machine
    return Reach(machine, Resolver(machine.clock), options["targets"])


SPEC = CheckSpec(
    name=NAME,
    sees="a gateway or a service that does not answer this node",
    source="one ICMP echo, the kernel's neighbour table when that is not answered; TCP connections",
    cost="1 ms of CPU every 30 s; 12 ms for a gateway that drops echoes, and for a target's name "
    "every 5 minutes",
    blind_to="gateways that never answered; whatever a service does after it took the connection",
    interval=30.0,
    deadline=20.0,
    build=build,
    options=(
        Option(
            "targets",
            Kind.TEXTS,
            (),
            'services that every node must reach, such as "tcp://registry.example.org:443"',
            parse_targets,
        ),
    ),
)
