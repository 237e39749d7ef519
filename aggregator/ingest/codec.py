"""The contract's messages as evidence: checked, bounded, ages turned into this machine's seconds.

A message that can't be evidence is refused with the field that is wrong, never repaired: a guess
about a failing node has no value. Of a message with a wrong entry (`Dropped`) all others count: one
text too long must not make a node invisible. Three things are fixed because they carry no
evaluation: text for people that is too long is cut; of too long a history the latest counts; a
fault whose last occurrence claims to be before its first (clocks of two cores differ) counts from
the earlier age.
"""

import math
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from aggregator.health.model import (
    CheckOff,
    Cleared,
    ClearedBy,
    Component,
    Delta,
    Fault,
    Hello,
    Lost,
    MeasuredSeries,
    Measurements,
    Snapshot,
    Status,
)
from aggregator.jobs.gpu_report import GpuReport, PodGpu
from aggregator.quarantine.repair.protocol import PermissionRequest
from aggregator.repairers.agent_orders import AgentOrder, AgentResult, Measured, OrderState
from aggregator.repairers.gpu_use import GpuUse
from aggregator.runtime.interning import intern_text
from aggregator.runtime.node_name import EXPECTED, is_node_name
from aggregator.runtime.text import truncate
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1.limits import (
    MAX_AGE_MS,
    MAX_CHECKS,
    MAX_CLEARED,
    MAX_COMPONENT,
    MAX_COMPONENTS,
    MAX_DETAILS,
    MAX_EVIDENCE_BYTES,
    MAX_FAULTS,
    MAX_GONE,
    MAX_GPU_USERS,
    MAX_HISTORY,
    MAX_LOST,
    MAX_NAME,
    MAX_OCCURRENCES,
    MAX_POD_GPUS,
    MAX_POD_NAME,
    MAX_SERIES,
    MAX_TEST_MEASUREMENTS,
    MAX_TEST_PROFILES,
    MAX_TEXT,
    MAX_TRAITS,
    MAX_TRANSITIONS,
)

_COMMON_TEXT = 40  # many nodes send the same short texts
#: Bytes of a Hello: more than one with all that the contract allows has. A gateway keeps it, and
#: forwards it whole, next to the credentials, in a message that may have `MAX_MESSAGE_BYTES`.
MOST_HELLO = 1024 * 1024
#: Characters of the problem of an entry.
_REASON = 300
_BY_IMPORTANCE = {3: 0, 2: 1, 4: 2, 1: 3}  # failed, degraded, unknown, ok

_STATUS = {int(status): status for status in Status}
_CLEARED_BY: Mapping[int, ClearedBy] = {
    pb.CLEARED_BY_REBOOT: ClearedBy.REBOOT,
    pb.CLEARED_BY_GPU_RESET: ClearedBy.GPU_RESET,
    pb.CLEARED_BY_EXPIRY: ClearedBy.EXPIRY,
    pb.CLEARED_BY_OPERATOR: ClearedBy.OPERATOR,
}


_VERBS = {
    "gpu-reset": pb.REPAIR_VERB_GPU_RESET,
    "reboot": pb.REPAIR_VERB_REBOOT,
    "test": pb.REPAIR_VERB_TEST,
}
_ORDER_STATES = {
    int(pb.REPAIR_STATE_ACCEPTED): OrderState.ACCEPTED,
    int(pb.REPAIR_STATE_REFUSED): OrderState.REFUSED,
    int(pb.REPAIR_STATE_RUNNING): OrderState.RUNNING,
    int(pb.REPAIR_STATE_SUCCEEDED): OrderState.SUCCEEDED,
    int(pb.REPAIR_STATE_FAILED): OrderState.FAILED,
    int(pb.REPAIR_STATE_UNKNOWN): OrderState.UNKNOWN,
    int(pb.REPAIR_STATE_INCONCLUSIVE): OrderState.INCONCLUSIVE,
}


