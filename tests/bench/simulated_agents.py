"""Thousands of simulated agents of nodes that exist: certificates, processes, faults by node."""

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from aggregator.ingest.os_limits import connections_allowed
from tests.bench.small import small_or
from tests.controlplane.waiting import wait_until
from tests.support.pki import Authority
from tests.support.simulator import Simulator

FAULT = "xid:79"
#: Files that a simulator has open beside its connections.
_OTHER_FILES = 600
#: Seconds without a further stream after which the missing agents count as refused.
STALLED_S = 60.0


class AgentsRefused(Exception):
    """Some agents get no stream: a benchmark that waits for all of them has no result."""


def most_agents() -> int:
    """How many agents one aggregator accepts here, and one simulator can play.

    Raises this process's limit of open files, which both inherit, to what the system allows. A
    small form keeps it: the fork servers of `make test` serve no process with other limits.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = small_or(soft, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    accepted = connections_allowed(most)
    return accepted if most == resource.RLIM_INFINITY else min(accepted, most - _OTHER_FILES)


def until_all_stream(
    streaming: Callable[[], int],
    count: int,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until so many agents have a stream.

    Raises AgentsRefused when no further one has come for `STALLED_S` seconds, or in that time.
    """
    most, grown_at = -1, clock()
    end = grown_at + timeout_s
    while (now := streaming()) != count:
        at = clock()
        if now > most:
            most, grown_at = now, at
        if at > end or at - grown_at > STALLED_S:
            raise AgentsRefused(
                f"{now:,} of {count:,} agents have a stream, and none has come for "
                f"{at - grown_at:.0f} s. The aggregator refuses agents beyond its limit of open "
                f"files (here {connections_allowed():,} agents, see ulimit -Hn): set BENCH_NODES "
                "lower, or raise the limit."
            )
        sleep(0.1)


def certify(authority: Authority, nodes: Sequence[str]) -> None:
    """A client certificate for each node, beside the authority's own."""
    for node in nodes:
        authority.client(node, dns=[node])


class Crowd:
    """Simulators that come one after the other; each node is of one of them."""

    def __init__(
        self, folder: Path, where: Sequence[str | Path], *, before: Sequence[str] = ()
    ) -> None:
        """``where``: options that say where agents connect, and how; ``before``: `Simulator`'s."""
        self.folder = folder
        self._before = before
        self._where = list(where)
        self.simulators: list[Simulator] = []
        self._of: dict[str, Simulator] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._of)

    def close(self) -> None:
        for simulator in self.simulators:
            simulator.close()

    def come(self, nodes: Sequence[str], *, timeout_s: float = 600) -> float:
        """Start agents for ``nodes``; seconds until each has a stream."""
        number = len(self.simulators)
        listed = self.folder / f"names-{number}"
        listed.write_text("\n".join(nodes) + "\n")
        begun = time.monotonic()
        log = self.folder / f"simulator-{number}.log"
        simulator = Simulator(["--names", listed, *self._where], log=log, before=self._before)
        self.simulators.append(simulator)
        self._of |= dict.fromkeys(nodes, simulator)

        def streaming() -> int:
            if simulator.process.poll() is not None:
                raise AgentsRefused(f"the simulator ended: {simulator.log()[-2000:]}")
            return simulator.streaming

        until_all_stream(streaming, len(nodes), timeout_s=timeout_s)
        return time.monotonic() - begun

    def all_here(self, *, timeout_s: float) -> None:
        """Wait until every node has a stream (again)."""
        wait_until(
            lambda: self.streaming == len(self._of),
            what=lambda: f"all streams: {self.streaming} of {len(self._of)}",
            timeout_s=timeout_s,
        )

    @property
    def streaming(self) -> int:
        return sum(simulator.streaming for simulator in self.simulators)

    def fall_ill(self, nodes: Sequence[str], *, at_s: float = 0.0) -> None:
        """A fault on each of the nodes, all at once."""
        by: dict[int, list[str]] = defaultdict(list)
        for node in nodes:
            by[self.simulators.index(self._of[node])].append(node)
        for number, mine in by.items():
            at = {"at": f"{at_s * 1000:.0f}ms"} if at_s else {}
            self.simulators[number].inject(nodes=mine, fault=FAULT, **at)
