"""No false recovery: a fault that the machine still has stays in force, whichever part forgets it.

A machine whose truth is known, its agent (the real latch, its state file, the contract's bytes),
and an aggregator that keeps the cluster's objects. Agents are restarted, lose their memory, the
machine is reimaged, late streams of an earlier boot come, aggregators start anew.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.health.model import Delta, Snapshot
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, dump, restore
from nodeagent.model import ClearedBy, Clearing, FaultSighting, Observation, Status
from nodeagent.uplink import codec as agent_wire
from tests.aggregator.test_windows import Aggregator
from tests.support import decoded
from tests.support.replica import hello

ENDS = {
    "xid:46": ClearedBy.GPU_RESET,
    "xid:79": ClearedBy.REBOOT,
    "xid:54": ClearedBy.OPERATOR,
}
GPUS = ("GPU-1", "GPU-2")


class Machine:
    """``truth`` has the machine's faults: (code, component)."""

    def __init__(self) -> None:
        self.truth: set[tuple[str, str]] = set()
        self.boots, self.memories, self.seq = 1, 1, 0
        self.latch = self._fresh()
        self.earlier: tuple[str, Snapshot] | None = None
        self.forgot = False

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def _fresh(self) -> Latch:
        return Latch(boot_id=self.boot_id, epoch=f"memory-{self.memories}")

    def happens(self, step: tuple[str, ...], now: float) -> None:
        match step:
            case ("fault", code, gpu):
                self.seq += 1
                self.truth.add((code, gpu))
                sighting = FaultSighting(code, "xid", gpu, "", "kmsg", self.seq, now, ENDS[code])
                self.latch.apply([sighting], now)
            case ("link", status):
                self.truth.discard(("nic-link:link-down", "eth0"))
                if status == "FAILED":
                    self.truth.add(("nic-link:link-down", "eth0"))
                self.latch.apply([self._link(status)], now)
            case ("blind",):  # the check can't look; the truth is what it was
                self.latch.apply([self._link("UNKNOWN")], now)
            case ("reset", gpu):
                self.truth -= {
                    (code, of) for code, of in self.truth if (code, of) == ("xid:46", gpu)
                }
                self.latch.apply([Clearing(gpu, "gpu-reset")], now)
            case ("operator", code, gpu):
                self.truth.discard((code, gpu))
                if not self.latch.clear_by_operator(component=gpu, code=code):
                    self.latch.apply([Clearing(gpu, "operator", code)], now)
            case ("agent restarts",):
                document = dump(State(self.latch), now)
                self.latch = restore(document, boot_id=self.boot_id, new_epoch=None).latch
            case ("agent forgets",):
                self.memories += 1
                self.forgot = True
                self.latch = self._fresh()
            case ("reboot",):
                document = dump(State(self.latch), now)
                self._boot(now)
                self.latch = restore(
                    document, boot_id=self.boot_id, new_epoch=lambda: f"memory-{self.memories}"
                ).latch
                self.looks(now)
            case ("reimaged",):  # a boot, and nothing on the disk
                self._boot(now)
                self.latch = self._fresh()
                self.looks(now)

    def _boot(self, now: float) -> None:
        self.earlier = (self.boot_id, self.snapshot(now))
        self.boots += 1
        self.forgot = False
        self.memories += 1
        self.seq = 0
        self.truth = {(code, of) for code, of in self.truth if code == "xid:54"}

    def looks(self, now: float) -> None:
        down = any(code.startswith("nic-link") for code, _ in self.truth)
        self.latch.apply([self._link("FAILED" if down else "OK")], now)

    @staticmethod
    def _link(status: str) -> Observation:
        reason = {"FAILED": "link-down", "UNKNOWN": "no-sysfs"}.get(status, "")
        return Observation("nic-link", "eth0", Status[status], reason)

    def snapshot(self, now: float) -> Snapshot:
        message = agent_wire.snapshot(self.latch.snapshot(now), now, 0.0)
        return decoded.snapshot(message.snapshot, at=now)

    def delta(self, now: float) -> Delta:
        out = self.latch.delta(now)
        return Delta() if out is None else decoded.delta(agent_wire.delta(out, now).delta, at=now)


def attach(aggregator: Aggregator, boot_id: str, epoch: str, told: Snapshot, now: float) -> None:
    aggregator.bench.health.greet(replace(hello("n1", boot_id), spool_epoch=epoch))
    aggregator.fold(told, now)


def spoken(aggregator: Aggregator, machine: Machine, now: float) -> None:
    """The machine's agent on a new stream; its messages are acknowledged."""
    attach(aggregator, machine.boot_id, machine.latch.epoch, machine.snapshot(now), now)
    machine.latch.acknowledge(machine.latch.last_seq)


