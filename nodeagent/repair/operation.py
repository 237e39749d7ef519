"""Orders, the operations that they become, and the rules of their states. Pure.

Invariants (tests/agent/test_repair_operations.py):
- an operation id is begun at most once, whatever comes after it;
- a state that is final stays, except that a later boot makes an unknown reboot a success;
- an operation that was begun and has no recorded end is never begun again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from nodeagent.config.settings import VERBS
from nodeagent.dataclass import dataclass

__all__ = [
    "FINAL",
    "Operation",
    "Operations",
    "Order",
    "RecordUnusable",
    "RepairState",
    "Verb",
]


class Verb:
    """The verbs, as the configuration names them."""

    GPU_RESET, REBOOT, TEST = VERBS


class RepairState:
    """As in the contract's RepairState."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    INCONCLUSIVE = "inconclusive"


FINAL = frozenset(
    {
        RepairState.REFUSED,
        RepairState.SUCCEEDED,
        RepairState.FAILED,
        RepairState.UNKNOWN,
        RepairState.INCONCLUSIVE,
    }
)
_ALL = FINAL | {RepairState.ACCEPTED, RepairState.RUNNING}

#: Operations that are remembered, and those that a cap still counts. An older one has been
#: acknowledged and is long over.
MOST = 512
#: Seconds for which an operation that was begun is remembered, where no cap names another time.
WINDOW = 86400.0


class RecordUnusable(Exception):
    """The record of operations is malformed: nothing may be done by it, least of all from zero."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order as it came. ``deadline`` is in boottime seconds."""

    operation_id: str
    verb: str
    quarantine_uid: str
    boot_id: str
    deadline: float
    gpus: tuple[str, ...] = ()
    profile: str = ""
    peer: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """An order that was recorded. ``began``: its act was begun, or about to be.

    ``wall`` and ``boottime`` (seconds) are of its acceptance; ``seconds`` is how long it took.
    """

    operation_id: str
    verb: str
    quarantine_uid: str
    boot_id: str
    wall: float
    boottime: float
    gpus: tuple[str, ...] = ()
    profile: str = ""
    peer: str = ""
    state: str = RepairState.ACCEPTED
    reason: str = ""
    message: str = ""
    began: bool = False
    acknowledged: bool = False
    seconds: float = 0.0

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


_TEXTS = (
    "operation_id", "verb", "quarantine_uid", "boot_id", "profile", "peer", "state", "reason",
    "message",
)  # fmt: skip
_NUMBERS = ("wall", "boottime", "seconds")
_FLAGS = ("began", "acknowledged")


@dataclass(slots=True)
class Operations:
    """All operations that this node remembers, oldest first, by their id.

    ``window`` (seconds) is that of the caps: no operation that a cap counts is forgotten, so that
    nobody displaces it by many orders.
    """

    known: dict[str, Operation] = field(default_factory=dict)
    window: float = WINDOW

    def get(self, operation_id: str) -> Operation | None:
        return self.known.get(operation_id)

    def put(self, operation: Operation) -> None:
        """Add or change one. Forgets the oldest that are over and acknowledged, beyond `MOST`."""
        before = self.known.get(operation.operation_id)
        if before is not None:
            _check_step(before, operation)
        self.known[operation.operation_id] = operation
        if len(self.known) > MOST:
            for old in list(self.known.values())[: len(self.known) - MOST]:
                if old.is_final and old.acknowledged and not self._is_counted(old, operation):
                    del self.known[old.operation_id]

    def _is_counted(self, old: Operation, latest: Operation) -> bool:
        """Whether a cap may count it. A wall clock that went back keeps it for longer."""
        if not old.began:
            return False
        same = old.boot_id == latest.boot_id
        age = latest.boottime - old.boottime if same else latest.wall - old.wall
        return age < self.window

    def is_full(self) -> bool:
        """Whether there is no room for another: too many results that no aggregator has
        accepted.
        """
        return len(self.known) >= 2 * MOST

    def unfinished(self) -> list[Operation]:
        return [each for each in self.known.values() if not each.is_final]

    def to_report(self) -> list[Operation]:
        """Those whose end no aggregator has acknowledged."""
        return [each for each in self.known.values() if not each.acknowledged]

    def begun(self, verb: str, *, window: float, wall: float, boottime: float, boot_id: str) -> int:
        """How many of this verb were begun within the last ``window`` seconds.

        Within one boot its clock counts. Over a reboot the wall clock does: one that went back
        makes an operation younger, so that the cap holds for longer, and never shorter.
        """
        count = 0
        for each in self.known.values():
            if each.verb != verb or not each.began:
                continue
            same = each.boot_id == boot_id
            age = boottime - each.boottime if same else wall - each.wall
            if age < window:
                count += 1
        return count

    def recover(self, boot_id: str) -> list[Operation]:
        """What an agent that starts must conclude from the record; the operations that changed."""
        changed = []
        for operation in list(self.known.values()):
            after = recovered(operation, boot_id)
            if after != operation:
                self.put(after)
                changed.append(after)
        return changed

    def as_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "operations": [
                {name: getattr(each, name) for name in (*_TEXTS, *_NUMBERS, *_FLAGS)}
                | {"gpus": list(each.gpus)}
                for each in self.known.values()
            ],
        }

    @classmethod
    def of(cls, document: Any) -> "Operations":
        """Raises RecordUnusable for anything that ``as_json`` does not write."""
        if not isinstance(document, dict) or document.get("version") != 1:
            raise RecordUnusable("it is not of version 1")
        entries = document.get("operations")
        if not isinstance(entries, list):
            raise RecordUnusable("it has no list of operations")
        found = cls()
        for entry in entries:
            operation = _operation(entry)
            if operation.operation_id in found.known:
                raise RecordUnusable(f"the operation {operation.operation_id!r} is there twice")
            found.known[operation.operation_id] = operation
        return found


