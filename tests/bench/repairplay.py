"""Repairs of the played fleet: resets and reboots that take their time, fail, or mend nothing.

It knows machines and no rule of the aggregator. No published rate of repairs that fail was found,
so the shares are estimates, on the high side. Sources of the rest:
- a GPU that has fallen off the bus can't be reset in software (Xid 79; docs of EKS's agent);
- a reset is refused while another program has the GPU open (NVSentinel, issue 1690);
- a reset takes 2 minutes at most, a reboot up to 20, on bare metal 30 (NVSentinel, ADR-019);
- a node without load looks well after a repair that has mended nothing (NVSentinel, issues 695 and
  1427): half of such faults show again only under load.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from aggregator.cluster.port import Guard
from aggregator.policy.repairs import GPU_RESET, REBOOT, TEST, TICKET
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    ConfiguredRepairer,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)

#: The mildest repair that mends a fault, by its cause: shares of a reset and of a reboot. The rest
#: is a person's. Of other causes all of it is.
MENDS = {
    "gpu": (0.45, 0.3),
    "hbm": (0.7, 0.1),
    "sram": (0.6, 0.15),
    "gsp": (0.5, 0.4),
    "ssd": (0.0, 0.3),
    "nic": (0.0, 0.3),
    "switch-cable": (0.0, 0.1),
}
_NO_RESET = "xid:79"
#: Orders that are refused, and reboots from which a node does not come back.
REFUSED, NEVER_BACK = 0.05, 0.02
RESET_TAKES, REBOOT_TAKES, TEST_TAKES = (30.0, 120.0), (240.0, 1200.0), (900.0, 1800.0)
#: The share of unmended faults that show again without load, and when (seconds): after the repair,
#: else after the node is at work again.
SHOWS_IDLE, IDLE_AFTER, LOAD_AFTER = 0.5, (60.0, 900.0), (600.0, 3600.0)
#: Seconds from the order until it counts as failed.
TIMEOUTS = {GPU_RESET: 900.0, REBOOT: 2400.0, TICKET: 3600.0, TEST: 7200.0}
RULES = RepairRules(mode=RepairMode.REPAIR, concurrent=10, pool_concurrent=10)
#: Those of `limits.domain_labels`.
DOMAINS = ("network.topology.nvidia.com/leaf", "topology.kubernetes.io/rack")


class Fault(Protocol):
    """A fault that was lived, as far as a repair matters."""

    @property
    def cause(self) -> str: ...
    @property
    def codes(self) -> frozenset[str]: ...


class Bay(Protocol):
    """The fleet, as far as repairs change it. Times are seconds since the play began."""

    def now(self) -> float: ...
    def at(self, when: float, act: Callable[[], None]) -> None: ...
    def domains(self, node: str) -> tuple[str, ...]: ...
    def broken(self, node: str) -> Sequence[Fault]:
        """The node's present faults that do not end by themselves."""
        ...

    def reset_gpus(self, node: str, mended: Sequence[Fault]) -> None: ...
    def reboot(self, node: str, down: float, mended: Callable[[], Sequence[Fault]]) -> None: ...
    def show_again(self, node: str, fault: Fault) -> None: ...
    def call_person(self, node: str) -> None: ...


@dataclass
class Tally:
    """The orders and tests so far. ``over_limit`` and ``twice`` say what must never be."""

    orders: int = 0
    tests: int = 0
    failed: int = 0
    over_limit: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)


@dataclass
class _Order:
    order: RepairOrder
    answer: RepairAnswer


