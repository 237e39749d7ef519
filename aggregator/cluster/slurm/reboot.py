"""Reboots by Slurm itself (`scontrol reboot`) of nodes whose drain is ours.

The order has neither ASAP nor a next state: Slurm keeps the drain then, also after the boot. With
``nextstate=DOWN`` it takes the drain back, and the node is DOWN, which no UNDRAIN ends
(docs/decisions/0036-reboots-and-tests-on-slurm.md).
"""

from dataclasses import replace
from functools import partial
from typing import Protocol

from aggregator.cluster.port import UNGUARDED, Conflict, Guard, GuardRefused, Refused
from aggregator.cluster.reboots import RebootProgress, RebootState
from aggregator.cluster.slurm.client import SlurmClient
from aggregator.cluster.slurm.drain import FOREIGN, OurDrain, Whose, whose, words_of_slurm
from aggregator.cluster.slurm.state import SlurmNode
from aggregator.runtime.text import visible

#: `scontrol reboot` leaves such nodes out, with exit code 0.
_LEFT_OUT = frozenset({"POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DRAIN"})
_TIMED_OUT = "reboot timed out"


class Drains(Protocol):
    """Our records of drains, and the nodes as Slurm shows them now."""

    @property
    def changing(self) -> set[str]:
        """Nodes of which a drain is being written: their state is between two."""

    async def now(self, name: str) -> SlurmNode:
        """Raises `NotFound`."""

    async def recorded(self, name: str) -> OurDrain | None: ...

    async def recorded_text(self, name: str) -> str: ...

    async def record(
        self, name: str, ours: OurDrain | None, *, guard: Guard, before: str | None = None
    ) -> str: ...


class SlurmReboots:
    """Implements `NodeReboots`. Our record of the drain has the operation of its last reboot."""

    def __init__(self, drains: Drains, client: SlurmClient) -> None:
        self._drains = drains
        self._client = client

    async def order(self, node: str, operation: str, *, guard: Guard) -> None:
        self._drains.changing.add(node)
        try:
            await self._order(node, operation, guard)
        finally:
            self._drains.changing.discard(node)

    async def _order(self, node: str, operation: str, guard: Guard) -> None:
        found, ours = await self._drains.now(node), await self._drains.recorded(node)
        if ours is None or whose(found, ours) is not Whose.OURS:
            reason = visible(found.reason, 200)
            raise Refused(f'Slurm has {node} as {found.shown}, "{reason}": the drain is not ours')
        if ours.reboot == operation and _has_begun(found, ours):
            return
        await self._expect_free(node, found)
        again = replace(ours, reboot=operation, booted=found.boot_time)
        await self._drains.record(node, again, guard=guard)
        await self._client.reboot(node, guard=guard)
        after = await self._drains.now(node)
        if not after.is_rebooting and after.boot_time <= found.boot_time:
            raise Refused(f"Slurm took the reboot of {node}, and shows {after.shown}")

    async def _expect_free(self, node: str, found: SlurmNode) -> None:
        """Raises `Conflict` while the node has work, or can't be rebooted yet."""
        if found.is_rebooting:
            raise Conflict(f"Slurm reboots {node} at the order of somebody else")
        if found.flags & _LEFT_OUT or found.base == "FUTURE":
            raise Refused(f"Slurm reboots no node in the state {found.shown}")
        if found.is_at_work or await self._client.read_jobs(node):
            raise Conflict(f"a job is on {node} ({found.shown})")
        if not found.boot_time or "NOT_RESPONDING" in found.flags:
            raise Conflict(f"slurmd of {node} does not answer Slurm ({found.shown})")

    async def progress(self, node: str, operation: str) -> RebootProgress:
        found, ours = await self._drains.now(node), await self._drains.recorded(node)
        if found.is_rebooting:
            return RebootProgress(RebootState.UNDER_WAY, f"Slurm shows {found.shown}")
        if ours is None or ours.reboot != operation:
            return RebootProgress(RebootState.NONE)
        if found.boot_time > ours.booted:
            return RebootProgress(RebootState.DONE, f"Slurm shows {found.shown}, in another boot")
        if _TIMED_OUT in (*words_of_slurm(found, ours), ours.before):
            text = f"{_TIMED_OUT}: {node} was not back within ResumeTimeout of slurm.conf"
            return RebootProgress(RebootState.FAILED, text)
        if not found.boot_time:  # slurmd has to register anew
            return RebootProgress(RebootState.UNDER_WAY, f"Slurm shows {found.shown}")
        text = f"the reboot of {node} was cancelled in Slurm: it shows {found.shown}"
        return RebootProgress(RebootState.FAILED, text)

    async def cancel(self, node: str, operation: str) -> bool:
        before = await self._drains.recorded_text(node)
        found, ours = await self._drains.now(node), await self._drains.recorded(node)
        ordered = ours is not None and ours.reboot == operation
        if ours is None or not ordered or not found.waits_for_reboot:
            return False
        self._drains.changing.add(node)
        try:
            # Slurm 22.05 removes the drain with the reboot. Until it is there again no reading of
            # the node, of a later process either, may take that as a person's RESUME.
            waiting = replace(ours, at=0)
            text = await self._drains.record(node, waiting, guard=UNGUARDED, before=before)
            await self._client.cancel_reboot(node)
            found = await self._drains.now(node)
            if not found.has_drain:
                guard = Guard(partial(self._expect_record, node, text))
                await self._client.drain(node, ours.reason, guard=guard)
                found = await self._drains.now(node)
            again = replace(ours, at=found.reason_at, reboot="", booted=0)
            seen = again if whose(found, again) is Whose.OURS else FOREIGN
            await self._drains.record(node, seen, guard=UNGUARDED, before=text)
        finally:
            self._drains.changing.discard(node)
        return not found.is_rebooting

    async def _expect_record(self, node: str, text: str) -> None:
        """Raises `GuardRefused` where a later controller has undone the drain, or drained anew."""
        if await self._drains.recorded_text(node) != text:
            raise GuardRefused(f"the record of the drain of {node} was written in between")


def _has_begun(found: SlurmNode, ours: OurDrain) -> bool:
    return found.is_rebooting or found.boot_time > ours.booted
