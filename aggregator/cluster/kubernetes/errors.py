"""Turns the API server's refusals into the typed errors of the protocol.

The server's own message is kept: it names the field, the webhook or the budget that blocks the
write. Shapes: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from aggregator.cluster.port import (
    AdmissionFailed,
    AdmissionRefused,
    ClusterError,
    Conflict,
    NotFound,
    Refused,
    Unreachable,
)

#: Nothing waits longer because a server requested it.
LONGEST_PAUSE_S = 60.0
#: Cause of a 429 that is about one pod's PodDisruptionBudget, and not about overload.
DISRUPTION_BUDGET = "DisruptionBudget"


#: The API server's wording of an admission refusal; no field of the answer marks one.
_ADMISSION = ("admission webhook", "failed calling webhook", "ValidatingAdmissionPolicy")


class Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class Details(msgspec.Struct, frozen=True):
    causes: list[Cause] | None = None


class StatusBody(msgspec.Struct, frozen=True):
    """meta/v1 Status, as much of it as is used."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


_DECODE = msgspec.json.Decoder(StatusBody)


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that is not 2xx. ``retry_after`` is in seconds, None when the server named none."""

    request: str
    code: int
    reason: str
    message: str
    causes: tuple[Cause, ...]
    retry_after: float | None

    def cause(self, reason: str) -> Cause | None:
        """The cause with this reason, if it is among them."""
        return next((cause for cause in self.causes if cause.reason == reason), None)

    @property
    def of_a_budget(self) -> bool:
        """Whether this 429 is a disruption budget's: that pod's own state, and not overload."""
        return self.code == 429 and self.cause(DISRUPTION_BUDGET) is not None

    @property
    def of_admission(self) -> bool:
        """Whether a webhook or an admission policy refused, whatever code it chose."""
        return any(words in self.message for words in _ADMISSION)

    @property
    def of_a_namesake(self) -> bool:
        """Whether this 422 means that the object of that name has another uid."""
        return self.code == 422 and any(cause.field == "metadata.uid" for cause in self.causes)

    def error(self) -> ClusterError:
        """The typed error for it, with the server's message."""
        text = f"{self.request}: {self.code} {self.reason}: {self.message}"
        return self._kind()(text, status=self.code, retry_after=self.retry_after)

    def _kind(self) -> type[ClusterError]:
        if self.of_admission:  # its 404 or 409 is not about the object
            return AdmissionRefused if self.code < 500 else AdmissionFailed
        if self.code == 404:
            return NotFound
        if self.code == 409 or self.of_a_namesake:
            return Conflict
        # 408 and 410 (an expired resource version) pass when the request is sent again.
        if self.code in {408, 410, 429} or self.code >= 500:
            return Unreachable
        return Refused


def parse_failure(request: str, code: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """The failure in an answer. A body that is no Status (a proxy's page) is quoted."""
    try:
        status = _DECODE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = StatusBody(message=body[:300].decode(errors="replace").strip() or "no message")
    details = status.details
    return Failure(
        request=request,
        code=code,
        reason=status.reason or "HTTP",
        message=status.message or "no message",
        causes=tuple(details.causes or ()) if details else (),
        retry_after=retry_after_s(headers.get("Retry-After")),
    )


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, or None without one.

    The API server sends whole seconds. The other form, a date, comes from proxies alone and needs
    their clock to be ours, so that it counts as one second. A proxy that names a day stops no act
    and no watch for so long; the error's text has what it named.
    """
    if value is None:
        return None
    return min(float(value), LONGEST_PAUSE_S) if value.strip().isdecimal() else 1.0
