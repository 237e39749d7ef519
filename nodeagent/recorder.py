"""Takes evidence into the latch, and sees to it that it is saved before it is sent.

One write per message: while an aggregator listens, the stream saves just before it sends, so
evidence is on its way within a millisecond. Otherwise urgent evidence is saved at once. A timer
saves the changes that are neither sent nor saved at once (a count, the kernel log cursor); until
then a restart reads it again from the kernel log, since evidence and cursor are one file.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from nodeagent.clock import Clock
from nodeagent.evidence.disk_backup import DiskBackup
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State
from nodeagent.evidence.store import Store
from nodeagent.model import Batch, Clearing, Evidence, Observation, Status
from nodeagent.sources.fabric import FabricMembership
from nodeagent.sources.gpus import GpuMap, normalise
from nodeagent.sources.kmsg import SOURCE, Cursor

log = logging.getLogger(__name__)

#: The name under which the agent reports on itself.
CHECK = "agent-state"
#: Seconds within which a change is saved, sent or not; and within which the cursor is.
SAVE_WITHIN = 0.25
SAVE_CURSOR_WITHIN = 5.0


class EvidenceRecorder:
    """The latch with its file.

    ``wake`` wakes the uplink, which returns whether an aggregator listens.
    """

    def __init__(
        self,
        state: State,
        *,
        store: Store,
        copy: DiskBackup,
        gpus: GpuMap,
        fabric: FabricMembership,
        clock: Clock,
        wake: Callable[[], bool],
    ) -> None:
        self._state = state
        self._store = store
        self._copy = copy
        self._gpus = gpus
        self._fabric = fabric
        self._clock = clock
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._worth_a_copy = False
        self._logged_problem: str | None = None
        self._copy_problem = ""

    @property
    def latch(self) -> Latch:
        return self._state.latch

    @property
    def problem(self) -> str:
        """Why the state could not be saved; empty when it was."""
        return self._store.problem

    def record_observations(self, batch: Batch, *, run_of: str = "") -> None:
        """Evidence from a check; ``run_of`` names it when this is its whole report."""
        more = self._by_address(batch)
        batch = [*batch, *more] if more else batch
        changed = self.latch.apply(batch, self._clock.boottime(), run_of=run_of)
        self._changed(changed=changed)

    def _by_address(self, batch: Batch) -> list[Clearing]:
        """The resets in the batch, for the faults that a GPU had before its UUID was known."""
        signs = (each for each in batch if isinstance(each, Clearing))
        reset = {sign.component for sign in signs if sign.how == "gpu-reset" and not sign.code}
        if not reset:
            return []
        names = {f"pci:{slot}" for slot, uuid in self._gpus.remembered().items() if uuid in reset}
        faulty = {fault.component for fault in self.latch.faults.values()}
        return [Clearing(name, "gpu-reset") for name in sorted(names & faulty)]

    def take_log(self, evidence: Sequence[Evidence], cursor: Cursor | None) -> None:
        """Evidence from the kernel log, and how far it has been read."""
        if cursor is None and self._state.kernel_seq is not None:
            self.latch.applied.pop(SOURCE, None)  # the log was set back: lower numbers are new
        changed = self.latch.apply(evidence, self._clock.boottime())
        self._state.kernel_seq = None if cursor is None else cursor.seq
        self._save_within(SAVE_CURSOR_WITHIN)
        # Counts can wait: a restart reads them again from where the saved cursor is.
        self._changed(changed=changed, within=SAVE_CURSOR_WITHIN)

    def changed_by_hand(self) -> None:
        """The latch was changed directly (cleared, expired): save and send it."""
        self._changed(changed=True)

    @property
    def quiesced_until(self) -> float:
        """When NVML may be used again (boottime seconds), by the last order; 0 if never."""
        return self._state.quiesced_until

    def quiesce_until(self, at: float) -> None:
        """Keep ``at`` for the next agent of this boot."""
        self._state.quiesced_until = max(at, 0.0)
        self.persist()

    def gpus(self) -> list[str]:
        """The components of the node's GPUs: UUIDs, and addresses of those without one."""
        return sorted({self._gpus.component(address) for address in self._gpus.addresses()})

    def names_by_gpu(self) -> list[tuple[str, ...]]:
        """The names of each GPU, in the order of PCI addresses: first its component."""
        return [
            tuple(dict.fromkeys((self._gpus.component(slot), f"pci:{slot}", slot)))
            for slot in sorted(self._gpus.addresses())
        ]

    def summary_of_faults(self) -> list[dict[str, object]]:
        """The faults in force, for a repair's evidence: their identity, count and latest words."""
        now = self._clock.boottime()
        return [
            {
                "code": each.code,
                "component": each.component,
                "message": each.message,
                "count": each.count,
                "age": round(now - each.last, 1),
            }
            for each in self.latch.faults.values()
        ]

    def names_of_gpu(self, gpu: str) -> list[str]:
        """Every component that evidence on this GPU (UUID or PCI address) may have.

        Evidence that was logged before NVML had named the GPU has its address as component; that of
        a replaced GPU has a UUID that only the evidence still has.
        """
        address = normalise(gpu.removeprefix("pci:"))
        uuids = self._gpus.remembered()
        names = {f"pci:{slot}" for slot, uuid in uuids.items() if gpu == uuid or slot == address}
        if address in self._gpus.addresses():
            names.add(f"pci:{address}")
        names |= {self._gpus.component(name.removeprefix("pci:")) for name in names}
        reported = {fault.component for fault in self.latch.faults.values()}
        reported |= {entry.component for entry in self.latch.components.values()}
        return sorted(names | ({gpu} & reported))

    def persist(self) -> None:
        """Save now. A state that cannot be saved is kept in memory, logged, and still sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gpus, cliques = self._gpus.remembered(), self._fabric.cliques
        self._worth_a_copy |= (gpus, cliques) != (self._state.gpus, self._state.cliques)
        self._state.gpus, self._state.cliques = gpus, cliques
        saved = self._store.save(self._state)
        if saved and self._worth_a_copy:
            self._worth_a_copy = False
            self._copy.changed()
        self._report()

    def close(self) -> None:
        """The last save."""
        self._worth_a_copy = True
        self.persist()
        if self._timer is not None:
            self._timer.cancel()
        self._copy.close()

    def _changed(self, *, changed: bool, within: float = SAVE_WITHIN) -> None:
        # Urgent evidence stays urgent until an aggregator listens, and was saved when it came.
        if not changed:
            return
        if self.latch.urgent:
            self._worth_a_copy = True
            if self._wake():
                self._save_within(SAVE_WITHIN)
            else:
                self.persist()
        else:
            self._wake()
            self._save_within(within)

    def _save_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._save_is_due)

    def _save_is_due(self) -> None:
        self._timer = None
        self.persist()

    def _report(self) -> None:
        """Log when saving starts to fail and when it works again, not at each attempt."""
        if self._copy.problem != self._copy_problem:
            self._copy_problem = self._copy.problem
            if self._copy_problem:
                log.warning("%s", self._copy_problem)
        problem = self._store.problem
        if problem == self._logged_problem:
            return
        if problem:
            log.error(
                "%s; evidence is kept in memory and would not survive a restart",
                problem,
                extra={"event": "state.not_saved"},
            )
        self._logged_problem = problem
        status, reason = (Status.DEGRADED, "not-saved") if problem else (Status.OK, "")
        self.latch.apply([Observation(CHECK, "", status, reason, problem)], self._clock.boottime())
        self._wake()
