"""One node's evidence, built up. Pure: messages and times go in, the node's health comes out.

Invariants:
- Absence clears no fault. A latched fault ends only by a positive sign: `Cleared`, or another boot
  id for a fault that a boot clears. A snapshot of the same boot without the fault marks it
  ``missing``: it stays in force, and people see that evidence was lost.
- Applying a message twice has the effect of one.
- Boot ids have no order: another one is another boot, never "later".

The components that its agent checks, by (check, component), are kept as small as possible. A node
of eight GPUs has some forty. As objects they would be 4 KB, for each of 10,000 nodes, and hardly
anything in them is the node's own: one GPU's finding equals all others', on most nodes too. So they
are columns, which share equal values and are 0.8 KB at least; a `Component` is built when a caller
requests one. Beyond `FEW` they are a dict, because lookups in it are faster.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeVar

from aggregator.health.model import (
    Cleared,
    ClearedBy,
    Component,
    Delta,
    Fault,
    Hello,
    Lost,
    MeasuredSeries,
    Snapshot,
    Status,
)
from aggregator.runtime.interning import EMPTY
from sickbay.v1.limits import MAX_COMPONENTS, MAX_FAULTS, MAX_GONE, MAX_MESSAGE_BYTES

Key = tuple[str, str]
_T = TypeVar("_T")

FEW = 128
#: Up to this many are put into columns one by one; for more at once a rebuild costs less.
_ONE_BY_ONE = 8
#: Bytes of all texts and times that are held of one node: the size that one message may have.
MOST_BYTES = MAX_MESSAGE_BYTES
_OF_A_CHANGE = 80  # bytes in memory

#: One finding: check, status, reason.
_Finding = tuple[str, Status, str]
#: Since when, and the transitions; a time alone where the only transition was to the present
#: status.
_Past = float | tuple[float, tuple[tuple[float, Status], ...]]


class Components:
    """In the order in which they came; of two with one key the later one counts."""

    __slots__ = ("_findings", "_many", "_memo", "_messages", "_names", "_pasts")

    def __init__(self, components: Iterable[Component] = ()) -> None:
        # No `key`: of nearly all nodes the keys are not kept, and most are no other node's.
        self._keep(_bounded({(one.check, one.component): one for one in components}))

    def _keep(self, found: dict[Key, Component]) -> None:
        self._memo: Any = None
        few = found.values() if len(found) <= FEW else ()
        self._many: dict[Key, Component] | None = None if len(found) <= FEW else found
        self._findings = _one_for_all(tuple(map(_finding, few)))
        self._messages = _one_text_for_all(tuple(one.message for one in few))
        self._names = tuple(one.component for one in few)
        self._pasts = tuple(map(_past, few))

    def with_these_names(self, series: Iterable[MeasuredSeries]) -> tuple[MeasuredSeries, ...]:
        """The same series, with the names that these components keep: each is 90 bytes."""
        names = {name: name for name in self._names}
        return tuple(
            replace(one, component=names.get(one.component, one.component)) for one in series
        )

    def put_all(self, components: Sequence[Component]) -> int:
        """Put each in the place of the one with its key, or after all others. Returns how many of
        all had no room: those that matter least are dropped.
        """
        self._memo = None
        if len(components) <= _ONE_BY_ONE and self._many is None:
            for one in components:
                self.put(one)
            return 0
        found = {one.key: one for one in self.all()} if self._many is None else self._many
        found.update((one.key, one) for one in components)
        kept = _bounded(found)
        if self._many is None or len(kept) < len(found):
            self._keep(kept)
        return len(found) - len(kept)

    def put(self, component: Component) -> None:
        """Put it in the place of the one with its key, or after all others."""
        self._memo = None
        if self._many is not None:
            self._many[component.key] = component
            return
        at = self._at(component.check, component.component)
        if at is None and len(self) == FEW:
            self._keep({one.key: one for one in (*self.all(), component)})
            return
        if at is None:
            at = len(self)
            self._names = (*self._names, component.component)
        self._findings = _one_for_all(_with(self._findings, at, _finding(component)))
        self._messages = _one_text_for_all(_with(self._messages, at, component.message))
        self._pasts = _with(self._pasts, at, _past(component))

    def drop_all(self, keys: Sequence[Key]) -> None:
        """Remove these, where they are present."""
        if self._many is None and len(keys) > _ONE_BY_ONE:
            over = frozenset(keys)
            self._keep({one.key: one for one in self.all() if one.key not in over})
            return
        for key in keys:
            self.drop(key)

    def drop(self, key: Key) -> None:
        """Remove it, where it is present."""
        self._memo = None
        if self._many is not None:
            self._many.pop(key, None)
            return
        at = self._at(*key)
        if at is not None:
            self._names = _with(self._names, at)
            self._findings = _one_for_all(_with(self._findings, at))
            self._messages = _one_text_for_all(_with(self._messages, at))
            self._pasts = _with(self._pasts, at)

    def memo(self, compute: Callable[["Components"], _T]) -> _T:
        """The result of ``compute``, which is computed anew after a change. Callers may use one
        function at most.
        """
        if self._memo is None:
            self._memo = compute(self)
        found: _T = self._memo
        return found

    def all(self) -> Iterable[Component]:
        if self._many is not None:
            return self._many.values()
        return map(self._component, range(len(self._names)))

    def of(self, check: str) -> list[Component]:
        """The components of one check."""
        if self._many is not None:
            return [one for one in self._many.values() if one.check == check]
        return [self._component(at) for at, one in enumerate(self._findings) if one[0] == check]

    def names_of(self, check: str) -> list[str]:
        """The names of the components of one check."""
        if self._many is not None:
            return [name for of, name in self._many if of == check]
        return [self._names[at] for at, one in enumerate(self._findings) if one[0] == check]

    def that_are(self, *statuses: Status) -> list[Component]:
        """The components of these statuses. Nearly always there are no failed ones."""
        if self._many is not None:
            return [one for one in self._many.values() if one.status in statuses]
        return [self._component(at) for at, one in enumerate(self._findings) if one[1] in statuses]

    def findings(self) -> Iterable[tuple[str, str, Status, str]]:
        """The check, component, status and reason of each: for callers that need all, but no other
        field.
        """
        if self._many is not None:
            return ((a.check, a.component, a.status, a.reason) for a in self._many.values())
        return (
            (check, name, status, reason)
            for name, (check, status, reason) in zip(self._names, self._findings, strict=True)
        )

    def __getitem__(self, key: Key) -> Component:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def get(self, key: Key) -> Component | None:
        if self._many is not None:
            return self._many.get(key)
        at = self._at(*key)
        return None if at is None else self._component(at)

    def __contains__(self, key: Key) -> bool:
        return key in self._many if self._many is not None else self._at(*key) is not None

    def __iter__(self) -> Iterator[Key]:
        return ((check, component) for check, component, _, _ in self.findings())

    def __len__(self) -> int:
        return len(self._names) if self._many is None else len(self._many)

    def _at(self, check: str, component: str) -> int | None:
        for at, name in enumerate(self._names):
            if name == component and self._findings[at][0] == check:
                return at
        return None

    def _component(self, at: int) -> Component:
        check, status, reason = self._findings[at]
        past = self._pasts[at]
        since, recent = past if isinstance(past, tuple) else (past, ((past, status),))
        return Component(check, self._names[at], status, reason, self._messages[at], since, recent)


_IMPORTANCE = {Status.FAILED: 0, Status.DEGRADED: 1, Status.UNKNOWN: 2, Status.OK: 3}


def _bounded(found: dict[Key, Component]) -> dict[Key, Component]:
    """As many as one node may have: failing ones before healthy ones, then the first to come."""
    if len(found) <= FEW:
        return found  # each is some KiB at most
    if len(found) <= MAX_COMPONENTS and sum(map(_size_of, found.values())) <= MOST_BYTES:
        return found
    kept: dict[Key, Component] = {}
    left = MOST_BYTES
    for key, one in sorted(found.items(), key=lambda item: _IMPORTANCE[item[1].status]):
        left -= _size_of(one)
        if left < 0 or len(kept) == MAX_COMPONENTS:
            break
        kept[key] = one
    return kept


def _size_of(one: Component) -> int:
    texts = len(one.component) + len(one.reason) + len(one.message)
    return texts + _OF_A_CHANGE * len(one.recent)


def _finding(one: Component) -> _Finding:
    return _one_finding(one.check, one.status, one.reason)


def _past(one: Component) -> _Past:
    known = one.recent == ((one.since, one.status),)
    return one.since if known else (one.since, one.recent)


def _with(column: tuple[_T, ...], at: int, *instead: _T) -> tuple[_T, ...]:
    """The column with ``instead`` in the place of the present value; without ``instead``, one
    shorter.
    """
    return (*column[:at], *instead, *column[at + 1 :])


@lru_cache(maxsize=2048)
def _one_finding(check: str, status: Status, reason: str) -> _Finding:
    """One tuple for all components with the same finding."""
    return (check, status, reason)


@lru_cache(maxsize=256)
def _one_for_all(findings: tuple[_Finding, ...]) -> tuple[_Finding, ...]:
    """One column for all nodes of a kind on which all components are healthy."""
    return findings


@lru_cache(maxsize=256)
def _one_text_for_all(messages: tuple[str, ...]) -> tuple[str, ...]:
    """One column for all nodes with the same messages."""
    return messages


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
        #: (code, component) -> how; an empty code means every code of the component.
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


# -- the names of its GPUs for people --------------------------------------------------------------
#
# Evidence names a GPU by its UUID, which no slot and no `nvidia-smi -i` shows. The index is that of
# NVML at the agent's last reading; an absent GPU has none, so it has its address alone.

_INVENTORY = "gpu-inventory"
_UUID = "GPU-"
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
#: "GPU 3 at 0000:1b:00" where the agent knows the index, else "NVIDIA H100 at 0000:1b:00".
_PLACE = re.compile(rf"(?:\bGPU (\d{{1,4}}) )?at ({_ADDRESS})(?![0-9a-fA-F])")
_SLOT = re.compile(rf"(?:pci:)?({_ADDRESS})")
_COMPONENT = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_NAME = re.compile(rf"\bGPU (?:\d{{1,4}} )?(?:at )?{_ADDRESS}(?![0-9a-fA-F])")


def gpu_name(
    health: NodeHealth | None, component: str, details: Mapping[str, str] | None = None
) -> str:
    """The GPU's index and PCI address ("GPU 3 at 0000:1b:00"), or its address alone; empty where
    the component is no GPU, or neither is known.

    ``details`` are those of a fault: the driver's line has the address.
    """
    if not component or health is None:
        return ""
    found = health.components.get((_INVENTORY, component))
    place = _PLACE.search(found.message) if found is not None else None
    if place is not None and place[1] is not None:
        return f"GPU {place[1]} at {place[2].lower()}"
    slot = place[2] if place is not None else _slot(component, details or {})
    return f"GPU {slot.lower()}" if slot else ""


def _slot(component: str, details: Mapping[str, str]) -> str:
    """The address that the component is named by, or that its fault's line has."""
    named = component if component.startswith("pci:") else ""
    if not named and component.startswith(_UUID):
        named = details.get("pci", "")
    match = _SLOT.fullmatch(named)
    return match[1] if match is not None else ""


def name_gpus(text: str, health: NodeHealth | None) -> str:
    """The text with each GPU by index and address where it has the UUID, as far as they are known.

    This is for people: what programs compare keeps the UUID.
    """
    if _UUID not in text or health is None:
        return text
    return _COMPONENT.sub(lambda found: _known_name(health, found[0]) or found[0], text)


def _known_name(health: NodeHealth, uuid: str) -> str:
    faults = (one.details for one in health.faults.values() if one.component == uuid)
    details = next((one for one in faults if "pci" in one), None)
    return gpu_name(health, uuid, details)


def hide_gpus(text: str) -> str:
    """The text with "a GPU" for each GPU, so that the texts of several nodes are equal."""
    return _NAME.sub("a GPU", _COMPONENT.sub("a GPU", text)) if "GPU" in text else text
