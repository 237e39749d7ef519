"""The contract's messages as evidence: checked, bounded, ages turned into this machine's seconds.

What can't be evidence is refused with the field that is wrong, never repaired: a guess about a
sick node is worth nothing. Two things are mended because they carry no judgement: text for people
that is too long is cut, and a fault that claims to have been seen last before it was first seen
(clocks of two cores differ) counts from the earlier age.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from aggregator.health.model import (
    CheckOff,
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
from aggregator.sharing import one_text
from aggregator.shortened import shortened
from sickbay.v1 import sickbay_pb2 as pb

#: Far above what a node has, far below what would hold up the others: a full message is folded in
#: a tenth of a second.
MAX_COMPONENTS = 2_000
MAX_FAULTS = 1_000
MAX_SIGNS = 1_000  # clearings and losses in one message
MAX_RECENT = 256  # transitions of a component, occurrences of a fault
MAX_CHECKS = 200
MAX_ENTRIES = 32  # details of a fault, traits of a node
#: Characters. A path on Linux, the longest component, has at most 4,096.
MAX_COMPONENT = 4_096
MAX_NAME = 128
MAX_TEXT = 2_000
_COMMON_TEXT = 40  # what short texts say, many nodes say
#: Ten years: no machine has been up for longer, and a float still holds it exactly.
MAX_AGE_MS = 10 * 365 * 86_400_000

#: As the agent's own configuration has it. A site's commands are called with such a name: it must
#: not read as an option, a list or a path.
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")

_STATUS = {int(status): status for status in Status}
_CLEARED_BY: Mapping[int, ClearedBy] = {
    pb.CLEARED_BY_REBOOT: ClearedBy.REBOOT,
    pb.CLEARED_BY_GPU_RESET: ClearedBy.GPU_RESET,
    pb.CLEARED_BY_EXPIRY: ClearedBy.EXPIRY,
    pb.CLEARED_BY_OPERATOR: ClearedBy.OPERATOR,
}


class WireError(ValueError):
    """A message that is no evidence. ``field`` is its path in the message ("faults[3].code")."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")
        self.field = field


def hello(message: pb.Hello) -> Hello:
    """Who says that it speaks. The node's UID is the identity's to tell."""
    _bounded("checks", message.checks, MAX_CHECKS)
    return Hello(
        node=_node("node", message.node),
        boot_id=_name("boot_id", message.boot_id),
        spool_epoch=_name("spool_epoch", message.spool_epoch),
        agent_version=_name("agent_version", message.agent_version),
        contract_version=message.contract_version,
        instance=_name("instance", message.instance),
        checks=_one_for_all(
            tuple(
                CheckOff(
                    _name(f"checks[{i}].name", check.name),
                    _age(f"checks[{i}].interval_ms", check.interval_ms),
                    _text(check.off_because),
                )
                for i, check in enumerate(message.checks)
            )
        ),
        traits=_alike(tuple(_entries("traits", message.traits).items())),
    )


def snapshot(message: pb.Snapshot, *, at: float) -> Snapshot:
    """All that the agent knows, ``at`` monotonic seconds being when it came."""
    return Snapshot(
        components=_components(message.components, at),
        faults=_faults(message.faults, at),
        cleared=_cleared(message.cleared),
        lost=_lost(message.lost),
        quiesced_for=_age("quiesced_for_ms", message.quiesced_for_ms),
    )


def delta(message: pb.Delta, *, at: float) -> Delta:
    """What has changed, ``at`` monotonic seconds being when it came."""
    _bounded("gone", message.gone, MAX_COMPONENTS)
    return Delta(
        components=_components(message.components, at),
        faults=_faults(message.faults, at),
        cleared=_cleared(message.cleared),
        lost=_lost(message.lost),
        gone=tuple(
            (
                _name(f"gone[{i}].check", state.check),
                _text_of(f"gone[{i}].component", state.component, MAX_COMPONENT),
            )
            for i, state in enumerate(message.gone)
        ),
    )


