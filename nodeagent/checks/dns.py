"""Whether names resolve on this node, and whether its DNS servers answer.

Components: each name of ``names``, resolved as every program resolves it (getaddrinfo, in a child),
and ``dns://ADDRESS`` for each server of /etc/resolv.conf, queried for the first of the names.
Without names the query is for the root's servers, and any answer counts (a server may refuse that
query). Reasons: ``unresolved`` (no address for the name), ``timeout``, ``unreachable``, ``closed``
(no process listens), ``error``, ``servfail`` and ``refused`` (the server does not answer for the
name): failed; ``slow``: degraded; ``no-resolv-conf``: unknown.

One server that fails is no evidence about this node: the aggregator sees how many nodes it fails
for.
"""

import asyncio
from collections.abc import Sequence

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.model import Observation, Status
from nodeagent.sources.dns import Reply, nameservers, query, question
from nodeagent.sources.host import HostRoots
from nodeagent.sources.tcp_probe import ResolveError, resolve

NAME = "dns"
_FAILING = ("servfail", "refused")
#: While all is well the file is read again after this number of runs: it is on a disk.
_READ_EVERY = 30


def parse_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Host names, each once. Raises ValueError."""
    for text in texts:
        if not text.strip(".") or set(text) & set(" /:@\t"):
            raise ValueError(f'"{text}" is no host name')
        try:
            question(text, 0)
        except UnicodeError as error:  # a ValueError too, with words for programmers
            raise ValueError(f'"{text}" is no host name') from error
    return tuple(dict.fromkeys(texts))


def evaluate_server(server: str, name: str, reply: Reply, *, slow: float) -> Observation:
    """Pure. ``name`` is the name in the query; empty: the root. ``slow`` is in seconds."""
    component = f"dns://{server}"
    if reply.trouble:
        return Observation(NAME, component, Status.FAILED, reply.trouble, reply.message)
    if name and reply.code in _FAILING:
        message = f"answers {reply.code} for {name}"
        return Observation(NAME, component, Status.FAILED, reply.code, message)
    return _by_time(component, reply.message, reply.seconds, slow)


def _by_time(component: str, message: str, seconds: float, slow: float) -> Observation:
    if seconds >= slow:
        return Observation(NAME, component, Status.DEGRADED, "slow", message)
    return Observation(NAME, component, Status.OK, "", message)


class Dns:
    """All queries run at once. ``port`` is the servers'."""

    def __init__(
        self, machine: HostRoots, names: Sequence[str], *, slow: float, port: int = 53
    ) -> None:
        self._machine = machine
        self._names = names
        self._slow = slow
        self._port = port
        self._servers: tuple[str, ...] = ()
        self._read_in = 0  # runs until resolv.conf is read again

    async def run_check(self) -> Report:
        unreadable = self._read_servers()
        report = [
            *unreadable,
            *await asyncio.gather(*(self._name(name) for name in self._names)),
            *await asyncio.gather(*(self._server(server) for server in self._servers)),
        ]
        if any(observation.status is Status.FAILED for observation in report):
            self._read_in = 0  # the site may have changed its servers
        return report or Off("no DNS server and no names")

    def _read_servers(self) -> list[Observation]:
        if self._read_in:
            self._read_in -= 1
            return []
        try:
            self._servers = nameservers(self._machine)
        except FileNotFoundError:
            self._servers = ()  # a node without DNS servers: its choice
        except OSError as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-resolv-conf", str(error))]
        self._read_in = _READ_EVERY
        return []

    async def _name(self, name: str) -> Observation:
        begun = self._machine.clock.boottime()
        try:
            addresses = await resolve(name)
        except ResolveError as error:
            return Observation(NAME, name, Status.FAILED, "unresolved", str(error))
        taken = self._machine.clock.boottime() - begun
        return _by_time(name, f"{addresses[0]} in {taken:.2f} s", taken, self._slow)

    async def _server(self, server: str) -> Observation:
        name = self._names[0] if self._names else ""
        reply = await query(server, name, self._machine.clock.boottime, port=self._port)
        return evaluate_server(server, name, reply, slow=self._slow)


SPEC = CheckSpec(
    name=NAME,
    sees="names that do not resolve, and DNS servers that do not answer this node",
    source="one UDP question to each server of /etc/resolv.conf; getaddrinfo in a child process",
    cost="0.2 ms of CPU every 60 s, and 20 ms for each name",
    blind_to="the cluster's DNS as pods see it; DNS over TCP; without names: a server that answers "
    "and resolves no name",
    build=lambda sources, options: Dns(sources.machine, options["names"], slow=options["slow"]),
    options=(
        Option(
            "names",
            Kind.TEXTS,
            (),
            'names that every node must resolve, such as "registry.example.org"',
            parse_names,
        ),
        Option("slow", Kind.DURATION, 2.0, "an answer that takes so long is degraded"),
    ),
)
