"""The events that the cloud has planned for this machine. Off until ``provider`` is set.

The component is the kind of event, or empty where there is none: ``terminate``, ``preempt``,
``stop``, ``redeploy``, ``reboot``, ``maintenance``, ``freeze``, ``rebalance``, or the cloud's own
word. Its reason is the same word, its status degraded: the machine works, and its time is up. When
the service does not answer, the events that it had named stay and the node is unknown:
``unreachable``, ``timeout``, ``refused``, ``bad-status``, ``garbled``, ``error``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.configfile.units import counted
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.cloud_events import (
    ENDPOINT,
    PROVIDERS,
    MaintenanceEvent,
    Service,
    ServiceError,
)
from nodeagent.sources.http import checked_url, parse_url

NAME = "maintenance"
_MOST = 16  # kinds; the cloud's own words are not bounded


def evaluate(events: Sequence[MaintenanceEvent]) -> list[Observation]:
    """Pure. The node's own entry first: it is ok when the service has answered."""
    by_kind: dict[str, list[str]] = {}
    for event in events:
        by_kind.setdefault(event.kind, []).append(event.message)
    planned = [
        Observation(NAME, kind, Status.DEGRADED, kind, "; ".join(messages))
        for kind, messages in list(by_kind.items())[:_MOST]
    ]
    return [
        Observation(NAME, "", Status.OK, "", f"{counted(len(planned), 'event')} planned"),
        *planned,
    ]


class Maintenance:
    def __init__(self, service: Service | None) -> None:
        self._service = service
        self._last: list[Observation] = []

    async def run_check(self) -> Report:
        if self._service is None:
            return Off("no provider (checks.maintenance.provider)")
        try:
            self._last = evaluate(await self._service.events())
        except ServiceError as error:
            unknown = Observation(NAME, "", Status.UNKNOWN, error.reason, str(error))
            return [unknown, *self._last[1:]]
        return self._last


def build(sources: Sources, options: Mapping[str, Any]) -> Maintenance:
    del sources
    provider = options["provider"]
    if not provider:
        return Maintenance(None)
    return Maintenance(Service(provider, parse_url(options["endpoint"])))


def _provider(text: str) -> str:
    if text and text not in PROVIDERS:
        raise ValueError(f'"{text}" is none of {", ".join(PROVIDERS)}')
    return text


SPEC = CheckSpec(
    name=NAME,
    sees="a reboot, migration, preemption or end that the cloud has planned for this machine",
    source="the cloud's metadata service, by the agent alone: Azure Scheduled Events, AWS IMDSv2, "
    "GCP maintenance-event and upcoming-maintenance",
    cost="no cost without a provider; 2 to 4 ms of CPU every 30 s with one",
    blind_to="events that the cloud announces elsewhere (mail, a page); a notice shorter than the "
    "interval",
    interval=30.0,
    deadline=30.0,
    build=build,
    options=(
        Option("provider", Kind.TEXT, "", 'the cloud: "azure", "aws" or "gcp"', _provider),
        Option(
            "endpoint",
            Kind.TEXT,
            ENDPOINT,
            "its metadata service; an address, no name",
            checked_url,
        ),
    ),
)
