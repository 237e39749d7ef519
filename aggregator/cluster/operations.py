"""Operations: one reset, reboot, replacement, ticket or test of a node, an object each.

The name of our own follows from the quarantine, a number and the kind, so that creating it is the
compare-and-set: two processes that decide on the same step compute the same name, and one of them
gets a `Conflict`. An object with any other name is a person's request, which begins by a write at
its version. A `Quarantine` is read with the attempts and requests that its operations are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aggregator.cluster.port import (
    Operation,
    OperationRequest,
    OperationSpec,
    OperationStatus,
    Quarantine,
    RepairAttempt,
    RepairState,
    is_older,
)
from aggregator.policy.repairs import TEST

#: The requester of our own.
OURS = "sickbay"
#: Why one is cancelled, for people.
DELETED_BY_HAND = "a person deleted its operation"
#: The beginning of the message of one whose status can't be read.
_UNREAD = "its status can't be read: "


class KnownOperations:
    """The operations as last read, seen or written: none goes back to an earlier version.

    Those of another installation are left out. ``installation``: ours; empty: there is one.
    """

    def __init__(self, installation: str = "") -> None:
        self.installation = installation
        self._by_node: dict[str, dict[str, Operation]] = {}
        self._requests: dict[str, Operation] = {}
        self._deleted_tests: dict[str, Operation] = {}

    @property
    def requests(self) -> list[Operation]:
        """People's own that have not ended, the oldest first."""
        return sorted(self._requests.values(), key=_age)

    @property
    def deleted_tests(self) -> list[Operation]:
        """Tests of nodes in no quarantine that have ended, and that a person has deleted since."""
        return [*self._deleted_tests.values()]

    def node_tests(self, node: str = "") -> list[Operation]:
        """The tests of nodes in no quarantine that have begun: all, or the node's."""
        there = [self._by_node.get(node, {})] if node else self._by_node.values()
        return [one for found in there for one in found.values() if is_node_test(one)]

    def has(self, node: str) -> bool:
        """Whether the node has any that may be of a quarantine."""
        there = self._by_node.get(node)
        return there is not None and not all(is_node_test(one) for one in there.values())

    def take(self, operation: Operation) -> bool:
        """Take one that was seen or written. Returns whether it is new, or changed."""
        there = self._by_node.setdefault(operation.spec.node, {})
        known = there.get(operation.name)
        same = known is not None and known.uid == operation.uid
        if known is not None and same and not is_older(known.version, operation.version):
            return False
        self._keep(operation)
        return True

    def _keep(self, operation: Operation) -> None:
        if not operation.is_of(self.installation):
            self.drop(operation)
            return
        self._by_node.setdefault(operation.spec.node, {})[operation.name] = operation
        self._leave_out(operation.name)
        if operation.is_open and is_request(operation):
            self._requests[operation.name] = operation
        if operation.deleting and not operation.is_open and is_node_test(operation):
            self._deleted_tests[operation.name] = operation

    def _leave_out(self, name: str) -> None:
        self._requests.pop(name, None)
        self._deleted_tests.pop(name, None)

    def take_read(self, operations: Iterable[Operation], node: str = "") -> None:
        """These are all that there are of the fleet, or of the node and held: versions go backwards
        when etcd is restored.
        """
        before = [*self._by_node.pop(node, {}).values()] if node else []
        if not node:
            self._by_node.clear()
            self._requests.clear()
            self._deleted_tests.clear()
        for one in before:
            self._leave_out(one.name)
        for one in (*(one for one in before if not one.held), *operations):
            self._keep(one)

    def drop(self, operation: Operation) -> None:
        """It is gone."""
        there = self._by_node.get(operation.spec.node, {})
        known = there.get(operation.name)
        if known is not None and known.uid == operation.uid:
            del there[operation.name]
            self._leave_out(operation.name)
        if not there:
            self._by_node.pop(operation.spec.node, None)

    def join(self, quarantine: Quarantine) -> Quarantine:
        return with_attempts(quarantine, self._by_node.get(quarantine.node, {}).values())


def _age(operation: Operation) -> tuple[float, str]:
    return operation.created_at, operation.name


def name_of(quarantine_uid: str, number: int, kind: str) -> str:
    """The name of our own operation: the same for each process that decides on it."""
    return f"{quarantine_uid}-{number}-{kind}"