class InvalidMessage(ValueError):
    """A message that is no evidence. ``field`` is its path in the message ("faults[3].code")."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")
        self.field = field
        self.what = what

    def within(self, entry: str) -> "InvalidMessage":
        """The same of the field of ``entry``."""
        return InvalidMessage(f"{entry}.{self.field}", self.what)


class Dropped:
    """The part of one message that was not taken: how many entries, and the problem of the
    first.
    """

    __slots__ = ("entries", "reason")

    def __init__(self) -> None:
        self.entries = 0
        self.reason = ""

    def add(self, error: InvalidMessage, entries: int = 1) -> None:
        self.entries += entries
        self.reason = self.reason or truncate(str(error), _REASON)


_Entry = TypeVar("_Entry")
_Taken = TypeVar("_Taken")
Steps: TypeAlias = Generator[None, None, _Taken]


def _taken(
    field: str,
    entries: Sequence[_Entry],
    most: int,
    take: Callable[[_Entry], _Taken],
    dropped: Dropped,
    importance: Callable[[_Entry], int] | None = None,
) -> tuple[_Taken, ...]:
    """The valid entries, ``most`` of them, the most important of too many."""
    if len(entries) > most:
        error = InvalidMessage(field, f"{len(entries)} entries; expected at most {most}")
        dropped.add(error, len(entries) - most)
        entries = (sorted(entries, key=importance) if importance else entries)[:most]
    found = []
    for i, entry in enumerate(entries):
        try:
            found.append(take(entry))
        except InvalidMessage as error:
            dropped.add(error.within(f"{field}[{i}]"))
    return tuple(found)


def node_of(message: pb.Hello) -> str:
    """The node that the message claims, for its identity to prove."""
    if (size := message.ByteSize()) > MOST_HELLO:
        raise InvalidMessage("size", f"{size} bytes; expected at most {MOST_HELLO}")
    return _node("node", message.node)


def hello(message: pb.Hello, dropped: Dropped) -> Hello:
    """The sender that the message claims. The identity gives the node's UID."""
    return Hello(
        node=_node("node", message.node),
        boot_id=_name("boot_id", message.boot_id),
        spool_epoch=_name("spool_epoch", message.spool_epoch),
        agent_version=_name("agent_version", message.agent_version),
        contract_version=message.contract_version,
        instance=_name("instance", message.instance),
        checks=_checks(message.checks, dropped),
        traits=_alike(tuple(_traits(message.traits, dropped).items())),
    )


def _checks(checks: Sequence[pb.CheckInfo], dropped: Dropped) -> tuple[CheckOff, ...]:
    if len(checks) <= MAX_CHECKS:
        try:
            return _valid_checks(tuple([_check(one) for one in checks]))
        except InvalidMessage:
            pass
    return _taken("checks", checks, MAX_CHECKS, lambda one: _check_off(*_check(one)), dropped)


def _check(check: pb.CheckInfo) -> tuple[str, int, str]:
    return check.name, check.interval_ms, truncate(check.off_because, MAX_TEXT)


@lru_cache(maxsize=64)
def _valid_checks(checks: tuple[tuple[str, int, str], ...]) -> tuple[CheckOff, ...]:
    """One tuple for all nodes of one kind: those have the same checks."""
    return tuple(_check_off(*one) for one in checks)


@lru_cache(maxsize=512)
def _check_off(name: str, interval_ms: int, off_because: str) -> CheckOff:
    """One for all nodes on which the check runs alike. It keeps its arguments: bounded texts."""
    return CheckOff(_name("name", name), _age("interval_ms", interval_ms), off_because)


def _traits(traits: Mapping[str, str], dropped: Dropped) -> dict[str, str]:
    try:
        return _entries("traits", traits, MAX_TRAITS)
    except InvalidMessage as error:
        dropped.add(error)
        return {}


def snapshot_in_steps(message: pb.Snapshot, *, at: float, dropped: Dropped) -> Steps[Snapshot]:
    """The agent's whole state, in steps between which the caller may yield: the largest message
    takes a tenth of a second. ``at`` is the monotonic second of its arrival.
    """
    quiesced_for = _age("quiesced_for_ms", message.quiesced_for_ms)
    parts = yield from _parts(message, at, dropped)
    return Snapshot(**parts, quiesced_for=quiesced_for, partial=dropped.entries > 0)


def delta_in_steps(message: pb.Delta, *, at: float, dropped: Dropped) -> Steps[Delta]:
    """The changes, as `snapshot_in_steps`."""
    return Delta(**(yield from _parts(message, at, dropped)))


def _parts(message: pb.Snapshot | pb.Delta, at: float, dropped: Dropped) -> Steps[dict[str, Any]]:
    history = _History(at)
    components = _components(message.components, history, dropped)
    yield
    faults = _faults(message.faults, history, dropped)
    yield
    return {
        "components": components,
        "faults": faults,
        "cleared": _taken("cleared", message.cleared, MAX_CLEARED, _cleared, dropped),
        "lost": _taken("lost", message.lost, MAX_LOST, _lost, dropped),
        "gone": _taken("gone", message.gone, MAX_GONE, _gone, dropped),
    }


