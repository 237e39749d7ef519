"""The latch as a JSON document and back.

The document holds all state that must survive the agent: the evidence, the marks that make a replay
harmless, the kernel log cursor (they move together or not at all), and the GPU map.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from nodeagent.dataclass import dataclass
from nodeagent.evidence.entries import ComponentEntry, FaultEntry
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.machine_identity import MachineIdentity, read_identity
from nodeagent.model import ClearedBy, Clearing, Gone, Loss, Status
from sickbay.v1.limits import MAX_COUNT

#: An unreleased version wrote none.
FORMAT = 1


class StateError(ValueError):
    """A state document that cannot be used; the text states what is wrong with it."""


class Unreleased(Exception):
    """An unreleased version wrote the document, which no version reads."""


class AnotherMachine(StateError):
    """The document is whole, and of another machine; the text names which."""


@dataclass(slots=True)
class State:
    """The content of the state file.

    ``kernel_seq`` is the last kernel log record consumed, ``quiesced_until`` (boottime seconds)
    when NVML may be used again, ``cliques`` the NVLink cliques of the node's GPUs, ``named`` the
    parts that the configuration names, by check.
    """

    latch: Latch
    kernel_seq: int | None = None
    gpus: Mapping[str, str] | None = None
    quiesced_until: float = 0.0
    cliques: str = ""
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)


def dump(state: State, now: float, *, identity: MachineIdentity | None = None) -> dict[str, Any]:
    """The document; ``now`` is in boottime seconds, like every time in it.

    ``identity`` is this machine's.
    """
    latch = state.latch
    return {
        "format": FORMAT,
        "machine": None if identity is None else identity.dump(),
        "boot_id": latch.boot_id,
        "epoch": latch.epoch,
        "saved_at": now,
        "last_seq": latch.last_seq,
        "last_acked": latch.last_acked,
        "applied": latch.applied,
        "kernel_seq": state.kernel_seq,
        "components": [_component(entry) for entry in latch.components.values()],
        "faults": [_fault(entry) for entry in latch.faults.values()],
        "clearings": [[c.component, c.how, c.code] for c in latch.unacked.clearings],
        "losses": [[loss.source, loss.records, loss.message] for loss in latch.unacked.losses],
        "gone": [[one.check, one.component, matters] for one, matters in latch.unacked.gone],
        "gpus": dict(state.gpus or {}),
        "quiesced_until": state.quiesced_until,
        "cliques": state.cliques,
        "named": dict(state.named),
    }


def restore(
    document: object,
    *,
    boot_id: str,
    new_epoch: Callable[[], str] | None,
    identity: MachineIdentity | None = None,
) -> State:
    """The state that a document holds, as far as it counts in this boot of this machine.

    ``identity`` is this machine's; with None any document is taken for its own. A document of this
    very boot is always this machine's, since no two boots have the same id; one that names no
    machine is taken for this machine's.

    ``new_epoch`` given means that the document may be older than the messages sent, so that its
    sequence numbers are not used again. From another boot only the GPU map, the cliques, events not
    yet acknowledged, and faults that only a person ends are kept; their times become "at least that
    long ago". Raises StateError, of another machine's document AnotherMachine, and Unreleased.
    """
    if isinstance(document, dict) and "format" not in document and "epoch" in document:
        raise Unreleased
    try:
        if identity is not None:
            _check_identity(document, boot_id, identity)
        return _restore(document, boot_id, new_epoch)
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(f"{type(error).__name__}: {error}") from error


def _check_identity(document: Any, boot_id: str, ours: MachineIdentity) -> None:
    theirs = read_identity(document)
    if theirs is None or document["boot_id"] == boot_id:
        return
    difference = ours.difference(theirs)
    if difference:
        raise AnotherMachine(f"it is of another machine ({difference})")


def _restore(document: Any, boot_id: str, new_epoch: Callable[[], str] | None) -> State:
    if document["format"] != FORMAT:
        raise ValueError(f"format is {document['format']!r}, expected {FORMAT}")
    same_boot = document["boot_id"] == boot_id
    latch = Latch(boot_id=boot_id, epoch=new_epoch() if new_epoch else str(document["epoch"]))
    latch.last_seq = _count(document["last_seq"])
    latch.last_acked = _count(document["last_acked"])
    for component, how, code in document["clearings"]:
        latch.unacked.clear(Clearing(str(component), str(how), str(code)))
    for source, records, message in document["losses"]:
        latch.unacked.add_loss(Loss(str(source), _count(records), str(message)))
    for check, component, matters in document["gone"]:
        latch.unacked.take_gone(Gone(str(check), str(component)), matters=bool(matters))
    gpus = {str(address): str(uuid) for address, uuid in document["gpus"].items()}
    cliques = str(document["cliques"])
    faults = [_restore_fault(fault) for fault in document["faults"]]
    if not same_boot:
        lasting = [fault for fault in faults if fault.cleared_by is ClearedBy.OPERATOR]
        for fault in lasting:
            _shift(fault, -float(document["saved_at"]))
        latch.restore((), lasting)
        return State(latch, None, gpus, cliques=cliques)
    latch.restore([_restore_component(entry) for entry in document["components"]], faults)
    latch.applied = {str(source): int(seq) for source, seq in document["applied"].items()}
    kernel_seq = document["kernel_seq"]
    quiesced_until = float(document["quiesced_until"])
    seq = None if kernel_seq is None else int(kernel_seq)
    lists = document.get("named", {})
    named = {str(check): [str(part) for part in parts] for check, parts in lists.items()}
    return State(latch, seq, gpus, quiesced_until, cliques, named)


def _component(entry: ComponentEntry) -> list[Any]:
    names = [entry.check, entry.component, int(entry.status), entry.reason, entry.message]
    return [*names, entry.since, entry.absent, [[int(s), at] for s, at in entry.recent]]


def _restore_component(fields: list[Any]) -> ComponentEntry:
    check, component, status, reason, message, since, absent, recent = fields
    return ComponentEntry(
        str(check),
        str(component),
        Status(status),
        str(reason),
        str(message),
        float(since),
        [(Status(of), float(at)) for of, at in recent],
        int(absent),
    )


def _fault(entry: FaultEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in FaultEntry.__slots__}


def _restore_fault(fields: Mapping[str, Any]) -> FaultEntry:
    texts = ("code", "check", "component", "message", "boot_id", "source")
    return FaultEntry(
        **{name: str(fields[name]) for name in texts},
        source_seq=_count(fields["source_seq"]),
        first=float(fields["first"]),
        last=float(fields["last"]),
        last_seq=int(fields["last_seq"]),
        cleared_by=ClearedBy(fields["cleared_by"]),
        historical=bool(fields["historical"]),
        details={str(key): str(value) for key, value in fields["details"].items()},
        count=_count(fields["count"]),
        occurrences=[float(at) for at in fields["occurrences"]],
    )


def _count(value: Any) -> int:
    """A number that goes into messages. Raises ValueError for one that none takes."""
    number = int(value)
    if not 0 <= number <= MAX_COUNT:
        raise ValueError(f"{number:.3g} is no count")
    return number


def _shift(fault: FaultEntry, by: float) -> None:
    fault.first += by
    fault.last += by
    fault.occurrences = [at + by for at in fault.occurrences]
