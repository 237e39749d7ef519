"""The story of both demos. Each step does something and waits until it has been seen."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aggregator.demo.alert_receiver import AlertReceiver
from aggregator.demo.demo_job import DemoJob
from aggregator.demo.event_poller import EventPoller, NotSeen
from aggregator.demo.terminal import headline, note

#: Rules as shipped wait for minutes before a release; a demo's spectator would not.
POLICY = """
rules:
  - {name: gpu-gone, healthyFor: 3s}
  - {name: gpu-fatal, healthyFor: 3s}
  - {name: disk-full, for: 1s, healthyFor: 3s}
"""


_CORDONED = "quarantine.cordoned"
#: Seconds in which an alert of a single node would come: the aggregator waits 5 s for a decision.
_ALERTS_SETTLE = 6.0


class Inject(Protocol):
    """Makes something happen to a simulated node: docs/simulate.md."""

    def __call__(self, **event: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds to look around before a step, and that the disk stays full."""

    first: float
    between: float
    disk: float


LEISURELY = Pace(first=10, between=6, disk=10)
BRISK = Pace(first=1, between=0.5, disk=4)


@dataclass(frozen=True, slots=True)
class Story:
    """The steps of the story; each waits for its effect."""

    events: EventPoller
    inject: Inject
    pace: Pace

    def job_saves_first(self, node: str, job: DemoJob, key: str) -> None:
        """``key`` of the configuration requests the notice."""
        headline(f"{node}: Xid 119, the firmware of a GPU is stuck; a job runs on the other GPUs")
        began = time.time()
        self.inject(node=node, fault="xid:119", gpu=3)
        saved = self.events.until(lambda: job.checkpoint, "the checkpoint of the job")
        self._seen(_CORDONED, node)
        note(f"   its job got a notice ({key}), and saved at step {saved['step']}")
        drained = self._seen("quarantine.drained", node)
        cordoned = self._seen(_CORDONED, node)
        note(
            f"   from the kernel's line to the cordon {_ms(cordoned.at.timestamp() - began)}, "
            f"to drained {_ms(drained.at.timestamp() - began)}"
        )

    def application_fault_does_nothing(self, node: str) -> None:
        headline(f"{node}: Xid 13, which a job's own mistake causes (it read out of bounds)")
        self.inject(node=node, fault="xid:13", gpu=0)
        self._seen("incident.opened", node)
        [incident] = self.events.until(lambda: self._incidents(node), f"the incident of {node}")
        note(f"   {node}: {incident['summary']}")
        note(f"   {incident['advice']}")
        self.events.show_for(2)
        if self.events.of_kind("quarantine.admitted", node):
            raise NotSeen(f"{node} left alone: it was quarantined")

    def full_disk_recovers(self, node: str) -> None:
        headline(f"{node}: its root disk fills up, and is empty again in {self.pace.disk:g} s")
        full = {"check": "disk-space", "component": "/", "status": "failed", "reason": "full"}
        message = "100 % used, 0 B free"
        self.inject(**{"node": node, **full, "message": message, "for": f"{self.pace.disk:g}s"})
        self._seen("quarantine.cordoned", node)
        self._seen("quarantine.released", node)

    def common_cause_holds(self, nodes: Sequence[str], alerts: AlertReceiver) -> None:
        headline(f"{len(nodes)} nodes at once: Xid 48, as after a bad driver roll-out")
        alerts.forget()
        self.inject(nodes=list(nodes), fault="xid:48", gpu=1)

        def decided() -> bool:
            held = {event.node for event in self.events.of_kind("quarantine.held", *nodes)}
            quarantined = {event.node for event in self.events.of_kind(_CORDONED, *nodes)}
            found = self.events.of_kind("fleet.common_cause")
            return bool(found) and held | quarantined == set(nodes)

        self.events.until(decided, "every node of the common cause held", within=60)
        cause = self.events.until(
            lambda: [one for one in alerts.received() if one["kind"] == "fleet.common_cause"],
            "the alert of the common cause",
        )
        self.events.show_for(_ALERTS_SETTLE)
        quarantined = len({event.node for event in self.events.of_kind(_CORDONED, *nodes)})
        note(
            f"   {quarantined} of {len(nodes)} nodes are in quarantine; "
            f"critical alerts: {len(alerts.received())}"
        )
        note(f"   the alert: {cause[0]['summary']}")

    def reboot_releases(self, node: str) -> None:
        headline(f"{node} is rebooted: that ends its fault, so the node is released")
        self.inject(node=node, reboot=True)
        self._seen("quarantine.released", node)

    def go_on(self, until: Callable[[], bool] = lambda: False) -> None:
        """Show what happens, for ever or until."""
        while not until():
            self.events.show_for(1)

    def _seen(self, kind: str, node: str) -> Any:
        return self.events.until(lambda: self.events.of_kind(kind, node), f"{kind} of {node}")[-1]

    def _incidents(self, node: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.events.get(f"/api/v1/nodes/{node}")["incidents"]
        return found


def _ms(seconds: float) -> str:
    return f"{max(0.0, seconds) * 1000:.0f} ms"
