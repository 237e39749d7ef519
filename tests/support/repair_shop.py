"""Machines that are repaired: repairers that outlive the process which gives them orders."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from aggregator.cluster.operations import attempt_of
from aggregator.cluster.port import Guard, RepairState
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    ConfiguredRepairer,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.repairers.gpu_use import GpuUseRequests, UnlessGpuInUse
from tests.support.invariants import Watch
from tests.support.memory_cluster import MemoryCluster, World

TIMEOUT = 1800.0


def _running_time() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # a test prepares its world
        return 0.0


@dataclass
class Shop:
    """All that happened to the machines, whichever process ordered it.

    ``boots``: whether a reboot that was ordered happens. ``wrong``: orders that must never be.
    """

    world: World
    boots: bool = True
    orders: list[RepairOrder] = field(default_factory=list)
    #: Operations that were carried out: an idempotent repairer does each once.
    done: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    answer: RepairAnswer = field(default_factory=lambda: RepairAnswer(AnswerState.TAKEN))
    look: RepairAnswer = field(default_factory=lambda: RepairAnswer(AnswerState.TAKEN))
    #: The same for tests: one verdict for each, the last of them for all that follow.
    verdicts: list[RepairAnswer] = field(
        default_factory=lambda: [RepairAnswer(AnswerState.DONE, "passed")]
    )
    cancelled: list[str] = field(default_factory=list)
    cancels: bool = False
    on_cancel: Callable[[], object] = lambda: None
    #: The answer to a removal of what an order left, and each removal that was asked for.
    clean: RepairAnswer = field(default_factory=lambda: RepairAnswer(AnswerState.DONE))
    cleaned: list[str] = field(default_factory=list)
    #: Whether a removal gets no answer.
    hangs: bool = False
    #: Whether the other controller has finished.
    over: bool = True
    ended: list[str] = field(default_factory=list)
    on_boot: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        """Watch the world, unless a state machine does."""
        watch = self.world.watch or Watch(self.world, _running_time)
        self.wrong = watch.wrong

    def take(self, order: RepairOrder) -> RepairAnswer:
        """An order arrives; the watch of the world checks what must hold then."""
        self.orders.append(order)
        if order.repair == "test":
            return RepairAnswer(AnswerState.TAKEN)
        if (
            self.answer.state in (AnswerState.TAKEN, AnswerState.DONE)
            and order.operation not in self.done
        ):
            self.done.append(order.operation)
            if order.repair == "reboot" and self.boots:
                asyncio.get_running_loop().call_later(60, self._boot, order.node)
        return self.answer

    def verdict(self, order: RepairOrder) -> RepairAnswer:
        """The end of a test: a verdict for each, in the order of the tests."""
        tests = [one.operation for one in self.orders if one.repair == "test"]
        number = list(dict.fromkeys(tests)).index(order.operation)
        return self.verdicts[min(number, len(self.verdicts) - 1)]

    def remove(self, order: RepairOrder) -> RepairAnswer:
        """The leftovers of the order are removed: while its attempt has no end yet."""
        # Its Quarantine may have been taken away by force.
        attempts = map(attempt_of, self.world.operations.by_name.values())
        ends = {one.operation: one.state for one in attempts}
        if ends.get(order.operation) not in (RepairState.ORDERING, RepairState.ORDERED):
            self.wrong.append(f"{order.operation}: removed after its end was written")
        self.cleaned.append(order.operation)
        return self.clean

    def _boot(self, name: str) -> None:
        node = self.world.nodes[name]
        self.world.set_node(replace(node, boot_id=f"{node.boot_id}x"))
        self.on_boot(name)


class ShopRepairer:
    """One process's way to the shop. Its calls are killed with the process, like the cluster's."""

    def __init__(
        self, shop: Shop, cluster: MemoryCluster | None = None, *, sends_twice: bool = False
    ) -> None:
        self.sends_twice = sends_twice
        self._shop = shop
        self.cluster = cluster

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        assert self.cluster is not None
        cluster, shop = self.cluster, self._shop
        act = cluster.act(
            "repair",
            order.node,
            lambda: shop.take(order),
            order=order,
            repeatable=self.sends_twice,
        )
        return await cluster._call("repair", act, guard)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        return self._shop.verdict(order) if order.repair == "test" else self._shop.look

    async def cancel(self, order: RepairOrder) -> bool:
        self._shop.cancelled.append(order.operation)
        self._shop.on_cancel()
        return self._shop.cancels

    async def is_over(self, order: RepairOrder) -> bool:
        return self._shop.over

    async def clean_up(self, order: RepairOrder) -> RepairAnswer:
        assert self.cluster is not None
        if self._shop.hangs:
            await asyncio.Event().wait()
        return await self.cluster._call("clean up", lambda: self._shop.remove(order))

    def note_end(self, node: str, operation: str) -> None:
        self._shop.ended.append(operation)


def repair_settings(
    *repairers: tuple[str, ShopRepairer],
    mode: RepairMode = RepairMode.REPAIR,
    collected: Callable[[str, str], Mapping[str, str]] = lambda _node, _quarantine: {},
    **rules: object,
) -> RepairSettings:
    return RepairSettings(
        rules=RepairRules(mode=mode, **rules),  # type: ignore[arg-type]  # a test's words
        repairers={
            kind: ConfiguredRepairer(
                one, TIMEOUT, one.clean_up, is_over=one.is_over, note_end=one.note_end
            )
            for kind, one in repairers
        },
        domain_labels=("rack",),
        collected=collected,
    )


def unless_in_use(settings: RepairSettings, gpu_use: GpuUseRequests) -> RepairSettings:
    """The same, with the agents' report before each order that interrupts work."""
    checked = {
        kind: replace(one, repairer=UnlessGpuInUse(one.repairer, gpu_use))
        for kind, one in settings.repairers.items()
        if kind != "ticket"
    }
    return replace(settings, repairers={**settings.repairers, **checked})