class Workshop:
    """Carries out orders, each operation once. It outlives the aggregator's processes."""

    def __init__(self, bay: Bay, rng: random.Random, *, verify: str = "") -> None:
        self.tally = Tally()
        self._bay = bay
        self._rng = rng
        self._orders: dict[str, _Order] = {}
        self._running: dict[str, str] = {}
        self._rungs: dict[tuple[str, str], str] = {}
        self._mends_by: dict[int, str] = {}
        #: Faults that no repair has mended and that show under load alone, by node.
        self._hidden: dict[str, list[Fault]] = {}
        self._verify = verify

    def settings(self) -> RepairSettings:
        """The aggregator's configuration."""
        rules = replace(RULES, verify=self._verify)
        kinds = (GPU_RESET, REBOOT, TICKET, *([TEST] if self._verify else []))
        return RepairSettings(
            rules,
            {
                kind: ConfiguredRepairer(
                    PlayedRepairer(self), TIMEOUTS[kind], note_end=self._note_end
                )
                for kind in kinds
            },
            DOMAINS,
        )

    def take(self, order: RepairOrder) -> RepairAnswer:
        """An order, or the question how it goes."""
        known = self._orders.get(order.operation)
        if known is not None:
            return known.answer
        made = self._orders[order.operation] = _Order(order, RepairAnswer(AnswerState.TAKEN))
        match order.repair:
            case "ticket":
                made.answer = RepairAnswer(AnswerState.DONE)
                self._bay.call_person(order.node)
            case "test":
                self.tally.tests += 1
                self._after(TEST_TAKES, lambda: self._end_test(made))
            case _:
                self._check(order)
                self._begin(made)
        return made.answer

    def note_released(self, node: str) -> None:
        """The node has work again: what a repair has only hidden shows."""
        for fault in self._hidden.pop(node, ()):
            self._later(LOAD_AFTER, node, fault)

    def _check(self, order: RepairOrder) -> None:
        self.tally.orders += 1
        rung = (order.quarantine, order.repair)
        if rung in self._rungs:
            self.tally.twice.append(f"{order.node}: {order.repair} of one quarantine")
        self._rungs[rung] = order.operation
        if order.node in self._running:
            self.tally.twice.append(f"{order.node}: two repairs at once")
        self._running[order.node] = order.operation
        if len(self._running) > RULES.concurrent:
            self.tally.over_limit.append(f"{len(self._running)} at once")
        taken = [one for node in self._running for one in self._bay.domains(node)]
        if len(taken) != len(set(taken)):
            self.tally.over_limit.append(f"{order.node}: two in a domain")

    def _note_end(self, node: str, operation: str) -> None:
        if self._running.get(node) == operation:
            del self._running[node]

    def _begin(self, made: _Order) -> None:
        order = made.order
        if self._rng.random() < REFUSED:
            self._fail(made, "refused")
        elif order.repair == GPU_RESET:
            self._after(RESET_TAKES, lambda: self._end_reset(made))
        elif self._rng.random() < NEVER_BACK:
            self._bay.reboot(order.node, float("inf"), tuple)
        else:
            down = self._rng.uniform(*REBOOT_TAKES)
            self._bay.reboot(order.node, down, lambda: self._mended(order.node, REBOOT))

    def _fail(self, made: _Order, why: str) -> None:
        self.tally.failed += 1
        made.answer = RepairAnswer(AnswerState.FAILED, why)

    def _end_reset(self, made: _Order) -> None:
        self._bay.reset_gpus(made.order.node, self._mended(made.order.node, GPU_RESET))
        made.answer = RepairAnswer(AnswerState.DONE)

    def _end_test(self, made: _Order) -> None:
        """The test is played as one that sees each fault of these causes."""
        if self._bay.broken(made.order.node):
            self._fail(made, "the test failed")
        else:
            made.answer = RepairAnswer(AnswerState.DONE)

    def _mended(self, node: str, repair: str) -> list[Fault]:
        """Those that the repair mends. The others show again at once, or under load."""
        mended: list[Fault] = []
        for fault in self._bay.broken(node):
            if self._needs(fault) in ((GPU_RESET,) if repair == GPU_RESET else (GPU_RESET, REBOOT)):
                mended.append(fault)
            elif self._rng.random() < SHOWS_IDLE:
                self._later(IDLE_AFTER, node, fault)
            else:
                self._hidden.setdefault(node, []).append(fault)
        return mended

    def _needs(self, fault: Fault) -> str:
        """The mildest repair that mends it: drawn once."""
        if id(fault) not in self._mends_by:
            reset, reboot = MENDS.get(fault.cause, (0.0, 0.0))
            if _NO_RESET in fault.codes:
                reset, reboot = 0.0, reset + reboot
            chance = self._rng.random()
            needs = GPU_RESET if chance < reset else REBOOT if chance < reset + reboot else TICKET
            self._mends_by[id(fault)] = needs
        return self._mends_by[id(fault)]

    def _later(self, between: tuple[float, float], node: str, fault: Fault) -> None:
        self._after(between, lambda: self._bay.show_again(node, fault))

    def _after(self, between: tuple[float, float], act: Callable[[], None]) -> None:
        self._bay.at(self._bay.now() + self._rng.uniform(*between), act)


class PlayedRepairer:
    """Implements `Repairer`."""

    sends_twice = True

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        return self._workshop.take(order)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        return self._workshop.take(order)

    async def cancel(self, order: RepairOrder) -> bool:
        return False
