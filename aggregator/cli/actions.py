"""A person's actions, applied to the cluster itself with the person's own rights.

Stop, resume, release, quarantine; exempt and pin a node, and take that back. No action needs a
running aggregator: each only writes a request, which the aggregator carries out (it also reads the
stop switch before it acts).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aggregator.cli.durations import read_duration
from aggregator.cli.errors import UsageError
from aggregator.cli.text_table import brief, clean
from aggregator.cluster.port import (
    BUSY,
    Action,
    Operation,
    OperationSpec,
    QuarantineSpec,
    RepairStatus,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.operator_requests import EXEMPT, PIN, exemption
from aggregator.rfc3339 import write_time
from aggregator.runtime.cli_flags import reading_flags
from aggregator.runtime.text import counted


class ClusterActions(Protocol):
    """The cluster to which requests are written. Each method returns the text for the person, and
    raises `CommandFailed`.
    """

    def stop(self, reason: str) -> str: ...
    def resume(self) -> str: ...
    def release(self, node: str) -> str: ...

    def open_order(self, node: str) -> str:
        """The order that may still act on the node, before a person confirms its release; empty:
        there is none.
        """
        ...

    def quarantine(self, node: str, spec: QuarantineSpec) -> str: ...
    def annotate(self, node: str, change: "AnnotationChange") -> str: ...
    def request_operation(self, name: str, spec: OperationSpec) -> str: ...

    def operation(self, name: str) -> Operation | None:
        """The operation as it is now, or None where it is gone."""
        ...

    def cancel_operations(self, node: str) -> str:
        """Delete those of the node that have not ended."""
        ...

    def drain_preview(self, node: str) -> str:
        """The work that a drain of the node would end, before a person confirms it."""
        ...


@dataclass(frozen=True, slots=True)
class AnnotationChange:
    """Annotations to write on a node (None removes one), and the text for the person afterwards.

    ``idle`` replaces the text where the node has none of the annotations to be removed.
    """

    annotations: Mapping[str, str | None]
    message: str
    idle: str = ""

    def changes(self, annotations: Mapping[str, str]) -> bool:
        """Whether the write would change the node."""
        return any(annotations.get(key) != value for key, value in self.annotations.items())


_LONGEST = 365 * 86400
_SOON = "sickbay sees it within three minutes, and before it acts on the node."


def seconds_of(text: str) -> float:
    """A duration from the command line. Raises UsageError."""
    seconds = read_duration(text, "mhd")
    if seconds is None:
        raise UsageError(f'--for: "{text}" is no duration; expected one such as 30m, 8h or 7d')
    if not 0 < seconds <= _LONGEST:
        raise UsageError(f'--for: "{text}"; expected a time above 0, and 365d at most')
    return seconds


def exempted(node: str, until: float, reason: str, *, how: str) -> AnnotationChange:
    """Leave the node alone until then (wall clock seconds). ``how``: as for `stopped`."""
    return AnnotationChange(
        {EXEMPT: exemption(until, reason)},
        f"{node}: exempt until {write_time(until)}: {brief(reason)}\n"
        f"{_SOON} A quarantine that is in force stays, and its drain pauses; to end it: "
        f"sickbay release {node}{how}\nTo end the exemption: sickbay unexempt {node}{how}",
    )


def unexempted(node: str) -> AnnotationChange:
    """Evaluate the node like any other."""
    done_text = f"{node}: no longer exempt. {_SOON}"
    return AnnotationChange({EXEMPT: None}, done_text, f"{node} was not exempt.")


def pinned(node: str, reason: str, *, how: str) -> AnnotationChange:
    """Keep the node in quarantine."""
    return AnnotationChange(
        {PIN: reason},
        f"{node}: pinned: {brief(reason)}\n"
        "Its quarantine does not end by itself while the pin is there. A pin begins no quarantine."
        f"\nTo end the pin: sickbay unpin {node}{how}",
    )


def unpinned(node: str) -> AnnotationChange:
    """Release the node when it is healthy."""
    done_text = f"{node}: no longer pinned; it is released once nothing else holds its release."
    return AnnotationChange({PIN: None}, done_text, f"{node} was not pinned.")


def operation_requested(name: str, spec: OperationSpec, *, how: str) -> str:
    """After a person's request for an operation, which is the object ``name``."""
    node = spec.node
    follow = f"sickbay repair {node}{how}"
    if not spec.quarantine:
        follow = f"sickbay node {node}{reading_flags(how)}"
    return (
        f"{node}: {spec.kind} is requested (operation {name}).\n"
        f"To follow it: {follow}\nTo cancel it: sickbay repair {node} --cancel{how}"
    )


