"""The faults of a fleet of 8-GPU nodes, by published rates: a seed in, a schedule out.

It knows machines and no rule of the aggregator: the faults, how each shows on the node (kernel log
lines, the values that the checks' sources read at their next look), when it ends by itself, and
whether the node is in truth sick. Sources:
- the rate of node failures, 6.5 in 1,000 node-days: "Revisiting Reliability in Large-Scale Machine
  Learning Research Clusters" (RSC-1), 2024;
- the mix: root causes of the interruptions of the 54 days of Llama 3 405B's pre-training (The Llama
  3 Herd of Models, table 5): `COUNTS`. Software, operators and host maintenance are left out;
- the Xid of each fault: NVIDIA's Xid catalogue. The share of each Xid is our estimate;
- lines that an application causes, flaps, restarts and full disks: estimates, on the high side;
- a link that is down for longer than RDMA retries (`RDMA_GIVES_UP`) has ended the jobs on it: it is
  a fault, and a flap otherwise.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

DAY = 86400.0
GPUS = 8
PORTS = 8
#: NCCL's default of 20: 4.096 us * 2**20, seven times.
RDMA_GIVES_UP = 30.1
NODE_FAULTS = 6.5 / 1000
COUNTS = {
    "gpu": 148,
    "hbm": 72,
    "switch-cable": 35,
    "sram": 19,
    "gsp": 17,
    "nic": 7,
    "silent-corruption": 6,
    "thermal": 6,
    "ssd": 3,
    "power-supply": 3,
    "chassis": 2,
    "io-board": 2,
    "cpu": 2,
    "memory": 2,
}
#: Lines that an application or its user causes, for each node and day.
APPLICATION_LINES = 40 / 1000
FLAPS = 20 / 1000
FULL_DISKS = 2 / 1000
AGENT_RESTARTS = 10 / 1000
REBOOTS = 10 / 1000
#: Seconds between two looks of a source: when a change is seen. Lines are seen at once.
LOOKS = {
    "gpu-inventory": 60.0,
    "gpu-recovery": 60.0,
    "nic-link": 10.0,
    "infiniband": 30.0,
    "disk-write": 60.0,
    "disk-readonly": 15.0,
    "disk-space": 60.0,
    "disk-nvme": 60.0,
    "disk-mounts": 30.0,
    "dns": 60.0,
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line in the kernel log.

    ``ends`` is the event that ends its fault, as far as the node knows. ``registers``: the first of
    those in an NVLink 5 line.
    """

    code: str
    component: str
    ends: str
    verdict: str = ""
    registers: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """The status that a source reads: ok, degraded or failed."""

    check: str
    component: str
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent ends, and is back after ``down`` seconds: another version, say, or a node's boot.

    ``down`` is infinite where it stays away until the node is repaired.
    """

    down: float
    version: str = ""
    driver: str = ""
    boot: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """A person resets the GPU."""

    component: str


Sign = Line | State | Agent | Reset


@dataclass(frozen=True, slots=True)
class Story:
    """One thing that happens to one node, and how it shows: (seconds after ``at``, sign).

    ``sick``: the node should take no work until it is repaired, or until ``ends`` (seconds after
    ``at``) where it ends by itself. ``explicit``: its hardware or driver says plainly and at once
    that it is fatal. ``mass`` names the event that is not this node's own; ``unseen``: no sign on
    the node tells of it.
    """

    at: float
    node: int
    cause: str
    sick: bool
    signs: tuple[tuple[float, Sign], ...]
    explicit: bool = False
    ends: float = math.inf
    mass: str = ""
    unseen: bool = False


def gpu(number: int) -> str:
    return f"GPU-{number}"


class Machine:
    """Draws the faults of single nodes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def line(self, code: int, component: str, ends: str, verdict: str = "") -> tuple[float, Sign]:
        """Read from the log and sent within some milliseconds."""
        return self.rng.uniform(0.005, 0.025), Line(f"xid:{code}", component, ends, verdict)

    def state(
        self, check: str, component: str, status: str, reason: str = "", *, after: float = 0.0
    ) -> tuple[float, Sign]:
        """Seen at the source's next look."""
        seen = after + self.rng.uniform(0.0, LOOKS[check])
        return seen, State(check, component, status, reason)

    def one_gpu(self) -> str:
        return gpu(self.rng.randrange(GPUS))

    def pick(self, shares: dict[str, float]) -> str:
        return self.rng.choices(list(shares), list(shares.values()))[0]

    # -- hardware ----------------------------------------------------------------------

    def hardware(self, at: float, node: int) -> Story:
        cause = self.pick({name: float(count) for name, count in COUNTS.items()})
        makers: dict[str, Callable[[], tuple[list[tuple[float, Sign]], bool]]] = {
            "gpu": self._gpu,
            "hbm": self._hbm,
            "sram": self._sram,
            "gsp": self._gsp,
            "switch-cable": self._cable,
            "nic": self._nic,
            "ssd": self._ssd,
        }
        if cause == "hbm" and self.rng.random() < 0.2:
            # Contained: the row is remapped, the application ends, the GPU goes on.
            one = self.one_gpu()
            signs = [self.line(94, one, "expiry"), self.line(63, one, "expiry")]
            return Story(at, node, "hbm-contained", sick=False, signs=tuple(signs))
        if cause in makers:
            signs, explicit = makers[cause]()
        elif cause in ("silent-corruption", "thermal"):
            signs, explicit = [], False
        else:  # no power, no processor: the node is gone, and its agent with it
            signs, explicit = [(0.0, Agent(math.inf))], False
        unseen = not any(isinstance(sign, Line | State) for _, sign in signs)
        return Story(
            at, node, cause, sick=True, signs=tuple(signs), explicit=explicit, unseen=unseen
        )

    def _gpu(self) -> tuple[list[tuple[float, Sign]], bool]:
        one = self.one_gpu()
        kinds = {"bus": 0.4, "nvlink": 0.15, "halt": 0.2, "reset": 0.1, "gone": 0.1, "slow": 0.05}
        match self.pick(kinds):
            case "bus":
                return [
                    self.line(79, one, "reboot"),
                    self.line(154, one, "reboot", "node-reboot"),
                    self.state("gpu-inventory", one, "failed", "lost"),
                ], True
            case "nvlink":
                return [self.line(74, one, "gpu_reset")], True
            case "halt":
                return [self.line(self.rng.choice([46, 62]), one, "gpu_reset")], True
            case "reset":
                return [
                    self.line(109, one, "gpu_reset"),
                    self.line(154, one, "gpu_reset", "gpu-reset"),
                    self.state("gpu-recovery", one, "failed", "reset"),
                ], True
            case "gone":  # without a line in the log
                return [self.state("gpu-inventory", one, "failed", "missing")], False
        return [], False  # slow, or wrong at times: no sign tells of it

    def _hbm(self) -> tuple[list[tuple[float, Sign]], bool]:
        one = self.one_gpu()
        if self.rng.random() < 0.6:
            return [self.line(48, one, "gpu_reset"), self.line(64, one, "gpu_reset")], True
        return [self.line(95, one, "gpu_reset")] * self.rng.randint(1, 5), True

    def _sram(self) -> tuple[list[tuple[float, Sign]], bool]:
        one = self.one_gpu()
        return [
            self.line(48, one, "gpu_reset"),
            self.line(154, one, "gpu_reset", "drain-and-reset"),
        ], True

    def _gsp(self) -> tuple[list[tuple[float, Sign]], bool]:
        one, code = self.one_gpu(), 119 if self.rng.random() < 0.8 else 120
        repeats = [6.0 * number for number in range(self.rng.randint(1, 8))]
        return [(self.line(code, one, "gpu_reset")[0] + t, Line(f"xid:{code}", one, "gpu_reset"))
                for t in repeats], True  # fmt: skip

    def _cable(self) -> tuple[list[tuple[float, Sign]], bool]:
        port = f"mlx5_{self.rng.randrange(PORTS)}/1"
        match self.pick({"down": 0.6, "errors": 0.2, "link": 0.2}):
            case "down":
                return [self.state("infiniband", port, "failed", "link-down")], False
            case "errors":
                return [self.state("infiniband", port, "degraded", "errors")], False
        return [self.state("nic-link", "eth0", "failed", "link-down")], False

    def _nic(self) -> tuple[list[tuple[float, Sign]], bool]:
        port = f"mlx5_{self.rng.randrange(PORTS)}/1"
        if self.rng.random() < 0.7:
            return [self.state("infiniband", port, "failed", "missing")], False
        return [self.state("nic-link", "eth0", "failed", "link-down")], False

    def _ssd(self) -> tuple[list[tuple[float, Sign]], bool]:
        if self.rng.random() < 0.5:
            return [
                self.state("disk-write", "/var/lib", "failed", "io-error"),
                self.state("disk-readonly", "/", "failed", "read-only"),
            ], False
        return [self.state("disk-nvme", "nvme1", "failed", "dead")], False

    # -- what is no fault of the node ----------------------------------------------------

    def application(self, at: float, node: int, *, nodes: int) -> Iterator[Story]:
        """A program's own errors: once, in a loop of restarts, or in a job of many nodes."""
        rng = self.rng
        code = int(self.pick({"13": 0.2, "31": 0.5, "43": 0.15, "45": 0.1, "68": 0.05}))
        many = [gpu(number) for number in range(rng.choice([1, 1, 4, 8]))]
        again, hosts = 1, [node]
        chance = rng.random()
        if chance < 0.05:
            again = rng.randint(5, 20)
        elif chance < 0.07:
            hosts = [(node + number) % nodes for number in range(rng.randint(8, 64))]
        starts = [number * rng.uniform(120, 600) for number in range(again)]
        for host in hosts:
            signs = tuple(
                (start + rng.uniform(0.005, 0.5), Line(f"xid:{code}", one, "expiry"))
                for start in starts
                for one in many
            )
            yield Story(at, host, "application", sick=False, signs=signs)

    def flap(self, at: float, node: int) -> Story:
        """A link that goes and comes back by itself, mostly within seconds."""
        lasts = min(self.rng.lognormvariate(math.log(4.0), 0.8), 240.0)
        check, port = "nic-link", "eth0"
        reason = "link-down"
        if self.rng.random() < 0.5:
            check, port, reason = "infiniband", f"mlx5_{self.rng.randrange(PORTS)}/1", "link-down"
        looks = LOOKS[check]
        first = self.rng.uniform(0.0, looks)
        signs: list[tuple[float, Sign]] = []
        if first < lasts:  # else it is over before any look
            back = first + looks * math.ceil((lasts - first) / looks)
            signs = [
                (first, State(check, port, "failed", reason)),
                (back, State(check, port, "ok")),
            ]
        sick = lasts > RDMA_GIVES_UP
        return Story(at, node, "flap", sick=sick, signs=tuple(signs), ends=lasts)

    def full_disk(self, at: float, node: int) -> Story:
        """A job fills the disk, and empties it when it ends. New pods would fail meanwhile."""
        lasts = self.rng.uniform(300.0, 7200.0)
        full = self.state("disk-space", "/", "failed", "full")
        signs = (full, self.state("disk-space", "/", "ok", after=lasts))
        return Story(at, node, "full-disk", sick=True, signs=signs, ends=lasts)

    def restart(self, at: float, node: int) -> Story:
        signs = ((0.0, Agent(self.rng.uniform(5.0, 60.0))),)
        return Story(at, node, "agent-restart", sick=False, signs=signs)

    def reboot(self, at: float, node: int) -> Story:
        signs = ((0.0, Agent(self.rng.uniform(240.0, 600.0), boot=True)),)
        return Story(at, node, "reboot", sick=False, signs=signs)

    def repair_takes(self) -> float:
        """Seconds from the node's being given to people until it is back."""
        return max(1800.0, self.rng.lognormvariate(math.log(4 * 3600.0), 0.8))


def background(nodes: int, days: float, rng: random.Random) -> list[Story]:
    """All faults of single nodes in ``days``, each kind by its own rate."""
    machine = Machine(rng)

    def times(rate: float) -> Iterator[tuple[float, int]]:
        at = 0.0
        while True:
            at += rng.expovariate(rate * nodes / DAY)
            if at >= days * DAY:
                return
            yield at, rng.randrange(nodes)

    stories = [machine.hardware(at, node) for at, node in times(NODE_FAULTS)]
    for at, node in times(APPLICATION_LINES):
        stories += machine.application(at, node, nodes=nodes)
    stories += [machine.flap(at, node) for at, node in times(FLAPS)]
    stories += [machine.full_disk(at, node) for at, node in times(FULL_DISKS)]
    stories += [machine.restart(at, node) for at, node in times(AGENT_RESTARTS)]
    stories += [machine.reboot(at, node) for at, node in times(REBOOTS)]
    return stories