def measurements(message: pb.Measurements, known: int) -> Measurements:
    """The measurements of a stream that has named ``known`` series before."""
    most = known + len(message.series)
    if most > MAX_SERIES:
        raise InvalidMessage("series", f"{most} in one stream; expected at most {MAX_SERIES}")
    if len(message.numbers) != len(message.values):
        text = f"{len(message.values)} for {len(message.numbers)} numbers"
        raise InvalidMessage("values", text)
    for field, numbers in (("numbers", message.numbers), ("absent", message.absent)):
        if len(numbers) > MAX_SERIES or any(number >= most for number in numbers):
            raise InvalidMessage(field, f"expected numbers of the {most} series that were named")
    return Measurements(
        known=known,
        series=tuple(
            MeasuredSeries(
                measure=_name(f"series[{i}].measure", one.measure),
                component=_text_of(f"series[{i}].component", one.component, MAX_NAME),
                model=_text_of(f"series[{i}].model", one.model, MAX_NAME),
            )
            for i, one in enumerate(message.series)
        ),
        values=tuple(zip(message.numbers, message.values, strict=True)),
        absent=tuple(message.absent),
    )


def repair_verbs(message: pb.Hello) -> tuple[str, ...]:
    """The repairs that the node's own configuration allows; none where it does not report its
    clock, in which an order's deadline is written.
    """
    if not message.boottime_ms:
        return ()
    return tuple(verb for verb, number in _VERBS.items() if number in message.repair_verbs)


def test_profiles(message: pb.Hello) -> tuple[str, ...]:
    """The test profiles of the node, as many as the contract allows."""
    named = message.test_profiles[:MAX_TEST_PROFILES]
    return tuple(intern_text(truncate(name, MAX_NAME)) for name in named)


def boottime(field: str, milliseconds: int) -> float:
    """The agent's CLOCK_BOOTTIME in seconds."""
    return _age(field, milliseconds)


def repair_result(message: pb.RepairResult) -> AgentResult | None:
    """How far the agent is with an order; None for a state that only a newer agent knows, and for
    the refusal of an order without an id.
    """
    state = _ORDER_STATES.get(message.state)
    if state is None or not message.operation_id:
        return None
    return AgentResult(
        _name("operation_id", message.operation_id),
        state,
        truncate(message.reason, MAX_NAME),
        _text(message.message),
        tuple(
            Measured(
                truncate(one.measure, MAX_NAME),
                truncate(one.component, MAX_NAME),
                one.value,
                truncate(one.unit, MAX_NAME),
            )
            for one in message.measurements[:MAX_TEST_MEASUREMENTS]
            if one.measure and math.isfinite(one.value)
        ),
        message.evidence if len(message.evidence.encode()) <= MAX_EVIDENCE_BYTES else "",
    )


def permission_request(message: pb.PermissionRequest) -> PermissionRequest:
    """The agent's request to begin; a verb that only a newer agent knows is empty text."""
    verbs = {number: verb for verb, number in _VERBS.items()}
    return PermissionRequest(
        _name("operation_id", message.operation_id),
        verbs.get(message.verb, ""),
        _name("quarantine_uid", message.quarantine_uid),
    )


def gpu_use(message: pb.GpuUse) -> tuple[str, GpuUse]:
    """The request that it answers, and who uses a GPU."""
    users = tuple(_text(one) for one in message.users[:MAX_GPU_USERS])
    use = GpuUse(users, _text(message.unknown), _gpu_report(message))
    return _name("request_id", message.request_id), use


def _gpu_report(message: pb.GpuUse) -> GpuReport:
    """Of a report with an entry outside the bounds the rest is taken, and is not the whole."""
    entries: list[PodGpu] = []
    unknown = _text(message.pods_unknown)
    if len(message.pods) > MAX_POD_GPUS:
        unknown = (
            f"the agent's report has {len(message.pods)} entries; at most {MAX_POD_GPUS} count"
        )
    for number, one in enumerate(message.pods[:MAX_POD_GPUS]):
        try:
            entries.append(_pod_gpu(one))
        except InvalidMessage as error:
            unknown = f"the agent's report: {error.within(f'pods[{number}]')}"
    return GpuReport(tuple(entries), unknown, _text(message.processes_unknown))


def _pod_gpu(one: pb.PodGpu) -> PodGpu:
    return PodGpu(
        namespace=_text_of("namespace", one.namespace, MAX_NAME),
        pod=_text_of("pod", one.pod, MAX_POD_NAME),
        pod_uid=_text_of("pod_uid", one.pod_uid, MAX_NAME),
        gpu=_name("gpu", one.gpu, MAX_POD_NAME),
        container=_text_of("container", one.container, MAX_NAME),
        claim=_text_of("claim", one.claim, MAX_POD_NAME),
        allocated=one.allocated,
        processes=one.processes,
    )


