"""How full the kernel's network tables are: neighbours (ARP, IPv6) and tracked connections.

All figures are read from ``/proc``; no table is walked. Columns of ``/proc/net/stat``: the kernel's
net/core/neighbour.c and net/netfilter/nf_conntrack_standalone.c; hexadecimal, a line per CPU.
"""

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import read_whole, small_number

__all__ = ["NetTable", "conntrack", "neighbours", "parse_stat"]


@dataclass(frozen=True, slots=True)
class NetTable:
    """``refused`` counts the entries that found no place in it since the boot."""

    entries: int
    limit: int
    refused: int


def neighbours(machine: HostRoots, family: str) -> NetTable | None:
    """The table of "ipv4" or "ipv6".

    Without that family, or outside the host's network namespace, it is None.

    All namespaces share the one table; only the first may see its limit.
    """
    file = {"ipv4": "arp_cache", "ipv6": "ndisc_cache"}[family]
    stat = parse_stat(_text(f"{machine.proc}/net/stat/{file}"))
    limit = small_number(f"{machine.proc}/sys/net/{family}/neigh/default/gc_thresh3")
    if limit is None or "entries" not in stat:
        return None
    # Each line has the whole table's entries, and its own CPU's events.
    return NetTable(stat["entries"][0], limit, sum(stat.get("table_fulls", [])))


def conntrack(machine: HostRoots) -> NetTable | None:
    """The table, or None where the kernel tracks no connections."""
    folder = f"{machine.proc}/sys/net/netfilter"
    entries, limit = (small_number(f"{folder}/nf_conntrack_{name}") for name in ("count", "max"))
    if entries is None or not limit:
        return None
    stat = parse_stat(_text(f"{machine.proc}/net/stat/nf_conntrack"))
    return NetTable(entries, limit, sum(stat.get("drop", [])))


def parse_stat(text: str) -> dict[str, list[int]]:
    """Each column's numbers, a CPU each. Empty when it is no such table."""
    head, *rows = [line.split() for line in text.splitlines()] or [[]]
    try:
        numbers = [[int(word, 16) for word in row] for row in rows if row]
    except ValueError:
        return {}
    if not numbers or any(len(row) != len(head) for row in numbers):
        return {}
    return {
        name: list(column) for name, column in zip(head, zip(*numbers, strict=True), strict=True)
    }


def _text(path: str) -> str:
    """Whole: the kernel has a line for each CPU, possible ones too."""
    try:
        return read_whole(path).decode("ascii", "replace")
    except OSError:
        return ""
