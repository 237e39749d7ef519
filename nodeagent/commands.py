"""What others may ask of the agent: the aggregator by the stream, people by the socket."""

from collections.abc import Sequence
from typing import Protocol

from nodeagent.evidence.latch import Latch
from nodeagent.keeper import Keeper
from nodeagent.scheduler import Scheduler
from nodeagent.sources.nvml import Nvml

#: NVML is let go of for a driver upgrade or a reset. Longer than this is a forgotten request.
LONGEST_QUIESCE = 24 * 3600.0


class CommandRefused(Exception):
    """A command cannot be carried out; the text goes back to who gave it."""


class Host(Protocol):
    """What a stream speaks for: a node's latch, and whoever carries its commands out."""

    @property
    def latch(self) -> Latch: ...

    def persist(self) -> None: ...

    def quiesced_for(self) -> float: ...

    def clear_faults(self, component: str, code: str) -> str: ...

    async def quiesce(self, seconds: float) -> str: ...

    async def run_checks(self, names: Sequence[str]) -> str: ...


class Commands:
    """Carries commands out. Results are sentences for people."""

    def __init__(self, *, keeper: Keeper, scheduler: Scheduler, nvml: Nvml) -> None:
        self._keeper = keeper
        self._scheduler = scheduler
        self._nvml = nvml

    @property
    def latch(self) -> Latch:
        return self._keeper.latch

    def persist(self) -> None:
        """Save the latch: it is about to be sent."""
        self._keeper.persist()

    def quiesced_for(self) -> float:
        """Seconds for which NVML is still let go of; 0 when it is in use."""
        return self._nvml.quiesced_for

    def clear_faults(self, component: str, code: str) -> str:
        """A person says that it is over. Raises CommandRefused when neither is named."""
        if not component and not code:
            raise CommandRefused("name a component, a code, or both")
        count = self._keeper.latch.clear_by_operator(component=component, code=code)
        self._keeper.changed_by_hand()
        return f"cleared {count}" if count else "nothing matched: nothing was latched"

    async def quiesce(self, seconds: float) -> str:
        """Let go of the driver for a while; 0 takes it up again. Raises CommandRefused."""
        if not 0 <= seconds <= LONGEST_QUIESCE:
            raise CommandRefused(f"{seconds:g} s: expected 0 to {LONGEST_QUIESCE:g}")
        if not seconds:
            self._nvml.resume()
            return "NVML is used again"
        if not await self._nvml.quiesce(seconds):
            raise CommandRefused(
                "a worker hangs in the driver and cannot be ended: the driver stays in use until "
                "the node is rebooted"
            )
        return f"NVML is let go of for {seconds:g} s"

    async def run_checks(self, names: Sequence[str]) -> str:
        """Run checks now (all when empty). Raises CommandRefused for a name that is none."""
        known = self._scheduler.checks
        strange = sorted(set(names) - set(known))
        if strange:
            raise CommandRefused(
                f"no running check is called {', '.join(strange)}; there are {', '.join(known)}"
            )
        hung = await self._scheduler.run_now(names)
        if hung:
            raise CommandRefused(f"no result by their deadline: {', '.join(hung)}")
        return f"ran {len(names or known)} checks"
