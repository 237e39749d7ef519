"""Whether this node reaches its gateway and the configured targets. Evidence, not blame.

One target that fails is no evidence about this node: the aggregator sees how many nodes it fails
for. Components: ``gateway``, ``gateway-ipv6``, and each target as ``tcp://host:port`` or
``http://host:port/path``. Reasons: ``unreachable`` (no answer; failed), ``no-route`` (the default
route of a gateway that answered is gone; failed), ``never-answered`` (a gateway that never
answered: unknown, since some answer no host; one of IPv6 is left out next to a gateway of IPv4,
because such a node does not use IPv6), ``refused`` (the host answers and the service does not),
``timeout``, ``unresolved`` (no address for its name), ``http-error`` (a status of 400 or more,
except 401 and 403: a server that requires a password is there), ``garbled`` (no HTTP) and
``error``: failed; ``no-procfs``: unknown.
"""

import asyncio
from collections.abc import Mapping, Sequence

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.configfile.units import host_port
from nodeagent.dataclass import dataclass
from nodeagent.model import Observation, Status
from nodeagent.sources.gateway import PATIENCE, GatewayProbe, GatewayReply
from nodeagent.sources.host import HostRoots
from nodeagent.sources.http import HttpError, Url, request
from nodeagent.sources.network import DefaultRoute, default_routes
from nodeagent.sources.tcp_probe import ResolveError, Resolver, connect

NAME = "reach"
#: Runs for which a gateway that drops echoes is taken to be there once the kernel has found it on
#: the link: to query the kernel costs a process.
_TRUSTED_PROBES = 3
#: The kernel's entry of a gateway that never answered is read in the first three runs, and then in
#: each tenth: it takes a process and ten echoes. The entry of one that is not shown is read once an
#: hour, and an echo is sent to it in each tenth run.
_FIRST_PROBES, _LATER_PROBES, _UNUSED_PROBES = 3, 10, 120
_MOST_ADDRESSES = 4
_HTTP_SECONDS = 5.0  # for all of a target's addresses


@dataclass(frozen=True, slots=True)
class Target:
    """A TCP service, or an HTTP one where there is a ``path``. ``str`` is its component."""

    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'http' if self.path else 'tcp'}://{self.authority}{self.path}"


