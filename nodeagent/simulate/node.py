"""One simulated node: a real latch behind a real uplink, and a machine that is played."""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from nodeagent.clock import Clock
from nodeagent.commands import CommandRefused
from nodeagent.configfile.units import counted
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, dump, restore
from nodeagent.model import ClearedBy, Clearing, Observation, Status
from nodeagent.repair.gpu_use import GpuUse
from nodeagent.simulate import machine
from nodeagent.simulate.events import Act, Away, Clear, Fault, ScenarioReboot
from nodeagent.simulate.events import ScenarioState as PlayedState
from nodeagent.sources.measurements import Measured
from nodeagent.uplink import codec
from nodeagent.uplink.dialer import Dialer
from nodeagent.uplink.uplink import Uplink
from nodeagent.version import VERSION

#: The sign by which a fault with a ``for`` ends, by the event that ends it. A boot is no sign but
#: an act.
_SIGNS = {
    ClearedBy.GPU_RESET: "gpu-reset",
    ClearedBy.EXPIRY: "expiry",
    ClearedBy.OPERATOR: "operator",
}

Undo = Callable[[], None]


class SimulatedNode:
    """It is the ``Host`` of its stream. The latch lives as long as the process: there is no disk.

    ``draw`` gives a number from [0, 1); ``jitter`` the same, for delays that may differ from run to
    run. ``on_change`` is called when its stream has come or gone, or could not be opened.
    """

    def __init__(
        self,
        name: str,
        *,
        gpus: int,
        seed: int,
        address: str,
        dialer: Dialer,
        clock: Clock,
        draw: Callable[[], float],
        jitter: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self._seed = seed
        self._address = address
        self._dialer = dialer
        self._clock = clock
        self._draw = draw
        self._jitter = jitter
        self._on_change = on_change
        self._uuids = [machine.gpu_uuid(name, gpu, seed) for gpu in range(gpus)]
        self._instance = _unique()
        self._boots = 0
        self._seq = 0
        self._latch = Latch(boot_id=machine.boot_id(name, 0, seed), epoch=_unique())
        self.observe_faults()
        self._uplink = self._make_uplink()
        self._task: asyncio.Task[None] | None = None
        self._cut_at = clock.boottime()

    # -- its agent -----------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and stay connected."""
        if self._task is None:
            self._uplink = self._make_uplink()
            self._on_change()
            self._task = asyncio.create_task(self._uplink.run(), name=f"uplink of {self.name}")

    def cut(self) -> "asyncio.Task[None] | None":
        """End the stream without a message, as when the machine dies; its task, which is ending."""
        task, self._task = self._task, None
        if task is not None:
            self._cut_at = self._clock.boottime()
            task.cancel()
            self._on_change()
        return task

    def stop(self) -> None:
        """Send the pending changes, then end the stream in order."""
        self._uplink.stop()

    @property
    def running(self) -> "asyncio.Task[None] | None":
        """The task of its uplink, while its agent is there."""
        return self._task

    @property
    def streaming(self) -> bool:
        return self._task is not None and self._uplink.streaming

    @property
    def address(self) -> str:
        """The address of its stream, or of the last attempt."""
        return self._uplink.state.address

    @property
    def since(self) -> float:
        """When it got its stream, or lost it: boottime seconds."""
        return self._cut_at if self._task is None else self._uplink.state.since

    @property
    def trouble(self) -> str:
        """Why there is no stream; empty when there is one, or none is wanted."""
        return "" if self._task is None or self.streaming else self._uplink.state.error

    # -- its events -----------------------------------------------------------------------------

    def do(self, act: Act) -> Undo | None:
        """Let ``act`` happen now. Gives its undo. Raises ScenarioError when it cannot happen."""
        match act:
            case Fault():
                return self._fault(act)
            case PlayedState():
                return self.send_message(act)
            case Clear():
                self._clear(act)
            case Away():
                self.cut()
                return self.start
            case ScenarioReboot():
                self.cut()
                self._boot()
                return self.start
        return None

    def _fault(self, fault: Fault) -> Undo:
        now = self._clock.boottime()
        gpu = fault.gpu if fault.gpu is not None else int(self._draw() * len(self._uuids))
        found = machine.sightings(
            fault, self._uuids, gpu, seq=self._seq + 1, at=now, clock=self._clock
        )
        self._seq += 1
        self._latch.apply(found, now)
        self._uplink.wake()
        [seen] = found

        def undo() -> None:
            if seen.cleared_by is ClearedBy.REBOOT:
                self.cut()
                self._boot()
                self.start()
            else:
                self._apply([Clearing(seen.component, _SIGNS[seen.cleared_by], seen.code)])

        return undo

    def send_message(self, state: PlayedState) -> Undo:
        key = (state.check, state.component)
        known = self._latch.components.get(key)
        before = Observation(*key, Status.OK, "", "well again")
        if known is not None:
            before = Observation(*key, known.status, known.reason, known.message)
        now = Observation(*key, state.status, state.reason, state.message)
        self._apply([now])
        return lambda: self._apply([before])

    def _clear(self, sign: Clear) -> None:
        component = "" if sign.gpu is None else self._uuids[sign.gpu]
        if sign.how == "operator":
            self._latch.clear_by_operator(component=component, code=sign.code)
            self._uplink.wake()
            return
        about = [
            fault
            for fault in self._latch.faults.values()
            if component in ("", fault.component) and sign.code in ("", fault.code)
        ]
        self._apply([Clearing(fault.component, sign.how, fault.code) for fault in about])

    def _apply(self, batch: Sequence[Observation | Clearing]) -> None:
        self._latch.apply(batch, self._clock.boottime())
        self._uplink.wake()

    def _boot(self) -> None:
        """Take another boot id, and keep the state that a real agent's state file keeps."""
        self._boots += 1
        saved = dump(State(self._latch), self._clock.boottime())
        boot = machine.boot_id(self.name, self._boots, self._seed)
        self._latch = restore(saved, boot_id=boot, new_epoch=_unique).latch
        self._instance = _unique()
        self._seq = 0
        self.observe_faults()

    def observe_faults(self) -> None:
        self._latch.apply(machine.all_well(self._uuids), self._clock.boottime())

    def _make_uplink(self) -> Uplink:
        return Uplink(
            address=self._address,
            dialer=self._dialer,
            host=self,
            hello=self._hello,
            clock=self._clock,
            random=self._jitter,
            on_change=self._on_change,
        )

    def _hello(self) -> Any:
        return codec.hello(
            node=self.name,
            boot_id=self._latch.boot_id,
            epoch=self._latch.epoch,
            last_acked=self._latch.last_acked,
            version=VERSION,
            checks=machine.INFOS,
            traits=machine.TRAITS,
            instance=self._instance,
            boottime=self._clock.boottime(),
        )

    # -- Host ----------------------------------------------------------------------------------

    @property
    def latch(self) -> Latch:
        return self._latch

    def persist(self) -> None:
        """A simulated node has no file to save to."""

    def quiesced_for(self) -> float:
        return 0.0

    def measurements(self) -> Sequence[Measured]:
        """Those of a machine at work."""
        minute = int(self._clock.boottime() // 60)
        return machine.measured(self.name, self._uuids, minute)

    def clear_faults(self, component: str, code: str) -> str:
        if not component and not code:
            raise CommandRefused("name a component, a code, or both")
        count = self._latch.clear_by_operator(component=component, code=code)
        self._uplink.wake()
        return f"cleared {count}" if count else "no latched fault matched"

    async def quiesce(self, seconds: float) -> str:
        raise CommandRefused(f"no driver to let go of for {seconds:g} s: this node is simulated")

    async def run_checks(self, names: Sequence[str]) -> str:
        strange = sorted(set(names) - set(machine.CHECKS))
        if strange:
            raise CommandRefused(
                f"no running check is called {', '.join(strange)}; "
                f"there are {', '.join(machine.CHECKS)}"
            )
        return f"ran {counted(len(names or machine.CHECKS), 'check')} (simulated)"

    async def gpu_use(self, *, pods: bool) -> GpuUse:
        """Nobody works on it."""
        del pods
        return GpuUse()

    @property
    def orders(self) -> None:
        """It obeys none."""
        return None

    def name_peers(self, addresses: Sequence[str]) -> None:
        """It has no network of its own to probe them from."""


def _unique() -> str:
    """A name that no earlier run has used, whatever the seed: a restart is another agent."""
    return os.urandom(8).hex()
