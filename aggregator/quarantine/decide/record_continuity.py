"""Whether the admission record that was read continues the one that was known; how it is rebuilt.

The record is changed by compare-and-set alone, each time with the next generation. So a record of
another object, of a lower generation, or of the same one with another content, was deleted, rolled
back or edited. An admission by it that was not begun is void: in the rebuilt record only nodes
whose Quarantine stands have an entry. Pure.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from aggregator.cluster.port import Phase, Quarantine, QuarantineSpec
from aggregator.quarantine.decide.admission_record import (
    MOST_PAST_REPAIRS,
    Entry,
    Rebuilt,
    Record,
    RunningOperation,
)
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.node_marks import MOST_REASON


@dataclass(frozen=True, slots=True)
class Known:
    """The last record known to be whole: its object's uid, its text, and its parsed form."""

    uid: str
    text: str
    record: Record


def discontinuity(
    known: Known | None, uid: str, text: str, record: Record, *, newest: int = 0
) -> str:
    """How the record fails to continue the known one; empty: it continues it.

    ``newest``: the highest generation by which a Quarantine that stands was admitted.
    """
    generation = record.generation
    if generation < newest:
        return f"is older (generation {generation}) than a Quarantine that stands ({newest})"
    if known is None or not known.record.generation:
        return ""  # it never admitted a node
    rebuilt = record.rebuilt is not None and record.rebuilt.uid == uid
    if known.uid != uid and not (rebuilt and generation > known.record.generation):
        return "is gone" if not uid and not text else "was deleted and made anew"
    if generation < known.record.generation:
        return f"was rolled back from generation {known.record.generation} to {generation}"
    if generation == known.record.generation and text != known.text:
        return f"has another content in its generation {generation}"
    return ""


def rebuild(
    record: Record,
    known: Known | None,
    standing: Iterable[Entry],
    *,
    rebuilt: Rebuilt,
    newest: int,
    repairs: Iterable[RunningOperation] = (),
) -> Record:
    """The record made anew, with the entries of the Quarantines that stand and no others.

    Times of admissions and cooldowns are those of both records, so that no known one is forgotten.
    ``newest`` as for `discontinuity`. ``repairs``: those under way by Quarantines that stand.
    """
    before = known.record if known is not None else Record()
    old = {**before.entries, **record.entries}
    entries = {entry.node: old.get(entry.node) or entry for entry in standing}
    times = Counter(before.admissions) | Counter(record.admissions)
    by_pool = {
        pool: Counter(before.pool_admissions.get(pool, ()))
        | Counter(record.pool_admissions.get(pool, ()))
        for pool in {*before.pool_admissions, *record.pool_admissions}
    }
    new = [entry.at for node, entry in entries.items() if node not in old]
    cooldowns = {**before.cooldowns}
    for ident, one in record.cooldowns.items():
        if ident not in cooldowns or cooldowns[ident].at < one.at:
            cooldowns[ident] = one
    running = record
    for lost in (*before.operations.values(), *repairs):  # the later record's come first
        running = running.restore(lost)
    past = {
        node: tuple(
            sorted(
                {*before.past_repairs.get(node, ()), *record.past_repairs.get(node, ())},
                key=lambda one: one.at,
            )
        )[-MOST_PAST_REPAIRS:]
        for node in {*before.past_repairs, *record.past_repairs}
    }
    return replace(
        record,
        operations=running.operations,
        past_repairs=past,
        entries=entries,
        admissions=tuple(sorted([*times.elements(), *new])),
        cooldowns=cooldowns,
        generation=max(record.generation, before.generation, newest),
        rebuilt=rebuilt,
        pool_admissions={pool: tuple(sorted(of.elements())) for pool, of in by_pool.items()},
    )


def entry_of(node: str, spec: QuarantineSpec, at: float, pool: str, policy_pool: str) -> Entry:
    """The entry of a Quarantine that is in force since ``at``, of a node in these pools."""
    by_hand = spec.requester != OURS
    return Entry(
        node=node,
        incident=spec.incident,
        pool=pool,
        action=spec.action.value,
        at=at,
        requester=spec.requester[:MOST_REASON] if by_hand else "",
        reason=spec.reason[:MOST_REASON] if by_hand else "",
        kind=spec.kind if by_hand else "",
        policy_pool=policy_pool,
    )


def takes_a_place(quarantine: Quarantine) -> bool:
    """Whether it counts for the limits although the record has no entry of it.

    One that is being released is counted by its entry alone, which leaves when its node is undone.
    """
    phase = quarantine.status.phase
    return not quarantine.problem and phase not in (Phase.RELEASING, Phase.INVALID)


def has_begun(quarantine: Quarantine) -> bool:
    """Whether a rebuilt record has an entry of it: of one in release too, until it is undone."""
    in_release = quarantine.status.phase is Phase.RELEASING and quarantine.status.cordoned_at > 0
    return in_release or takes_a_place(quarantine)
