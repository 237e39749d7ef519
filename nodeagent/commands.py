"""Commands to the agent: the aggregator sends them by the stream, people by the socket."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from nodeagent.configfile.units import counted
from nodeagent.evidence.latch import Latch
from nodeagent.recorder import EvidenceRecorder
from nodeagent.scheduler import Scheduler
from nodeagent.sources.measurements import Measured
from nodeagent.sources.nvml import Nvml
from nodeagent.sources.peers import Peers

#: NVML is released for a driver upgrade or a reset. A longer request was forgotten.
LONGEST_QUIESCE = 24 * 3600.0


log = logging.getLogger(__name__)


class CommandRefused(Exception):
    """A command cannot be carried out; the text goes back to its sender."""


class GpuUseReport(Protocol):
    """The users of this node's GPUs, in words; ``unknown``: why that can't be seen, or empty."""

    @property
    def users(self) -> Sequence[str]: ...

    @property
    def unknown(self) -> str: ...

    @property
    def pods(self) -> Any:
        """A `PodGpus` of ``repair``, which is above this module."""


class Orders(Protocol):
    """Takes the aggregator's orders to act on the node. Messages are those of the contract."""

    @property
    def has_due(self) -> bool: ...

    def new_stream(self) -> None: ...

    def stream_ended(self) -> None: ...

    def order(self, order: Any) -> None: ...

    def cancel(self, operation_id: str) -> None: ...

    def permission(self, message: Any) -> None: ...

    async def acknowledged(self, operation_id: str) -> None: ...

    async def due(self) -> Sequence[Any]: ...

    def sent(self, message: Any) -> None: ...


class Host(Protocol):
    """The node behind a stream: its latch, and the code that carries its commands out."""

    @property
    def latch(self) -> Latch: ...

    def persist(self) -> None: ...

    def quiesced_for(self) -> float: ...

    def measurements(self) -> Sequence[Measured]: ...

    def clear_faults(self, component: str, code: str) -> str: ...

    async def quiesce(self, seconds: float) -> str: ...

    async def run_checks(self, names: Sequence[str]) -> str: ...

    async def gpu_use(self, *, pods: bool) -> GpuUseReport: ...

    def name_peers(self, addresses: Sequence[str]) -> None: ...

    @property
    def orders(self) -> Orders | None: ...


class Commands:
    """Carries commands out. Results are sentences for people."""

    def __init__(
        self,
        *,
        recorder: EvidenceRecorder,
        scheduler: Scheduler,
        nvml: Nvml,
        peers: Peers,
        gpu_use: Callable[[bool], Awaitable[GpuUseReport]],
        measurements: Callable[[], Sequence[Measured]] = tuple,
    ) -> None:
        #: None where the configuration allows no order: the modules are not loaded then.
        self.orders: Orders | None = None
        self._recorder = recorder
        self._scheduler = scheduler
        self._nvml = nvml
        self._peers = peers
        self._gpu_use = gpu_use
        self._measurements = measurements
        if recorder.quiesced_until:  # an earlier agent's order of this boot
            nvml.pause_until(recorder.quiesced_until)

    @property
    def latch(self) -> Latch:
        return self._recorder.latch

    def persist(self) -> None:
        """Save the latch, because it is about to be sent."""
        self._recorder.persist()

    def quiesced_for(self) -> float:
        """Seconds for which NVML is still released; 0 when it is in use."""
        return self._nvml.quiesced_for

    async def gpu_use(self, *, pods: bool) -> GpuUseReport:
        """Whether a restart of the machine by another party would interrupt work on a GPU.

        ``pods``: with the pods of each GPU.
        """
        return await self._gpu_use(pods)

    def measurements(self) -> Sequence[Measured]:
        """The present measurements of the node's parts."""
        return self._measurements()

    def clear_faults(self, component: str, code: str) -> str:
        """Clear faults that a person reports as over. Raises CommandRefused when neither is
        named.
        """
        if not component and not code:
            raise CommandRefused("name a component, a code, or both")
        count = self._recorder.latch.clear_by_operator(component=component, code=code)
        self._recorder.changed_by_hand()
        if count:
            return f"cleared {count}"
        return f"no latched fault matched{self._latched_on(component)}"

    def cleared(self, *, gpu: str, code: str) -> str:
        """Clear what a person reports as over on a GPU (UUID or PCI address): one code, or every
        one.

        Without ``gpu`` it is the code on every component. Raises CommandRefused, too for a GPU that
        this node does not have: a mistyped UUID must not look like a GPU without faults.
        """
        if not gpu:
            return self.clear_faults("", code)
        names = self._recorder.names_of_gpu(gpu)
        if not names:
            known = ", ".join(self._recorder.gpus()) or "none"
            raise CommandRefused(f"this node has no GPU {gpu}; it has {known}")
        count = sum(
            self._recorder.latch.clear_by_operator(component=name, code=code) for name in names
        )
        self._recorder.changed_by_hand()
        log.info(
            "latched faults of a GPU were cleared by hand",
            extra={"event": "fault.cleared_by_hand", "gpu": gpu, "code": code, "entries": count},
        )
        of = f" of {code}" if code else ""
        if count:
            return f"{gpu}: cleared {count}{of}"
        # A mistyped code must not look like a fault that has ended.
        return f"{gpu}: no fault{of} was latched{self._latched_on(*names) if code else ''}"

    def _latched_on(self, *components: str) -> str:
        codes = self._recorder.latch.clearable(components)
        return f"; latched: {', '.join(codes)}" if codes else ""

    async def quiesce(self, seconds: float) -> str:
        """Release the driver for a while; 0 takes it up again. Raises CommandRefused.

        The GPU checks report at once that they are off, and so does the next agent of this boot.
        """
        if not 0 <= seconds <= LONGEST_QUIESCE:
            raise CommandRefused(f"{seconds:g} s: expected 0 to {LONGEST_QUIESCE:g}")
        if not seconds:
            self._nvml.resume()
            self._recorder.quiesce_until(self._nvml.quiesced_until)
            log.info("the GPU driver is used again", extra={"event": "gpu.driver_used"})
            return "NVML is used again"
        is_free = await self._nvml.quiesce(seconds)
        self._recorder.quiesce_until(self._nvml.quiesced_until)
        log.info(
            "the GPU driver is released",
            extra={"event": "gpu.driver_released", "seconds": seconds, "is_free": is_free},
        )
        if self._gpu_checks():
            await self._scheduler.run_now(self._gpu_checks())
        if not is_free:
            raise CommandRefused(
                "a worker hangs in the driver and cannot be ended: the driver stays in use until "
                "the node is rebooted"
            )
        return f"NVML is released for {seconds:g} s"

    def name_peers(self, addresses: Sequence[str]) -> None:
        """The addresses to probe from the next run on."""
        self._peers.named(addresses)

    def _gpu_checks(self) -> list[str]:
        """Ours, which then report that they are off; a site's own may open the driver itself."""
        from nodeagent.checks import registry  # loaded long since where checks run

        ours = registry.by_name()
        return [name for name in self._scheduler.checks if name in ours and name.startswith("gpu-")]

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
        return f"ran {counted(len(names or known), 'check')}"
