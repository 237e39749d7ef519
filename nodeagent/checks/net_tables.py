"""The kernel's tables of neighbours and of tracked connections, which large clusters overflow.

Reasons: ``full`` (``fail_above`` or more of its limit, or an entry found no place in it within ten
minutes: failed), ``filling`` (``degrade_above``: degraded). Components: ``neighbours-ipv4``,
``neighbours-ipv6``, ``conntrack``. A node whose table is full loses connections here and there,
which looks like a sick network; the remedy is a larger limit (net.ipv4.neigh.default.gc_thresh3,
net.netfilter.nf_conntrack_max).
"""

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.counter_window import CounterIncreases
from nodeagent.dataclass import dataclass
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.net_tables import NetTable, conntrack, neighbours

NAME = "net-tables"
_WINDOW = 600.0


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Per cent of a table's limit."""

    degrade_above: float
    fail_above: float


def evaluate(component: str, table: NetTable, refused: int, limits: TableLimits) -> Observation:
    """Pure. ``refused``: entries that found no place within the window."""
    share = 100.0 * table.entries / table.limit if table.limit else 100.0
    message = f"{table.entries} of {table.limit} entries, {share:.0f} %"
    if refused:
        message += f"; {refused} found no place in {_WINDOW / 60:.0f} minutes"
    if refused or share >= limits.fail_above:
        return Observation(NAME, component, Status.FAILED, "full", message)
    if share >= limits.degrade_above:
        return Observation(NAME, component, Status.DEGRADED, "filling", message)
    return Observation(NAME, component, Status.OK, "", message)


class NetTables:
    def __init__(self, machine: HostRoots, limits: TableLimits) -> None:
        self._machine = machine
        self._limits = limits
        self._refused = CounterIncreases(_WINDOW)

    async def run_check(self) -> Report:
        tables = self._tables()
        now = self._machine.clock.boottime()
        refused = self._refused.add(now, {name: t.refused for name, t in tables.items()})
        report = [evaluate(n, table, refused[n], self._limits) for n, table in tables.items()]
        return report or Off("no table of the host's network")

    def _tables(self) -> dict[str, NetTable]:
        found = {
            "neighbours-ipv4": neighbours(self._machine, "ipv4"),
            "neighbours-ipv6": neighbours(self._machine, "ipv6"),
            "conntrack": conntrack(self._machine),
        }
        return {name: table for name, table in found.items() if table is not None}


SPEC = CheckSpec(
    name=NAME,
    sees="a neighbour table or a connection tracking table that is full or nearly so",
    source="/proc/net/stat, /proc/sys/net: counts and limits",
    cost="0.3 ms of CPU every 60 s",
    blind_to="which pod fills it; that permanent neighbours do not count against the limit; the "
    "connection tables of pods' own namespaces",
    deadline=5.0,
    build=lambda sources, options: NetTables(sources.machine, TableLimits(**options)),
    options=(
        Option("degrade_above", Kind.PERCENT, 80.0, "of the limit: degraded from here on"),
        Option("fail_above", Kind.PERCENT, 95.0, "of the limit: failed from here on"),
    ),
)