def _components(
    states: Sequence[pb.ComponentState], history: "_History", dropped: Dropped
) -> tuple[Component, ...]:
    def take(state: pb.ComponentState) -> Component:
        check, status, reason = _finding(state.check, state.status, state.reason)
        return Component(
            check,
            _text_of("component", state.component, MAX_COMPONENT),
            status,
            reason,
            _text(state.message),
            history.since("age_ms", state.age_ms),
            history.recent(state.recent),
        )

    return _taken("components", states, MAX_COMPONENTS, take, dropped, _importance)


@lru_cache(maxsize=2048)
def _finding(check: str, status: int, reason: str) -> tuple[str, Status, str]:
    """Most components of most nodes have one of a few."""
    return (_name("check", check), _status("status", status), _text_of("reason", reason, MAX_NAME))


def _importance(state: pb.ComponentState) -> int:
    """Failing entries go before unknown ones, and those before healthy ones."""
    return _BY_IMPORTANCE.get(state.status, len(_BY_IMPORTANCE))


class _History:
    """The past of one message's entries, ``at`` being the time of its arrival, bounded as a whole.

    One check run reads all of a node's GPUs at one moment: their times and transitions would
    otherwise be half of their cost, so each is kept once. When the total is more than an agent has,
    each further entry keeps only the latest of its past.
    """

    def __init__(self, at: float) -> None:
        self._at = at
        self._left = MAX_HISTORY
        self._times: dict[int, float] = {}
        self._known: dict[tuple[tuple[int, int], ...], tuple[tuple[float, Status], ...]] = {}

    def latest(self, past: Sequence[_Entry], most: int) -> Sequence[_Entry]:
        """The part of an entry's past that counts."""
        kept = past[-min(most, max(1, self._left)) :]
        self._left -= len(kept)
        return kept

    def since(self, field: str, age_ms: int) -> float:
        found = self._times.get(age_ms)
        if found is None:
            found = self._times[age_ms] = self._at - _age(field, age_ms)
        return found

    def recent(self, changes: Sequence[pb.Transition]) -> tuple[tuple[float, Status], ...]:
        if len(changes) == 1 and self._left > 0:  # of nearly all: no list is made of it
            self._left -= 1
            (change,) = changes
            key: tuple[tuple[int, int], ...] = ((change.age_ms, change.status),)
        else:
            latest = self.latest(changes, MAX_TRANSITIONS)
            key = tuple([(change.age_ms, change.status) for change in latest])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._transitions(key)
        return found

    def _transitions(self, key: tuple[tuple[int, int], ...]) -> tuple[tuple[float, Status], ...]:
        found = []
        for i, (age_ms, status) in enumerate(key):
            try:
                found.append((self.since("age_ms", age_ms), _status("status", status)))
            except InvalidMessage as error:
                raise error.within(f"recent[{i}]") from None
        return tuple(found)

    def occurrences(self, ages: Sequence[int]) -> tuple[float, ...]:
        latest = self.latest(ages, MAX_OCCURRENCES)
        field = "occurrence_ages_ms"
        return tuple(self._at - _age(f"{field}[{i}]", age) for i, age in enumerate(latest))


def _faults(faults: Sequence[pb.Fault], history: _History, dropped: Dropped) -> tuple[Fault, ...]:
    def take(fault: pb.Fault) -> Fault:
        return _fault(fault, history)

    # Entries that are only shown are dropped first.
    return _taken("faults", faults, MAX_FAULTS, take, dropped, lambda one: one.historical)


def _fault(fault: pb.Fault, history: _History) -> Fault:
    if fault.count == 0:
        raise InvalidMessage("count", "0; expected at least 1")
    cleared_by = _CLEARED_BY.get(fault.cleared_by)
    if cleared_by is None:
        raise InvalidMessage("cleared_by", f"{fault.cleared_by} is not known")
    first = history.since("first_age_ms", fault.first_age_ms)
    last = history.since("last_age_ms", fault.last_age_ms)
    return Fault(
        code=_name("code", fault.code),
        check=_name("check", fault.check),
        component=_text_of("component", fault.component, MAX_COMPONENT),
        message=_text(fault.message),
        boot_id=_name("boot_id", fault.boot_id),
        source=_name("source", fault.source),
        source_seq=fault.source_seq,
        first_at=min(first, last),
        last_at=max(first, last),
        count=fault.count,
        cleared_by=cleared_by,
        historical=fault.historical,
        details=_entries("details", fault.details, MAX_DETAILS),
        occurrences=history.occurrences(fault.occurrence_ages_ms),
    )