def answer(message: pb.CommandResult) -> tuple[str, bool, str]:
    """(command id, whether it worked, what the agent says about it)."""
    return _name("command_id", message.command_id), message.ok, _text(message.message)


def _components(states: Sequence[pb.ComponentState], at: float) -> tuple[Component, ...]:
    _bounded("components", states, MAX_COMPONENTS)
    pasts = _Pasts(at)
    return tuple(_component(f"components[{i}]", s, pasts) for i, s in enumerate(states))


def _component(field: str, state: pb.ComponentState, pasts: "_Pasts") -> Component:
    return Component(
        check=_name(f"{field}.check", state.check),
        component=_text_of(f"{field}.component", state.component, MAX_COMPONENT),
        status=_status(f"{field}.status", state.status),
        reason=_text_of(f"{field}.reason", state.reason, MAX_NAME),
        message=_text(state.message),
        since=pasts.since(f"{field}.age_ms", state.age_ms),
        recent=pasts.recent(f"{field}.recent", state.recent),
    )


class _Pasts:
    """The times of one message's components, ``at`` being when it came, each kept once.

    One look sees all of a node's GPUs at one moment: by themselves their times and transitions
    would be half of what they cost.
    """

    def __init__(self, at: float) -> None:
        self._at = at
        self._times: dict[int, float] = {}
        self._known: dict[tuple[tuple[int, int], ...], tuple[tuple[float, Status], ...]] = {}

    def since(self, field: str, age_ms: int) -> float:
        found = self._times.get(age_ms)
        if found is None:
            found = self._times[age_ms] = self._at - _age(field, age_ms)
        return found

    def recent(
        self, field: str, changes: Sequence[pb.Transition]
    ) -> tuple[tuple[float, Status], ...]:
        _bounded(field, changes, MAX_RECENT)
        key = tuple((change.age_ms, change.status) for change in changes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(
                (
                    self.since(f"{field}[{i}].age_ms", age_ms),
                    _status(f"{field}[{i}].status", status),
                )
                for i, (age_ms, status) in enumerate(key)
            )
        return found


def _faults(faults: Sequence[pb.Fault], at: float) -> tuple[Fault, ...]:
    _bounded("faults", faults, MAX_FAULTS)
    return tuple(_fault(f"faults[{i}]", fault, at) for i, fault in enumerate(faults))


def _fault(field: str, fault: pb.Fault, at: float) -> Fault:
    if fault.count == 0:
        raise WireError(f"{field}.count", "0; expected at least 1")
    cleared_by = _CLEARED_BY.get(fault.cleared_by)
    if cleared_by is None:
        raise WireError(f"{field}.cleared_by", f"{fault.cleared_by} is not known")
    _bounded(f"{field}.occurrence_ages_ms", fault.occurrence_ages_ms, MAX_RECENT)
    first = at - _age(f"{field}.first_age_ms", fault.first_age_ms)
    last = at - _age(f"{field}.last_age_ms", fault.last_age_ms)
    return Fault(
        code=_name(f"{field}.code", fault.code),
        check=_name(f"{field}.check", fault.check),
        component=_text_of(f"{field}.component", fault.component, MAX_COMPONENT),
        message=_text(fault.message),
        boot_id=_name(f"{field}.boot_id", fault.boot_id),
        source=_name(f"{field}.source", fault.source),
        source_seq=fault.source_seq,
        first_at=min(first, last),
        last_at=max(first, last),
        count=fault.count,
        cleared_by=cleared_by,
        historical=fault.historical,
        details=_entries(f"{field}.details", fault.details),
        occurrences=tuple(
            at - _age(f"{field}.occurrence_ages_ms[{i}]", age)
            for i, age in enumerate(fault.occurrence_ages_ms)
        ),
    )


def _cleared(signs: Sequence[pb.Cleared]) -> tuple[Cleared, ...]:
    _bounded("cleared", signs, MAX_SIGNS)
    return tuple(
        Cleared(
            code=_text_of(f"cleared[{i}].code", sign.code, MAX_NAME),
            component=_text_of(f"cleared[{i}].component", sign.component, MAX_COMPONENT),
            how=_name(f"cleared[{i}].how", sign.how),
        )
        for i, sign in enumerate(signs)
    )


def _lost(losses: Sequence[pb.EvidenceLost]) -> tuple[Lost, ...]:
    _bounded("lost", losses, MAX_SIGNS)
    return tuple(
        Lost(_name(f"lost[{i}].source", loss.source), loss.records, _text(loss.message))
        for i, loss in enumerate(losses)
    )


@lru_cache(maxsize=64)
def _one_for_all(checks: tuple[CheckOff, ...]) -> tuple[CheckOff, ...]:
    """The first tuple that was equal to this one: nodes of one kind have the same checks."""
    return checks


@lru_cache(maxsize=256)
def _alike(traits: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """One mapping for all nodes of which the same is so."""
    return MappingProxyType(dict(traits))


def _bounded(field: str, items: Sequence[object], most: int) -> None:
    if len(items) > most:
        raise WireError(field, f"{len(items)} entries; expected at most {most}")


def _entries(field: str, entries: Mapping[str, str]) -> dict[str, str]:
    if len(entries) > MAX_ENTRIES:
        raise WireError(field, f"{len(entries)} entries; expected at most {MAX_ENTRIES}")
    # A map has no order on the wire; ours is the same for the same entries.
    return {_name(field, name): _text(entries[name]) for name in sorted(entries)}


def _status(field: str, value: int) -> Status:
    status = _STATUS.get(value)
    if status is None:
        raise WireError(field, f"{value} is no status")
    return status


def _age(field: str, milliseconds: int) -> float:
    """Seconds."""
    if milliseconds > MAX_AGE_MS:
        raise WireError(field, f"{milliseconds} ms; expected at most ten years")
    return milliseconds / 1000


def _name(field: str, text: str, most: int = MAX_NAME) -> str:
    """What things are told apart by: there, not too long, printable."""
    if not text:
        raise WireError(field, "empty")
    if not text.isprintable():
        raise WireError(field, "has characters that can't be printed")
    return _text_of(field, text, most)


def _node(field: str, text: str) -> str:
    if _NODE.fullmatch(text) is None:
        expected = "letters, digits, '-', '_' and '.', at most 253"
        raise WireError(field, f"{text[:60]!r} is no node's name; expected {expected}")
    return sys.intern(text)


def _text_of(field: str, text: str, most: int) -> str:
    """What is compared but may be empty, or anything that a path may be."""
    if len(text) > most:
        raise WireError(field, f"{len(text)} characters; expected at most {most}")
    return one_text(text)


def _text(text: str) -> str:
    """What only people read: cut where it is too long."""
    if len(text) <= _COMMON_TEXT:
        return one_text(text)
    return shortened(text, MAX_TEXT)


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

    ``heartbeat`` is in seconds, and so is ``answer_within``: each is answered in that time; 0: no
    answer is promised. ``address`` is this replica's own.
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


def ack(seq: int) -> pb.AggregatorMessage:
    return pb.AggregatorMessage(ack=pb.Ack(seq=seq))


def resync(reason: str) -> pb.AggregatorMessage:
    return pb.AggregatorMessage(resync=pb.Resync(reason=reason))


def redirect(address: str, reason: str) -> pb.AggregatorMessage:
    return pb.AggregatorMessage(redirect=pb.Redirect(address=address, reason=reason))


def clear_faults(command_id: str, component: str, code: str, reason: str) -> pb.AggregatorMessage:
    return pb.AggregatorMessage(
        clear_faults=pb.ClearFaults(
            command_id=command_id, component=component, code=code, reason=reason
        )
    )


def quiesce(command_id: str, seconds: float, reason: str) -> pb.AggregatorMessage:
    return pb.AggregatorMessage(
        quiesce=pb.Quiesce(command_id=command_id, for_ms=round(seconds * 1000), reason=reason)
    )


def run_checks(command_id: str, names: Sequence[str]) -> pb.AggregatorMessage:
    return pb.AggregatorMessage(run_checks=pb.RunChecks(command_id=command_id, checks=names))
