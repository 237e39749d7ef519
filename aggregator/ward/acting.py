"""The four things that a person may do, done to the cluster itself with the person's own rights.

Stop, resume, release, quarantine. None of them needs an aggregator that runs; each is only a wish
written down, which the aggregator carries out (and stop is what it asks before it acts).
"""

from typing import Protocol

from aggregator.quarantine.cluster import Action, QuarantineSpec
from aggregator.ward.tables import clean


class Hands(Protocol):
    """Where a wish is written down. Each returns what to tell the person, and raises WardError."""

    def stop(self, reason: str) -> str: ...
    def resume(self) -> str: ...
    def release(self, node: str) -> str: ...
    def quarantine(self, node: str, spec: QuarantineSpec) -> str: ...


def wish(action: Action, reason: str, requester: str) -> QuarantineSpec:
    """A quarantine made by hand. The name "sickbay" is the aggregator's own: it would end it."""
    who = requester if requester not in {"", "sickbay"} else "a person"
    return QuarantineSpec(action=action, kind="manual", reason=reason, requester=who)


def stopped(before: str, reason: str, *, how: str = "") -> str:
    """After a stop. ``how``, here and below: the options that whoever acts again needs again."""
    was = f' (it was stopped already: "{before}")' if before else ""
    return (
        f"Stopped{was}: {reason}\n"
        "No new quarantine and no eviction from now on, but for a few that are in flight. "
        f"Releases go on.\nTo go on: sickbay resume{how}"
    )


def stopped_where_nothing_was(namespace: str, reason: str) -> str:
    """After a stop that made the record: the namespace may be the wrong one."""
    return (
        f"{stopped('', reason)}\n"
        f"BUT: there was no record in namespace {namespace}. If sickbay runs in another one, "
        "nothing is stopped: say which with --namespace. See: sickbay status"
    )


def resumed(before: str) -> str:
    """After a resume."""
    return f'Resumed; it was stopped: "{before}"' if before else "It was not stopped."


def released(node: str, spec: QuarantineSpec) -> str:
    """After a release."""
    overruled = ", and this evidence quarantines the node no more until it is over"
    return (
        f"{node}: release asked for (it was quarantined: {clean(spec.reason)}).\n"
        f"The aggregator undoes what it did{overruled if spec.evidence else ''}. "
        f"See: sickbay node {node}"
    )


def quarantined(node: str, spec: QuarantineSpec, *, how: str = "") -> str:
    """After a quarantine by hand."""
    return (
        f"{node}: {spec.action} asked for: {spec.reason}\n"
        f"What a person makes, a person ends: sickbay release {node}{how}"
    )


def none_such(node: str) -> str:
    """There is nothing to release."""
    return f"{node} is not in quarantine: there is nothing to release\n  See: sickbay quarantines"


def already(node: str, spec: QuarantineSpec, *, change: str) -> str:
    """There is one already. ``change``: what changes it."""
    return (
        f"{node} is in quarantine already ({spec.action}, by {spec.requester or 'hand'}: "
        f"{clean(spec.reason)})\n"
        f"  To change it: {change}"
    )