def recovered(operation: Operation, boot_id: str) -> Operation:
    """The operation as it is when an agent starts in the boot ``boot_id``."""
    other_boot = operation.boot_id != boot_id
    may_be_proved = operation.began and operation.state in (
        RepairState.RUNNING,
        RepairState.UNKNOWN,
    )
    if operation.verb == Verb.REBOOT and may_be_proved and other_boot:
        return replace(
            operation,
            state=RepairState.SUCCEEDED,
            reason="",
            message=f"the boot id has changed from {operation.boot_id} to {boot_id}",
            acknowledged=False,
        )
    if operation.is_final:
        return operation
    if not operation.began:
        return replace(
            operation,
            state=RepairState.REFUSED,
            reason="agent-restarted",
            message="the agent ended before it began; nothing was done",
        )
    how = "the node was rebooted" if other_boot else "the agent ended"
    return replace(
        operation,
        state=RepairState.UNKNOWN,
        reason="interrupted",
        message=f"{how} during the operation; its result is not known, and it is not repeated",
    )


def ended(
    operation: Operation, state: str, reason: str, message: str, *, seconds: float
) -> Operation:
    """The operation with its end."""
    return replace(operation, state=state, reason=reason, message=message, seconds=seconds)


def new(order: Order, *, wall: float, boottime: float) -> Operation:
    """The operation that an order becomes."""
    return Operation(
        operation_id=order.operation_id,
        verb=order.verb,
        quarantine_uid=order.quarantine_uid,
        boot_id=order.boot_id,
        wall=wall,
        boottime=boottime,
        gpus=order.gpus,
        profile=order.profile,
        peer=order.peer,
    )


def _check_step(before: Operation, after: Operation) -> None:
    """A defect of ours must stop here and not at the machine."""
    proved = before.state == RepairState.UNKNOWN and after.state == RepairState.SUCCEEDED
    if before.is_final and before.state != after.state and not proved:
        raise AssertionError(f"{before.operation_id}: {before.state} is final, not {after.state}")
    if before.began and not after.began:
        raise AssertionError(f"{before.operation_id}: it was begun")


def _operation(entry: Any) -> Operation:
    if not isinstance(entry, dict):
        raise RecordUnusable("an operation is no table")
    _all_are(entry, _TEXTS, lambda value: isinstance(value, str))
    _all_are(
        entry,
        _NUMBERS,
        lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    )
    _all_are(entry, _FLAGS, lambda value: isinstance(value, bool))
    gpus = entry.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(each, str) for each in gpus):
        raise RecordUnusable("gpus of an operation is no list of texts")
    if entry["state"] not in _ALL or entry["verb"] not in VERBS or not entry["operation_id"]:
        raise RecordUnusable(f"an operation has the state {entry['state']!r}, or an unknown verb")
    fields: Mapping[str, Any] = {name: entry[name] for name in (*_TEXTS, *_NUMBERS, *_FLAGS)}
    return Operation(**fields, gpus=tuple(gpus))


def _all_are(entry: dict[str, Any], names: Iterable[str], is_right: Any) -> None:
    for name in names:
        if name not in entry or not is_right(entry[name]):
            raise RecordUnusable(f"{name} of an operation is missing or of another kind")


Refusal = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The node at the moment of an order. Times are boottime and wall seconds."""

    boot_id: str
    boottime: float
    wall: float
    allow: Sequence[str]
    window: float
    caps: Mapping[str, int]
    gpus: Sequence[str]
    profiles: Sequence[str]
    busy_with: str = ""


def refusal(order: Order, operations: Operations, facts: Facts) -> Refusal | None:
    """Why the order is not taken: a reason and a sentence. The order's form has been checked."""
    if order.verb not in facts.allow:
        return "not-allowed", f"repair.allow of this node does not have {order.verb}"
    if order.boot_id != facts.boot_id:
        return "other-boot", f"the order is for boot {order.boot_id}, and this is {facts.boot_id}"
    if facts.boottime > order.deadline:
        late = facts.boottime - order.deadline
        return "deadline", f"the order came {late:.1f} s after its deadline"
    if order.verb == Verb.GPU_RESET:
        strange = sorted(set(order.gpus) - set(facts.gpus))
        if strange:
            known = ", ".join(facts.gpus) or "none"
            return "unknown-gpu", f"this node has no GPU {', '.join(strange)}; it has {known}"
    if order.verb == Verb.TEST and order.profile not in facts.profiles:
        known = ", ".join(facts.profiles)
        return "unknown-profile", f"no test profile {order.profile!r}; there are {known}"
    if facts.busy_with:
        return "busy", facts.busy_with
    begun = operations.begun(
        order.verb,
        window=facts.window,
        wall=facts.wall,
        boottime=facts.boottime,
        boot_id=facts.boot_id,
    )
    cap = facts.caps[order.verb]
    if begun >= cap:
        last = f"the last {facts.window:g} s"
        text = f"{begun} of {order.verb} were begun in {last}; this node's own bound is {cap}"
        return "capped", text
    return None