def parse_targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Parses "tcp://host:port", "host:port" or "http://host/path". Raises ValueError."""
    return tuple(dict.fromkeys(_parse_target(text) for text in texts))


def _parse_target(text: str) -> Target:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "tcp", text
    if scheme == "https":
        raise ValueError(f'"{text}": TLS is not supported; "tcp://host:443" tries the port')
    if scheme not in ("tcp", "http"):
        raise ValueError(f'"{text}": only tcp:// and http:// targets are known')
    path = ""
    if scheme == "http":
        rest, _, path = rest.partition("/")
        path = "/" + path
        if any(ord(char) <= 32 or ord(char) >= 127 for char in rest + path):
            raise ValueError(f'"{text}" has a space or another character that belongs in no URL')
        rest = rest if ":" in rest.rpartition("]")[2] else f"{rest}:80"
    host, port = host_port(rest)
    if not host:
        raise ValueError(f'"{text}" has no host')
    return Target(host, port, path)


def evaluate_http(target: Target, status: int, seconds: float) -> Observation:
    """The verdict on an HTTP status. Pure."""
    message = f"answers {status} in {seconds * 1000:.1f} ms"
    if status < 400 or status in (401, 403):
        return Observation(NAME, str(target), Status.OK, "", message)
    return Observation(NAME, str(target), Status.FAILED, "http-error", message)


def evaluate_gateway(
    component: str, route: DefaultRoute, answer: GatewayReply, *, answered: bool
) -> Observation:
    """Pure. ``answered``: this gateway has answered before."""
    message = f"{route.gateway} on {route.interface}: {answer.how}"
    if answer.reachable:
        return Observation(NAME, component, Status.OK, "", message)
    if answered:
        return Observation(NAME, component, Status.FAILED, "unreachable", message)
    return Observation(NAME, component, Status.UNKNOWN, "never-answered", message)


class Reach:
    """All probes run at once; each has its own deadline."""

    def __init__(
        self,
        machine: HostRoots,
        resolver: Resolver,
        targets: Sequence[Target],
        *,
        single_run: bool = False,
    ) -> None:
        self._machine = machine
        self._resolver = resolver
        self._targets = targets
        self._single_run = single_run
        self._probe = GatewayProbe(machine.clock)
        self._answered: dict[str, str] = {}  # component -> the gateway that answered
        self._unanswered: dict[str, int] = {}  # component -> runs, while it never has
        self._trusted: dict[str, int] = {}  # component -> runs without a query of the kernel

    async def run_check(self) -> Report:
        gateways, targets = await asyncio.gather(
            self._gateways(), asyncio.gather(*(self._target(t) for t in self._targets))
        )
        report = [*gateways, *targets]
        return report or Off("no gateway and no targets")

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
        probed = await asyncio.gather(
            *(
                self._gateway(name, route, unused=_may_be_unused(name, found))
                for name, route in found.items()
                if not self._rests(name, found)
            )
        )
        return [*(each for each in probed if not _is_unused(each, found)), *lost]

    async def _gateway(self, component: str, route: DefaultRoute, *, unused: bool) -> Observation:
        gateway = str(route.gateway)
        if self._single_run:
            answer = await self._probe.query_once(route)
            return evaluate_gateway(component, route, answer, answered=False)
        patient = self._worth_patience(component, gateway, unused=unused)
        patience = PATIENCE if patient else 0.0
        answer = await self._probe.query(route, patience=patience)
        if answer.silent:
            self._trusted[component] = _TRUSTED_PROBES
        elif patience == 0 and component in self._trusted and not answer.reachable:
            self._trusted[component] -= 1
            answer = GatewayReply(True, "drops echoes, and answered on the link lately")
        else:
            self._trusted.pop(component, None)
        if answer.reachable:
            self._answered[component] = gateway
        answered = self._answered.get(component) == gateway
        return evaluate_gateway(component, route, answer, answered=answered)

    def _rests(self, component: str, routes: Mapping[str, DefaultRoute]) -> bool:
        """Whether a gateway that is not shown is left alone at this look."""
        if not _may_be_unused(component, routes) or self._single_run:
            return False
        if self._answered.get(component) == routes[component].gateway:
            return False
        probes = self._unanswered.get(component, 0) + 1
        rests = probes > _FIRST_PROBES and probes % _LATER_PROBES != 0
        if rests:
            self._unanswered[component] = probes
        return rests

    def _worth_patience(self, component: str, gateway: str, *, unused: bool) -> bool:
        """Whether to wait: rarely for a gateway that by design drops echoes or never answers."""
        if self._answered.get(component) == gateway:
            return not self._trusted.get(component)
        self._trusted.pop(component, None)  # it was true of another one
        probes = self._unanswered[component] = self._unanswered.get(component, 0) + 1
        every = _UNUSED_PROBES if unused else _LATER_PROBES
        return probes <= _FIRST_PROBES or probes % every == 0

    async def _target(self, target: Target) -> Observation:
        try:
            addresses = await self._resolver.addresses(target.host)
        except ResolveError as error:
            return Observation(NAME, str(target), Status.FAILED, "unresolved", str(error))
        if target.path:
            return await self._http(target, addresses)
        connection = await connect(addresses, target.port, self._machine.clock)
        if connection.reason:
            self._resolver.doubt(target.host)
        status = Status.FAILED if connection.reason else Status.OK
        return Observation(NAME, str(target), status, connection.reason, connection.message)

    async def _http(self, target: Target, addresses: Sequence[str]) -> Observation:
        """The verdict on the first address that takes the request, by the answer's head alone."""
        begun = self._machine.clock.boottime()
        tried = addresses[:_MOST_ADDRESSES]
        last = HttpError("error", "no address")
        for address in tried:
            url = Url(address, target.port, target.path)
            deadline = _HTTP_SECONDS / len(tried)
            try:
                answer = await request(url, host=target.authority, deadline=deadline, limit=None)
            except HttpError as error:
                last = error
                continue
            return evaluate_http(target, answer.status, self._machine.clock.boottime() - begun)
        self._resolver.doubt(target.host)
        return Observation(NAME, str(target), Status.FAILED, last.reason, str(last))


def _is_unused(gateway: Observation, routes: Mapping[str, DefaultRoute]) -> bool:
    """Whether this is an IPv6 gateway that never answered, next to a gateway of IPv4.

    Many networks have IPv6 addresses and routes that no router serves, and "unknown" would stay.
    """
    return gateway.reason == "never-answered" and _may_be_unused(gateway.component, routes)


def _may_be_unused(component: str, routes: Mapping[str, DefaultRoute]) -> bool:
    return component == "gateway-ipv6" and "gateway" in routes


def _component(route: DefaultRoute) -> str:
    is_ipv6 = ":" in (route.gateway or "") and not route.crossed
    return "gateway-ipv6" if is_ipv6 else "gateway"


SPEC = CheckSpec(
    name=NAME,
    sees="a gateway or a service that does not answer this node",
    source="one ICMP echo, the kernel's neighbour table when that is not answered; TCP and "
    "HTTP connections",
    cost="1 ms of CPU every 30 s; 12 ms more at every fourth run for a gateway that drops echoes, "
    "and every 5 minutes for a target's name",
    blind_to="gateways that never answered (one of IPv6 next to one of IPv4 is not even shown); "
    "for up to two minutes, the loss of one that drops echoes; faults of a TCP service after it "
    "took the connection; TLS",
    interval=30.0,
    build=lambda sources, options: Reach(
        sources.machine,
        Resolver(sources.machine.clock),
        options["targets"],
        single_run=sources.single_run,
    ),
    options=(
        Option(
            "targets",
            Kind.TEXTS,
            (),
            'services that every node must reach, such as "tcp://registry.example.org:443" or '
            '"http://filer.example.org/status"',
            parse_targets,
        ),
    ),
)
