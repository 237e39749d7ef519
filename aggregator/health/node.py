"""One node's evidence, built up. Pure: messages and times go in, the node's health comes out.

Invariants:
- Absence clears no fault. A latched fault ends only by a positive sign: `Cleared`, or another boot
  id for a fault that a boot clears. A snapshot of the same boot without the fault marks it
  ``missing``: it stays in force, and people see that evidence was lost.
- Applying a message twice has the effect of one.
- Boot ids have no order: another one is another boot, never "later".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain

from aggregator.health.components import Components
from aggregator.health.model import (
    Cleared,
    ClearedBy,
    Component,
    Delta,
    Fault,
    Hello,
    Lost,
    Snapshot,
    Status,
)
from aggregator.runtime.interning import EMPTY
from sickbay.v1.limits import MAX_FAULTS, MAX_GONE, MAX_MESSAGE_BYTES

#: Positive signs and losses that are remembered for a node; older ones have had their effect.
REMEMBERED = MAX_GONE
#: Losses that are remembered.
_MOST_LOST = 32
#: Components of our own evidence that are healthy again; more of them are the oldest, and dropped.
_MOST_OWN_HEALTHY = 64
#: Below this many faults their bytes are not counted.
_FEW = 64
#: Bytes of the texts and times of all faults that are held of one node.
_MOST_BYTES = MAX_MESSAGE_BYTES

#: The sign that a component no longer exists, by a person's decision.
GONE = "gone"

#: The faults that each positive sign ends. "operator" and "replaced" end all of the component's.
_ENDS: dict[str, frozenset[ClearedBy]] = {
    "gpu-reset": frozenset({ClearedBy.GPU_RESET, ClearedBy.EXPIRY}),
    "reboot": frozenset({ClearedBy.REBOOT, ClearedBy.GPU_RESET, ClearedBy.EXPIRY}),
    "expiry": frozenset({ClearedBy.EXPIRY}),
    "operator": frozenset(ClearedBy),
    "replaced": frozenset(ClearedBy),
}


def boot_ends(cleared_by: ClearedBy) -> bool:
    """Whether another boot is the positive sign for such a fault."""
    return cleared_by in _ENDS["reboot"]


class NodeHealth:
    """The evidence that one node's agent has reported, of its present boot."""

    __slots__ = (
        "_continuous",
        "_digest",
        "agent_version",
        "boot_id",
        "checks",
        "cleared",
        "components",
        "faults",
        "has_snapshot",
        "inferred",
        "lost",
        "node",
        "own",
        "quiesced_for",
        "spool_epoch",
        "traits",
    )

    def __init__(self, hello: Hello) -> None:
        self.node = hello.node
        self.boot_id = hello.boot_id
        self.spool_epoch = hello.spool_epoch
        self.agent_version = hello.agent_version
        self.checks = hello.checks
        self.traits = hello.traits
        self.components = Components()
        #: The components that the aggregator itself reports; no agent does.
        self.own: Mapping[tuple[str, str], Component] = EMPTY
        self.faults: Mapping[tuple[str, str], Fault] = EMPTY
        #: The other nodes' findings about this one, which are no part of its agent's state.
        self.inferred: Component | None = None
        #: (code, component) -> how; an empty code stands for every code of the component.
        self.cleared: Mapping[tuple[str, str], str] = EMPTY
        self.lost: tuple[Lost, ...] = ()
        self.quiesced_for = 0.0
        self.has_snapshot = False
        self._continuous = False
        self._digest: int | None = None

    def greet(self, hello: Hello) -> None:
        """A new stream of the node. Another boot ends the faults that a boot ends; the rest stays.

        Within one epoch the agent's memory is unbroken: a component that its next snapshot lacks
        was removed by a person's decision (unmounted, configured off). After a lost memory the
        component may only not have been checked yet.
        """
        self._continuous = (hello.boot_id, hello.spool_epoch) == (self.boot_id, self.spool_epoch)
        if hello.boot_id != self.boot_id:
            self.boot_id = hello.boot_id
            self.components = Components(self.own.values())
            self.faults = {
                key: fault for key, fault in self.faults.items() if not boot_ends(fault.cleared_by)
            } or EMPTY
            self.cleared = EMPTY
        self.spool_epoch = hello.spool_epoch
        self.agent_version = hello.agent_version
        self.checks = hello.checks
        self.traits = hello.traits
        self.has_snapshot = False

    def snapshot(self, received: Snapshot) -> None:
        """The agent's whole state. A fault that it no longer has is missing, not over."""
        polled_at = self.components
        self.components = Components((*received.components, *self.own.values()))
        if self._continuous and not received.partial:
            self._remember_cleared(dict.fromkeys(set(polled_at).difference(self.components), GONE))
        self._remember_cleared(dict.fromkeys(received.gone, GONE))
        self._forget_cleared(self.components)  # gone once, and there again
        self._clear(received.cleared)
        here = {fault.key: fault for fault in received.faults}
        missing = {
            key: replace(fault, missing=True)
            for key, fault in self.faults.items()
            if key not in here
        }
        self.faults = _within_bounds({**here, **missing}) or EMPTY
        self._lose(received.lost)
        self.quiesced_for = received.quiesced_for
        self.has_snapshot = self._continuous = True
        self._digest = None

    def record_own_evidence(self, component: Component) -> bool:
        """Apply evidence in the aggregator's own name; returns whether it is new."""
        before = self.own.get(component.key)
        own = {**self.own, component.key: component}
        self.components.put(component)
        if component.status is Status.OK:
            own[component.key] = own.pop(component.key)  # the latest one is the last
            healthy = [key for key, one in own.items() if one.status is Status.OK]
            for key in healthy[:-_MOST_OWN_HEALTHY]:
                del own[key]
                self.components.drop(key)
        self.own = own
        return before is None or (before.status, before.reason, before.message) != (
            component.status,
            component.reason,
            component.message,
        )

    def delta(self, received: Delta) -> None:
        """The changes within the stream that carried the snapshot."""
        self.components.put_all(received.components)
        self._forget_cleared(component.key for component in received.components)
        self._clear(received.cleared)
        if received.faults:
            latest = {fault.key: fault for fault in received.faults}
            self.faults = _within_bounds({**self.faults, **latest})
            self._forget_cleared(latest)
        self.components.drop_all(received.gone)
        self._remember_cleared(dict.fromkeys(received.gone, GONE))
        self._lose(received.lost)
        self._digest = None

    def _clear(self, signs: Sequence[Cleared]) -> None:
        self._remember_cleared({(sign.code, sign.component): sign.how for sign in signs})
        if signs and self.faults:
            named = {(sign.code, sign.component) for sign in signs if sign.code}
            ended: dict[str, set[ClearedBy]] = {}
            for sign in signs:
                if not sign.code:
                    ended.setdefault(sign.component, set()).update(_ENDS.get(sign.how, ()))
            self.faults = {
                key: fault
                for key, fault in self.faults.items()
                if key not in named and fault.cleared_by not in ended.get(fault.component, ())
            }

    def _remember_cleared(self, signs: Mapping[tuple[str, str], str]) -> None:
        """Keep the latest `REMEMBERED`, in the order in which they came last."""
        if signs:
            self._forget_cleared(signs)
            latest = [*self.cleared.items(), *signs.items()][-REMEMBERED:]
            self.cleared = dict(latest)

    def _forget_cleared(self, keys: Iterable[tuple[str, str]]) -> None:
        if self.cleared:
            over = set(keys)
            self.cleared = {key: how for key, how in self.cleared.items() if key not in over}

    def _lose(self, lost: Iterable[Lost]) -> None:
        losses = dict.fromkeys(lost)
        if losses:  # an agent repeats a loss until it is acknowledged
            before = [one for one in self.lost if one not in losses]
            self.lost = (*before, *losses)[-_MOST_LOST:]

    def how_cleared(self, code: str, component: str, cleared_by: ClearedBy) -> str:
        """The positive sign that ended this fault in this boot; empty when there was none."""
        if explicit := self.cleared.get((code, component), ""):
            return explicit  # a sign that names the code ends a fault of any kind
        general = self.cleared.get(("", component), "")
        return general if general and ends(general, cleared_by, explicit=False) else ""

    def levels(self) -> Iterable[Component]:
        """All level evidence of the node: its own agent's, and other nodes' findings about it."""
        theirs = () if self.inferred is None else (self.inferred,)
        return chain(self.components.all(), theirs)

    def failed(self) -> list[Component]:
        """Those of `levels` that are failed."""
        found = self.components.that_are(Status.FAILED)
        if self.inferred is not None and self.inferred.status is Status.FAILED:
            found.append(self.inferred)
        return found

    def level(self, key: tuple[str, str]) -> Component | None:
        """The one of `levels` with this key."""
        found = self.components.get(key)
        if found is None and self.inferred is not None and self.inferred.key == key:
            return self.inferred
        return found

    def worst_is_degraded(self) -> bool:
        """Whether any component is degraded or failed, or any fault of this boot is latched."""
        if self.components.that_are(Status.DEGRADED, Status.FAILED):
            return True
        return any(not fault.historical for fault in self.faults.values())

    def only_unknown(self) -> bool:
        """Whether no component is known to be healthy or failing."""
        return all(status is Status.UNKNOWN for _, _, status, _ in self._theirs())

    def digest(self) -> int | None:
        """The digest of the agent's state, or None before a snapshot. docs/contract.md has the
        bytes.
        """
        if not self.has_snapshot:
            return None
        if self._digest is None:
            self._digest = _digest(self._theirs(), self.faults.values())
        return self._digest

    def _theirs(self) -> Iterable[tuple[str, str, Status, str]]:
        """The agent's findings, without our own: check, component, status, reason."""
        if not self.own:
            return self.components.findings()
        return (one for one in self.components.findings() if one[:2] not in self.own)