def kind_in(name: str, quarantine_uid: str) -> str:
    """The kind in such a name; empty: it is of another quarantine."""
    prefix = f"{quarantine_uid}-"
    return name.removeprefix(prefix).partition("-")[2] if name.startswith(prefix) else ""


def is_request(operation: Operation) -> bool:
    """Whether a person, or another tool, has made it: its name is none of ours, or we do not hold
    it, as each of our own from its creation on.
    """
    spec = operation.spec
    own_test = spec.kind == TEST and not spec.quarantine and spec.requester == OURS
    return not (operation.held and (own_test or _number_in(operation.name, spec)))


def is_node_test(operation: Operation) -> bool:
    """Whether it is, or may be, a begun test of a node in no quarantine."""
    spec, status = operation.spec, operation.status
    may_be = spec.kind == TEST and not (spec.quarantine or status.quarantine)
    return status.node_test is not None or (may_be and is_unread(operation))


def is_unread(operation: Operation) -> bool:
    """Whether part of its status can't be read."""
    return operation.status.message.startswith(_UNREAD)


def first_tests(requests: Iterable[Operation]) -> dict[str, Operation]:
    """The first request of each node for a test in no quarantine that has not begun."""
    found: dict[str, Operation] = {}
    for one in requests:
        is_open = one.status.phase is RepairState.PENDING and not one.deleting
        if is_open and one.spec.kind == TEST and not one.spec.quarantine:
            found.setdefault(one.spec.node, one)
    return found


def newest_tests(operations: Iterable[Operation]) -> list[Operation]:
    """The newest test of each node, whose status has what is known of the node. By their numbers,
    as a clock may have gone back; of two Nodes of one name by time.
    """
    of_nodes: dict[tuple[str, str], Operation] = {}
    for one in filter(is_node_test, operations):
        key = one.spec.node, one.status.node_uid
        of_nodes[key] = max(of_nodes.get(key, one), one, key=test_order)
    found = sorted(of_nodes.values(), key=lambda one: one.status.began_at)
    return [*{one.spec.node: one for one in found}.values()]


def test_order(operation: Operation) -> tuple[int, float]:
    """The order of one Node's tests."""
    return operation.status.number, operation.status.began_at


def _number_in(name: str, spec: OperationSpec) -> int:
    """The number in a name of our own; 0: it is none."""
    number = name.removeprefix(f"{spec.quarantine}-").removesuffix(f"-{spec.kind}")
    if not (spec.quarantine and number.isdecimal() and number.isascii()):
        return 0
    return int(number) if name == name_of(spec.quarantine, int(number), spec.kind) else 0


def with_attempts(quarantine: Quarantine, operations: Iterable[Operation]) -> Quarantine:
    """The Quarantine with the attempts and requests that its operations are, the oldest first."""
    found = list(operations)
    begun = (
        one
        for one in found
        if one.status.quarantine == quarantine.uid and one.status.phase is not RepairState.PENDING
    )
    attempts = tuple(attempt_of(one) for one in sorted(begun, key=lambda one: one.status.number))
    waiting = (one for one in sorted(found, key=_age) if is_request(one) and not one.deleting)
    requests = tuple(
        OperationRequest(one.name, one.spec.kind, one.spec.profile, one.uid)
        for one in waiting
        if _may_begin(one, quarantine)
    )
    status = quarantine.status
    known = status.repair
    if (attempts, requests) == (known.attempts, known.requests):
        return quarantine
    repair = replace(known, attempts=attempts, requests=requests)
    return replace(quarantine, status=replace(status, repair=repair))


def _may_begin(operation: Operation, quarantine: Quarantine) -> bool:
    """Whether it may become the next attempt of the quarantine."""
    spec = operation.spec
    pending = operation.status.phase is RepairState.PENDING
    here = spec.node == quarantine.node and spec.quarantine in ("", quarantine.uid)
    return pending and here and not is_of_service(operation, quarantine)


def is_of_service(operation: Operation, quarantine: Quarantine) -> bool:
    """Whether a person requested a test of the node before it came into this quarantine: that test
    would have left the node in service, and ends as one that had begun does.
    """
    of_none = operation.spec.kind == TEST and not operation.spec.quarantine
    return of_none and operation.created_at < quarantine.created_at