#: The limit of a cancellation.
_LATE = ". An order that its repairer can't cancel any more runs to its end."


def operations_cancelled(node: str, open_ones: Sequence[Operation], *, how: str) -> str:
    """After a person has deleted these open operations of the node."""
    names = ", ".join(one.name for one in open_ones)
    begun = [one.spec.kind for one in open_ones if one.status.phase in BUSY]
    repairs = [kind for kind in begun if kind != TEST]
    return (
        f"{node}: the cancellation is requested of {clean(names)}"
        f"{_LATE if begun else ': it has not begun.'}"
        f"{f' {none_follows(repairs[0])}' if repairs else ''}\n"
        f"To follow it: sickbay repair {node}{how}"
    )


def none_follows(kind: str) -> str:
    """The effect on the ladder of the cancellation of a repair that has begun; a test is none."""
    return f"After a cancelled {clean(kind)} no further repair begins by itself in this quarantine."


def none_open(node: str, *, how: str) -> str:
    """There is no operation to cancel."""
    return (
        f"{node} has no open operation to cancel\n  To keep one from beginning: sickbay exempt "
        f'{node} --for 8h --reason "no repair"{how}'
    )


def manual_quarantine(action: Action, reason: str, requester: str) -> QuarantineSpec:
    """A quarantine made by hand. The name "sickbay" is the aggregator's own: it would end it."""
    who = requester if requester not in {"", "sickbay"} else "a person"
    return QuarantineSpec(action=action, kind="manual", reason=reason, requester=who)


def stopped(before: str, reason: str, *, how: str) -> str:
    """After a stop. ``how``, here and below: the options that a person needs to act again."""
    was = f' (it was stopped already: "{brief(before)}")' if before else ""
    return (
        f"Stopped{was}: {brief(reason)}\n"
        "No new quarantine and no step of a drain from now on, except a few that are in flight. "
        f"Releases go on.\nTo go on: sickbay resume{how}"
    )


def stopped_by_new_switch(namespace: str, reason: str, *, how: str) -> str:
    """After a stop that made the switch's object: the namespace may be the wrong one."""
    return (
        f"{stopped('', reason, how=how)}\n"
        f"BUT: there was no ConfigMap sickbay-stop in namespace {namespace}. If sickbay runs in "
        f"another one, it is not stopped: name that with --namespace. See: sickbay status{how}"
    )


def resumed(before: str) -> str:
    """After a resume."""
    return f'Resumed; it was stopped: "{brief(before)}"' if before else "It was not stopped."


def resumed_in_cluster(before: str, *, how: str) -> str:
    """After a resume where aggregators stay stopped although the object that held the stop was
    deleted.
    """
    return (
        resumed(before)
        if before
        else (
            "No stop is written in the cluster. If one was deleted, an aggregator that was still "
            f"stopped goes on now. See: sickbay status{how}"
        )
    )


def released(node: str, spec: QuarantineSpec, *, how: str) -> str:
    """After a release."""
    overruled = ", and this evidence quarantines the node no more until it is over"
    return (
        f"{node}: release requested (it was quarantined: {brief(spec.reason)}).\n"
        f"The aggregator undoes its own changes{overruled if spec.evidence else ''}. "
        f"See: sickbay node {node}{reading_flags(how)}"
    )