def restarted(aggregator: Aggregator, machine: Machine, now: float) -> None:
    told = machine.snapshot(now)
    aggregator.restart(told, now, boot=machine.boot_id, epoch=machine.latch.epoch)


faults = st.tuples(st.just("fault"), st.sampled_from(sorted(ENDS)), st.sampled_from(GPUS))
links = st.tuples(st.just("link"), st.sampled_from(["OK", "FAILED", "FAILED"]))
ends = st.one_of(
    st.tuples(st.just("reset"), st.sampled_from(GPUS)),
    st.tuples(st.just("operator"), st.sampled_from(sorted(ENDS)), st.sampled_from(GPUS)),
)
troubles = st.sampled_from(
    [
        ("agent restarts",),
        ("agent forgets",),
        ("reboot",),
        ("reimaged",),
        ("late stream",),
        ("aggregator restarts",),
        ("blind",),
        ("nothing",),
    ]
)
stories = st.lists(
    st.tuples(
        st.one_of(faults, faults, links, ends, troubles, troubles, troubles),
        st.sampled_from([1.0, 40.0, 200.0, 700.0]),  # seconds before it
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(stories)
def test_what_is_still_wrong_stays_in_force_whoever_forgets_it(
    many: list[tuple[tuple[str, ...], float]],
) -> None:
    machine, aggregator, now = Machine(), Aggregator(), 1000.0
    spoken(aggregator, machine, now)
    unacked: set[tuple[str, str]] = set()  # wrong, and said to the aggregator for long enough
    for step, passed in many:
        now += passed
        aggregator.at(now)
        unacked |= {key for key in machine.truth if key[0].startswith("nic-link")} & in_force(
            aggregator
        )
        machine.happens(step, now)
        match step[0]:
            case "agent restarts" | "agent forgets" | "reboot" | "reimaged":
                spoken(aggregator, machine, now)
            # With a lost memory as well, the same fault in both boots can't be told from a boot:
            # then the kubelet's boot id holds the release (decide/release_checks.py).
            case "late stream" if machine.earlier is not None and not machine.forgot:
                boot, told = machine.earlier
                attach(aggregator, boot, "of then", told, now)
                now += 120.0
                aggregator.at(now)
                machine.looks(now)  # every check does within these minutes
                spoken(aggregator, machine, now)
            case "aggregator restarts":
                restarted(aggregator, machine, now)
                machine.latch.acknowledge(machine.latch.last_seq)
            case _:
                aggregator.fold(machine.delta(now), now)
                machine.latch.acknowledge(machine.latch.last_seq)
        if step[0] == "fault":
            unacked.add((step[1], step[2]))
        unacked &= machine.truth
        assert unacked <= in_force(aggregator), (step, unacked)


def in_force(aggregator: Aggregator) -> set[tuple[str, str]]:
    return {item.key for one in aggregator.bench.acting for item in one.in_force}


@settings(max_examples=60, deadline=None)
@given(stories)
def test_what_is_mended_is_over_in_the_end(many: list[tuple[tuple[str, ...], float]]) -> None:
    """Every incident ends: all well, said by the agent or a person, and time to prove it."""
    machine, aggregator, now = Machine(), Aggregator(), 1000.0
    spoken(aggregator, machine, now)
    for step, passed in many:
        now += passed
        aggregator.at(now)
        machine.happens(step, now)
        if step[0] == "aggregator restarts":
            restarted(aggregator, machine, now)
        else:
            spoken(aggregator, machine, now)
    for gpu in GPUS:
        for code in ENDS:
            machine.happens(("operator", code, gpu), now)
    machine.happens(("reboot",), now)
    spoken(aggregator, machine, now)
    aggregator.at(now + 1)
    aggregator.at(now + 3600)
    assert aggregator.bench.acting == []
    assert aggregator.quarantine is None


def test_a_late_stream_of_an_earlier_boot_is_no_boot() -> None:
    """Even if the agent has lost its memory of the fault: the present boot is the fault's own."""
    machine, aggregator = Machine(), Aggregator()
    spoken(aggregator, machine, 1000.0)
    machine.happens(("reboot",), 1100.0)
    spoken(aggregator, machine, 1100.0)
    machine.happens(("fault", "xid:79", "GPU-1"), 1200.0)
    aggregator.fold(machine.delta(1200.0), 1200.0)
    machine.happens(("agent forgets",), 1300.0)
    spoken(aggregator, machine, 1300.0)
    assert machine.earlier is not None
    boot, told = machine.earlier
    attach(aggregator, boot, "of then", told, 1400.0)
    assert in_force(aggregator) == set()
    spoken(aggregator, machine, 1500.0)
    assert in_force(aggregator) == {("xid:79", "GPU-1")}
    aggregator.at(50_000.0)
    assert in_force(aggregator) == {("xid:79", "GPU-1")}
