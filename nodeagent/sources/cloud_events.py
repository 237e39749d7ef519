"""A cloud's plans for this machine, from its metadata service. Three protocols, one answer.

- Azure Scheduled Events: ``GET /metadata/scheduledevents`` with ``Metadata: true``. The list is
  that of a whole scale set or availability set, so ours are those that name this machine. The first
  request of a machine turns the service on, and its answer may take two minutes.
- AWS, IMDSv2: a token by PUT, then ``events/maintenance/scheduled``, ``spot/instance-action`` and
  ``events/recommendations/rebalance``; 404 is "nothing".
- GCP: ``instance/maintenance-event``, ``instance/upcoming-maintenance`` and ``instance/preempted``
  with ``Metadata-Flavor: Google``, which the answer must carry too. The first one reports 60 s
  before the event, or at once where no client polls: only polling gives the notice. The second
  reports windows that are weeks away, for the machines that have them (those with many GPUs, and
  bare metal); its keys are written in more than one way. 404 is "not for this machine".
  https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event

Redirects are not followed: no cloud sends one, and a captive portal does.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nodeagent.dataclass import dataclass
from nodeagent.sources.http import HttpError, Response, Url, request

__all__ = ["PROVIDERS", "MaintenanceEvent", "Service", "ServiceError"]

ENDPOINT = "http://169.254.169.254"
_DEADLINE = 5.0
_TOKEN_SECONDS = 21600  # the longest that IMDSv2 gives
_NOTHING = 404
_UNAUTHORISED = 401
_AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_AZURE_KINDS = ("freeze", "reboot", "redeploy", "preempt", "terminate")
_AWS_KINDS = {
    "instance-reboot": "reboot",
    "system-reboot": "reboot",
    "system-maintenance": "maintenance",
    "instance-retirement": "terminate",
    "instance-stop": "stop",
}
_GCP_UPCOMING = "upcoming-maintenance?alt=json"
#: GCP's answer where no event was ever planned, with a status of 503 or of 200.
_GCP_NOTHING_YET = "no notifications have been received yet"
_GCP_KINDS = {
    "MIGRATE_ON_HOST_MAINTENANCE": "freeze",
    "TERMINATE_ON_HOST_MAINTENANCE": "terminate",
}


@dataclass(frozen=True, slots=True)
class MaintenanceEvent:
    """``kind`` is one word of ours, or the cloud's own in lower case where we don't know it.

    Kinds: freeze (a pause or a live migration), reboot, redeploy (to another host), stop,
    terminate, preempt, maintenance, rebalance (advice only). ``message`` is for people; it has the
    cloud's time as the cloud wrote it.
    """

    kind: str
    message: str


class ServiceError(Exception):
    """The service gave no list of events. ``reason`` is one word, the text is for people.

    Reasons: ``bad-status`` (an HTTP status that the protocol does not have), ``garbled`` (an answer
    that is none of the protocol's), and those of ``HttpError``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Service:
    """One cloud's metadata service. Raises ServiceError."""

    def __init__(self, provider: str, endpoint: Url) -> None:
        self._endpoint = endpoint
        self._request = PROVIDERS[provider]
        #: AWS's session token, and Azure's name of this machine.
        self.kept = ""

    async def events(self) -> list[MaintenanceEvent]:
        try:
            return await self._request(self)
        except HttpError as error:
            raise ServiceError(error.reason, str(error)) from error

    async def get(self, path: str, headers: Mapping[str, str], *, method: str = "GET") -> Response:
        url = self._endpoint.at(path)
        return await request(url, method=method, headers=headers, deadline=_DEADLINE)


def _body(answer: Response, what: str) -> str:
    if answer.status != 200:
        raise ServiceError("bad-status", f"{what}: status {answer.status}")
    return answer.body.decode("utf-8", "replace").strip()


def _json(answer: Response, what: str) -> Any:
    try:
        return json.loads(_body(answer, what))
    except (ValueError, RecursionError) as error:
        raise ServiceError("garbled", f"{what}: no JSON: {error}") from None


def _component_name(text: str) -> str:
    """The cloud's own word for a kind that we have no word for, fit to be a component's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:32] or "other"


async def _azure(service: Service) -> list[MaintenanceEvent]:
    headers = {"Metadata": "true"}
    if not service.kept:
        name = _body(await service.get(_AZURE_NAME, headers), "this machine's name")
        if not re.fullmatch(r"[\w.-]{1,128}", name):
            raise ServiceError("garbled", f"{name[:40]!r} is no machine's name")
        service.kept = name
    found = _json(await service.get(_AZURE_EVENTS, headers), "scheduled events")
    try:
        ours = [e for e in found["Events"] if _names(e["Resources"], service.kept)]
        return [_azure_event(event) for event in ours]
    except (KeyError, TypeError, AttributeError) as error:
        raise ServiceError("garbled", f"scheduled events: {error!r}") from None


def _names(resources: list[str], name: str) -> bool:
    """Names of Azure's are of no case. Raises TypeError when it is no list of them."""
    if not isinstance(resources, list):
        raise TypeError("Resources is no list")
    return name.casefold() in (each.casefold() for each in resources)


def _azure_event(event: Mapping[str, Any]) -> MaintenanceEvent:
    kind = str(event["EventType"]).lower()
    started = event.get("EventStatus") == "Started"
    when = "now" if started else f"not before {event.get('NotBefore') or 'an unknown time'}"
    why = event.get("Description") or event.get("EventSource") or ""
    words = f"{kind} {when}{f': {why}' if why else ''} (event {event.get('EventId', '?')})"
    return MaintenanceEvent(kind if kind in _AZURE_KINDS else _component_name(kind), words)


async def _aws(service: Service) -> list[MaintenanceEvent]:
    answer = await _aws_get(service, "events/maintenance/scheduled")
    found = [] if answer is None else _json(answer, "scheduled events")
    try:
        events = [_aws_event(e) for e in found if e.get("State", "active") == "active"]
        answer = await _aws_get(service, "spot/instance-action")
        if answer is not None:
            action = _json(answer, "spot action")
            words = f"spot capacity goes: {action['action']} at {action['time']}"
            events.append(MaintenanceEvent("preempt", words))
        answer = await _aws_get(service, "events/recommendations/rebalance")
        if answer is not None:
            notice = _json(answer, "rebalance recommendation")
            words = f"spot capacity is at risk, by a notice of {notice['noticeTime']}"
            events.append(MaintenanceEvent("rebalance", words))
    except (KeyError, TypeError, AttributeError) as error:
        raise ServiceError("garbled", f"events: {error!r}") from None
    return events


def _aws_event(event: Mapping[str, Any]) -> MaintenanceEvent:
    code = str(event["Code"])
    words = (
        f"{code} between {event.get('NotBefore', 'an unknown time')} and "
        f"{event.get('NotAfter', 'an unknown time')}: {event.get('Description', '')} "
        f"(event {event.get('EventId', '?')})"
    )
    return MaintenanceEvent(_AWS_KINDS.get(code, _component_name(code)), words)


async def _aws_get(service: Service, key: str) -> Response | None:
    """The answer, or None where there is no such event. An expired token is requested again."""
    for _ in range(2):
        if not service.kept:
            await _aws_token(service)
        headers = {"X-aws-ec2-metadata-token": service.kept}
        answer = await service.get(f"/latest/meta-data/{key}", headers)
        if answer.status != _UNAUTHORISED:
            return None if answer.status == _NOTHING else answer
        service.kept = ""
    raise ServiceError("bad-status", "status 401 with the token that the service itself gave")


async def _aws_token(service: Service) -> None:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
    token = _body(await service.get("/latest/api/token", headers, method="PUT"), "session token")
    if not token.isascii() or not token.isprintable() or not token:
        raise ServiceError("garbled", "the session token is no text")
    service.kept = token


async def _gcp(service: Service) -> list[MaintenanceEvent]:
    event = await _gcp_get(service, "maintenance-event")
    events = []
    if not re.fullmatch("[A-Z][A-Z_]{0,63}", event):
        raise ServiceError("garbled", f"maintenance-event: {event[:40]!r}")
    if event != "NONE":
        kind = _GCP_KINDS.get(event) or _component_name(event)
        events.append(MaintenanceEvent(kind, f"{event} within a minute or so"))
    events += await _gcp_upcoming(service)
    preempted = await _gcp_get(service, "preempted")
    if preempted not in ("TRUE", "FALSE"):
        raise ServiceError("garbled", f"preempted: {preempted[:40]!r}")
    if preempted == "TRUE":
        events.append(MaintenanceEvent("preempt", "this machine is being preempted"))
    return events


async def _gcp_upcoming(service: Service) -> list[MaintenanceEvent]:
    answer = await _gcp_request(service, _GCP_UPCOMING)
    if answer.status == _NOTHING or _GCP_NOTHING_YET in answer.body.decode("utf-8", "replace"):
        return []
    if _gcp_body(answer, "upcoming-maintenance") == "NONE":
        return []
    found = _json(answer, "upcoming-maintenance")
    if found in ({}, "NONE"):
        return []
    try:
        planned = {re.sub("[^a-z]", "", key.lower()): value for key, value in found.items()}
        begins = planned.get("windowstarttime") or planned["starttime"]
    except (KeyError, AttributeError) as error:
        raise ServiceError("garbled", f"upcoming-maintenance: {error!r}") from None
    status = planned.get("maintenancestatus", "PENDING")
    if status not in ("PENDING", "ONGOING"):
        return []
    when = "now" if status == "ONGOING" else f"from {begins}"
    words = f"{planned.get('type', 'planned')} maintenance {when}, until "
    words += str(planned.get("windowendtime", "an unknown time"))
    if str(planned.get("canreschedule")).lower() == "true":
        words += "; it can be begun sooner, by the cloud's API"
    return [MaintenanceEvent("maintenance", words)]


async def _gcp_get(service: Service, key: str) -> str:
    return _gcp_body(await _gcp_request(service, key), key)


async def _gcp_request(service: Service, key: str) -> Response:
    path = f"/computeMetadata/v1/instance/{key}"
    return await service.get(path, {"Metadata-Flavor": "Google"})


def _gcp_body(answer: Response, key: str) -> str:
    body = _body(answer, key)
    if answer.headers.get("metadata-flavor") != "Google":
        raise ServiceError(
            "garbled", f"{key}: the service that answers is not Google's metadata server"
        )
    return body


PROVIDERS: Mapping[str, Callable[[Service], Awaitable[list[MaintenanceEvent]]]] = {
    "azure": _azure,
    "aws": _aws,
    "gcp": _gcp,
}