def _within_bounds(faults: Mapping[tuple[str, str], Fault]) -> Mapping[tuple[str, str], Fault]:
    """As many as one node may have: faults that its agent knows before missing ones, and those
    before faults that are only shown. Evidence that an incident rests on is the incident's own, and
    stays.
    """
    if len(faults) <= _FEW:
        return faults  # each is some KiB at most
    if len(faults) <= MAX_FAULTS and sum(map(_size, faults.values())) <= _MOST_BYTES:
        return faults
    kept: dict[tuple[str, str], Fault] = {}
    left = _MOST_BYTES
    for key, fault in sorted(faults.items(), key=lambda one: (one[1].historical, one[1].missing)):
        left -= _size(fault)
        if left < 0 or len(kept) == MAX_FAULTS:
            break
        kept[key] = fault
    return kept


def _size(fault: Fault) -> int:
    """The bytes that it takes in memory, beyond those that every fault takes."""
    details = sum(len(name) + len(value) + 128 for name, value in fault.details.items())
    return len(fault.component) + len(fault.message) + details + 32 * len(fault.occurrences)


def ends(how: str, cleared_by: ClearedBy, *, explicit: bool) -> bool:
    """Whether a sign ends a fault of this kind.

    A sign that names the code is the agent's own conclusion and ends it; one that names only the
    component ends what such a sign can end (a GPU reset does not undo an Xid 79).
    """
    return explicit or cleared_by in _ENDS.get(how, frozenset())


def _digest(findings: Iterable[tuple[str, str, Status, str]], faults: Iterable[Fault]) -> int:
    lines = [
        f"c\x1f{check}\x1f{component}\x1f{int(status)}\x1f{reason}\n".encode()
        for check, component, status, reason in findings
    ]
    lines += [
        f"f\x1f{f.code}\x1f{f.component}\x1f{f.boot_id}\x1f{f.source}"
        f"\x1f{f.source_seq}\x1f{f.count}\n".encode()
        for f in faults
        if not f.missing
    ]
    digest = blake2b(digest_size=8)
    for line in sorted(lines):
        digest.update(line)
    return int.from_bytes(digest.digest(), "big")
