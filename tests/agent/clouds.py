"""Metadata services of three clouds, as strict as theirs: a malformed request gets no answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.agent.http_server import NOT_FOUND, Request, response

BAD_REQUEST = response("", "400 Bad Request")
UNAUTHORISED = response("", "401 Unauthorized")
FORBIDDEN = response("", "403 Forbidden")

SCHEDULED = "events/maintenance/scheduled"
SPOT = "spot/instance-action"
REBALANCE = "events/recommendations/rebalance"
_GCP = "/computeMetadata/v1/instance/"


@dataclass
class Azure:
    """One machine ``name`` of a scale set, and the events of the whole set."""

    name: str = "gpus_3"
    events: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, asked: Request) -> bytes:
        path, _, query = asked.path.partition("?")
        if asked.headers.get("metadata") != "true" or "api-version=" not in query:
            return BAD_REQUEST
        if path == "/metadata/instance/compute/name" and "format=text" in query:
            return response(self.name)
        if path == "/metadata/scheduledevents":
            return response(json.dumps({"DocumentIncarnation": 1, "Events": self.events}))
        return NOT_FOUND

    def plan(self, kind: str, *machines: str, status: str = "Scheduled", **more: Any) -> None:
        self.events.append(
            {
                "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(machines),
                "EventStatus": status,
                "NotBefore": "" if status == "Started" else "Mon, 11 Apr 2022 22:26:58 GMT",
                "Description": "Host server is undergoing maintenance",
                "EventSource": "Platform",
                "DurationInSeconds": 10,
                **more,
            }
        )


@dataclass
class Aws:
    """Only IMDSv2: without a token of its own there is no answer. ``kept``: answers by key."""

    kept: dict[str, Any] = field(default_factory=lambda: {SCHEDULED: []})
    tokens_given: int = 0
    valid: set[str] = field(default_factory=set)
    gives_dead_tokens: bool = False

    def __call__(self, asked: Request) -> bytes:
        if asked.path == "/latest/api/token":
            seconds = asked.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            if asked.method != "PUT" or not 1 <= int(seconds or 0) <= 21600:
                return BAD_REQUEST
            self.tokens_given += 1
            token = f"AQAEA{self.tokens_given}=="
            if not self.gives_dead_tokens:
                self.valid.add(token)
            return response(token)
        if asked.headers.get("x-aws-ec2-metadata-token") not in self.valid:
            return UNAUTHORISED
        key = asked.path.removeprefix("/latest/meta-data/")
        return response(json.dumps(self.kept[key])) if key in self.kept else NOT_FOUND

    def plan(self, code: str, state: str = "active") -> None:
        self.kept[SCHEDULED].append(
            {
                "Code": code,
                "Description": "scheduled reboot",
                "EventId": "instance-event-0d59937288b749b32",
                "NotBefore": "21 Jan 2019 09:00:43 GMT",
                "NotAfter": "21 Jan 2019 09:17:23 GMT",
                "State": state,
            }
        )


@dataclass
class Gcp:
    event: str = "NONE"
    preempted: str = "FALSE"
    #: The body for the machines that have it; with None the answer is 404.
    upcoming: str | None = None
    upcoming_status: str = "200 OK"
    flavor: Mapping[str, str] = field(default_factory=lambda: {"Metadata_Flavor": "Google"})

    def __call__(self, asked: Request) -> bytes:
        if asked.headers.get("metadata-flavor") != "Google":
            return FORBIDDEN
        if asked.path.startswith(f"{_GCP}upcoming-maintenance") and self.upcoming is not None:
            return response(self.upcoming, status=self.upcoming_status, **self.flavor)
        values = {"maintenance-event": self.event, "preempted": self.preempted}
        value = values.get(asked.path.removeprefix(_GCP))
        return NOT_FOUND if value is None else response(value, **self.flavor)