def _cleared(sign: pb.Cleared) -> Cleared:
    return Cleared(
        code=_text_of("code", sign.code, MAX_NAME),
        component=_text_of("component", sign.component, MAX_COMPONENT),
        how=_name("how", sign.how),
    )


def _lost(loss: pb.EvidenceLost) -> Lost:
    return Lost(_name("source", loss.source), loss.records, _text(loss.message))


def _gone(state: pb.ComponentState) -> tuple[str, str]:
    return (
        _name("check", state.check),
        _text_of("component", state.component, MAX_COMPONENT),
    )


@lru_cache(maxsize=4096)  # the nodes of a rack name their own NVLink fabric
def _alike(traits: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """One mapping for all nodes with the same entries."""
    return MappingProxyType(dict(traits))


def _entries(field: str, entries: Mapping[str, str], most: int) -> dict[str, str]:
    if len(entries) > most:
        raise InvalidMessage(field, f"{len(entries)} entries; expected at most {most}")
    # A map has no order on the wire; ours is the same for the same entries.
    return {_name(field, name): _text(entries[name]) for name in sorted(entries)}


def _status(field: str, value: int) -> Status:
    status = _STATUS.get(value)
    if status is None:
        raise InvalidMessage(field, f"{value} is no status")
    return status


def _age(field: str, milliseconds: int) -> float:
    """Seconds."""
    if milliseconds > MAX_AGE_MS:
        raise InvalidMessage(field, f"{milliseconds} ms; expected at most ten years")
    return milliseconds / 1000


def _name(field: str, text: str, most: int = MAX_NAME) -> str:
    """Text that distinguishes things: present, not too long, printable."""
    if not text:
        raise InvalidMessage(field, "empty")
    if not text.isprintable():
        raise InvalidMessage(field, "has characters that can't be printed")
    return _text_of(field, text, most)


def _node(field: str, text: str) -> str:
    if not is_node_name(text):
        raise InvalidMessage(field, f"{text[:60]!r} is no node's name; {EXPECTED}")
    return sys.intern(text)


def _text_of(field: str, text: str, most: int) -> str:
    """Text that is compared but may be empty, or any text that a path may be."""
    if len(text) > most:
        raise InvalidMessage(field, f"{len(text)} characters; expected at most {most}")
    return intern_text(text)


def _text(text: str) -> str:
    """Text that only people read: cut where it is too long."""
    if len(text) <= _COMMON_TEXT:
        return intern_text(text)
    return truncate(text, MAX_TEXT)


def welcome(
    *,
    name: str,
    version: str,
    heartbeat: float,
    peers: Sequence[str] = (),
    answer_within: float = 0.0,
    address: str = "",
) -> pb.AggregatorMessage:
    """``peers`` are addresses that the node is to probe.

    ``heartbeat`` is in seconds, and so is ``answer_within``: each heartbeat is answered in that
    time, or, for 0, no answer is promised. ``address`` is this replica's own.
    """
    return pb.AggregatorMessage(
        welcome=pb.Welcome(
            aggregator=name,
            aggregator_version=version,
            heartbeat_interval_ms=round(heartbeat * 1000),
            peers=peers,
            answer_within_ms=round(answer_within * 1000),
            address=address,
        )
    )


def entries_dropped(seq: int, dropped: Dropped) -> pb.AggregatorMessage:
    """The entries of message ``seq`` that were not taken; 0 means the Hello."""
    return pb.AggregatorMessage(
        entries_dropped=pb.EntriesDropped(seq=seq, entries=dropped.entries, reason=dropped.reason)
    )


def resync(reason: str) -> pb.AggregatorMessage:
    return pb.AggregatorMessage(resync=pb.Resync(reason=reason))


def repair_order(order: AgentOrder, deadline: float) -> pb.AggregatorMessage:
    """``deadline`` is in seconds of the agent's CLOCK_BOOTTIME."""
    return pb.AggregatorMessage(
        repair_order=pb.RepairOrder(
            operation_id=order.operation,
            verb=_VERBS[order.verb],
            quarantine_uid=order.quarantine,
            boot_id=order.boot_id,
            deadline_ms=round(max(0.0, deadline) * 1000),
            gpu_uuids=order.gpus,
            message=truncate(order.message, MAX_TEXT),
            test_profile=order.profile,
        )
    )


def permission(operation: str, refusal: str) -> pb.AggregatorMessage:
    """``refusal``: why it is not granted; empty: it is."""
    return pb.AggregatorMessage(
        permission=pb.Permission(
            operation_id=operation, granted=not refusal, reason=truncate(refusal, MAX_TEXT)
        )
    )