def order_open(node: str, repair: RepairStatus) -> str:
    """The order that a release meets; empty: none."""
    for one in repair.attempts:
        if one.state in BUSY:
            return (
                f"{node}: {clean(one.repair)} was ordered at {write_time(one.began_at)} and has no "
                f"end yet (operation {clean(one.operation)}).\n"
                "The release cancels it first, where that is still possible. Otherwise it reaches "
                "the node, and the work that comes there."
            )
    return ""


def quarantined(node: str, spec: QuarantineSpec, *, stop: str | None, how: str) -> str:
    """After a quarantine by hand. ``stop`` is the stop switch's reason, or None if it can't be
    read.
    """
    waits = ""
    if stop is None:
        waits = (
            "Your account may not read the stop switch; if it is set, no quarantine begins until "
            "it is lifted.\n"
        )
    elif stop:
        waits = (
            f"BUT: sickbay is stopped: {brief(stop)}\n"
            f"No quarantine begins until the stop is lifted. To lift it, for all nodes: "
            f"sickbay resume{how}\n"
        )
    return (
        f"{node}: {spec.action} requested: {brief(spec.reason)}\n{waits}"
        f"A person ends a quarantine that a person made: sickbay release {node}{how}"
    )


def drain_warning(mode: str) -> str:
    """The effect of the mode on a person's drain; empty in mode drain. ``mode`` is empty where no
    aggregator reports it.
    """
    if mode == "drain":
        return ""
    if not mode:
        return (
            "A drain begins in mode drain alone; in modes observe and cordon the node is only "
            "marked. No aggregator here reports the node, so the mode is not known."
        )
    return f"WARNING: mode {mode}: the node is marked, and its drain waits for mode drain."


#: Names of pods in a preview.
_FEW_PODS = 10


def preview(node: str, pods: Sequence[str] | None, staying: int) -> str:
    """The pods that a drain would evict; None where they can't be listed. ``staying``: the pods of
    DaemonSets, and those that the node's kubelet made itself.
    """
    if pods is None:
        return f"{node}: a drain evicts its pods; your account may not list them."
    if not pods:
        return f"{node}: a drain evicts no pod: none is there except {staying} that stay."
    few = ", ".join(pods[:_FEW_PODS]) + (", ..." if len(pods) > _FEW_PODS else "")
    return (
        f"{node}: a drain evicts {counted(len(pods), 'pod')}, whose work is lost: {clean(few)}\n"
        f"{counted(staying, 'pod')} of DaemonSets or of the kubelet will stay. Disruption budgets "
        "and the drain section of the configuration decide in which order (docs/drain.md)."
    )


def none_such(node: str, *, how: str) -> str:
    """The node has no quarantine to release."""
    return (
        f"{node} is not in quarantine: it has no quarantine to release\n"
        f"  See: sickbay quarantines{reading_flags(how)}"
    )


def unknown(node: str) -> str:
    """A local cluster's file has no entry of it: a node is in it after an action or a request."""
    return (
        f"this file has no node {node}: no action and no request has been made for it yet. Its "
        "agent may still report it.\n  Is the name right? See: sickbay nodes"
    )


def forgotten(node: str) -> str:
    """A local cluster's file has no entry of it any more."""
    return (
        f"{node}: forgotten. Within three minutes it is no longer shown. A later report of its "
        "agent makes it a new node."
    )


def not_forgotten(node: str, why: str, *, then: str) -> str:
    """The node's entry is still in use. ``then``: the command that ends that."""
    return f"{node} is {why}: it is not forgotten\n  First: {then}"


def already(node: str, spec: QuarantineSpec, *, change: str) -> str:
    """The node has a quarantine already. ``change``: the command that changes it."""
    return (
        f"{node} is in quarantine already ({spec.action}, by {brief(spec.requester) or 'hand'}: "
        f"{brief(spec.reason)})\n"
        f"  To change it: {change}"
    )