def is_request_of(operation: Operation, quarantine: Quarantine, attempt: RepairAttempt) -> bool:
    """Whether it may become just this attempt: another request may have got its name since."""
    spec = operation.spec
    profile = not attempt.profile or spec.profile in ("", attempt.profile)
    return spec.kind == attempt.repair and profile and _may_begin(operation, quarantine)


def attempt_of(operation: Operation) -> RepairAttempt:
    """The attempt that an operation is."""
    spec, status = operation.spec, operation.status
    return RepairAttempt(
        operation=status.operation or operation.name,
        repair=spec.kind,
        state=status.phase,
        boot_id=status.boot_id,
        node_uid=status.node_uid,
        request=operation.name if status.operation else "",
        began_at=status.began_at,
        deadline_at=status.deadline_at,
        ended_at=status.ended_at,
        message=status.message,
        domains=status.domains,
        profile=status.profile or spec.profile,
        ends_as=status.ends_as,
        deleted=operation.deleting,
    )


def spec_of(quarantine: Quarantine, attempt: RepairAttempt, reason: str = "") -> OperationSpec:
    """The spec of the operation that an attempt of ours is to become."""
    return OperationSpec(
        node=quarantine.node,
        kind=attempt.repair,
        quarantine=quarantine.uid,
        profile=attempt.profile,
        requester=OURS,
        reason=reason,
    )


def begun_status(
    quarantine: Quarantine | None, attempt: RepairAttempt, number: int
) -> OperationStatus:
    """The status by which an operation becomes that attempt, of this quarantine if of one."""
    begun = OperationStatus(
        operation=attempt.operation if attempt.request else "",
        quarantine=quarantine.uid if quarantine is not None else "",
        number=number,
        boot_id=attempt.boot_id,
        node_uid=attempt.node_uid,
        domains=attempt.domains,
        profile=attempt.profile if attempt.request else "",
    )
    return status_of(attempt, begun)


def status_of(attempt: RepairAttempt, before: OperationStatus) -> OperationStatus:
    """The status of an attempt that has gone on since ``before``."""
    return replace(
        before,
        phase=attempt.state,
        message=attempt.message,
        began_at=attempt.began_at,
        deadline_at=attempt.deadline_at,
        ended_at=attempt.ended_at,
        ends_as=attempt.ends_as,
    )


def cancelled(before: OperationStatus, message: str, now: float) -> OperationStatus:
    """The status of an operation that ends before its order. ``now``: wall clock seconds."""
    phase, at = RepairState.CANCELLED, round(now, 3)
    return replace(before, phase=phase, message=message, ended_at=at)


def unknown_outcome(
    name: str, spec: OperationSpec, readable: OperationStatus, why: Exception
) -> OperationStatus:
    """The status of an operation of which only the ``readable`` part can be read. It keeps its
    place: with one attempt less a number would be used again, and a repair repeated.
    """
    return replace(
        readable,
        phase=RepairState.UNKNOWN,
        message=f"{_UNREAD}{why}",
        quarantine=readable.quarantine or spec.quarantine,
        number=readable.number or _number_in(name, spec),
    )


def pending_of(quarantine: Quarantine, operations: Iterable[Operation]) -> list[Operation]:
    """The operations of which certainly nothing was ordered, and that may become an attempt of the
    quarantine at any moment.
    """
    return [one for one in operations if _may_begin(one, quarantine)]


def outdated(
    operations: Iterable[Operation], *, now: float, window: float, per_node: int, most: int
) -> list[Operation]:
    """The ended operations that may be removed, oldest first.

    None that has not ended, and none within ``window`` of its beginning. Beyond that each node
    keeps its newest ``per_node``, and the fleet ``most``.
    """
    ended = sorted(
        (one for one in operations if not one.is_open), key=lambda one: one.status.ended_at
    )
    newest = {id(one) for one in _newest_of_each(ended, per_node)}
    removable, left = [], len(ended)
    for one in ended:
        if abs(now - one.status.began_at) < window:
            continue
        if id(one) not in newest or left > most:
            removable.append(one)
            left -= 1
    return removable


def _newest_of_each(ended: Sequence[Operation], per_node: int) -> list[Operation]:
    """``ended``: oldest first."""
    counts: dict[str, int] = {}
    kept = []
    for one in reversed(ended):
        counts[one.spec.node] = counts.get(one.spec.node, 0) + 1
        if counts[one.spec.node] <= per_node:
            kept.append(one)
    return kept
