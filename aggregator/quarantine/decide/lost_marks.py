"""Which of our marks a quarantined node lacks, and when they are set again. Pure.

Marks that are missing from a node that is still cordoned are no release: a person's ways to release
it are the Quarantine and the cordon. They are set again a few times, with a grace that grows, and
then only reported. So sickbay and another writer do not fight over them.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from aggregator.cluster.node_names import APPLIED, CODES, LABEL
from aggregator.cluster.port import AppliedChanges, MarksStatus, Node, Quarantine
from aggregator.configfile.values import Duration
from aggregator.quarantine.decide.node_marks import (
    PLAIN,
    MarkRules,
    applied_taint,
    known_applied,
    read_applied,
)
from aggregator.rfc3339 import span

#: All that a marked node carries of ours, by the names in the Quarantine's status.
ALL_MARKS = ("taint", "label", "applied", "codes", "condition")
CONDITION = "condition"
_NAMES = {
    "label": f"label {LABEL}",
    "applied": f"annotation {APPLIED}",
    "codes": f"annotation {CODES}",
    CONDITION: "condition SickbayQuarantined",
}
_GROWTH = 4.0
#: This long after the last restore (seconds) the earlier ones count no more.
_FORGOTTEN_AFTER = 86400.0


@dataclass(frozen=True, slots=True)
class RestoreRules(MarkRules):
    """The section ``marks``: the reaction where our marks were removed from a node whose quarantine
    is in force.

    ``restore_after``: seconds from when they were found missing until they are set again the first
    time; each further time it is fourfold. ``restore_times``: after this number of times they are
    only reported, until a day has passed without; 0: from the start.
    """

    restore_after: Annotated[Duration, Field(ge=1)] = 60.0
    """Our taint, label, annotations or condition were removed from a node, or changed, and its
    quarantine exists: they are set again after this long, and after four times as long each further
    time. docs/fences.md#marks-that-are-lost.
    """
    restore_times: Annotated[int, Field(ge=0, le=10)] = 3
    """At most this often; then it is only reported, until a day after the last. ``0``: never set
    again.
    """


def missing_marks(node: Node, quarantine: Quarantine) -> tuple[str, ...]:
    """Which of our marks this Node lacks, or bears changed; in the order of `ALL_MARKS`."""
    if node.uid != quarantine.status.node_uid:
        return ALL_MARKS
    applied = known_applied(node, quarantine)
    value = applied.value if applied is not None else ""
    ours = applied_taint(applied) if applied is not None else PLAIN.taint.of("")
    same = [one.value for one in node.taints if (one.key, one.effect) == (ours.key, ours.effect)]
    taint = any(value == (ours.value or value) for value in same)
    label = node.labels.get(LABEL)
    there = {
        "taint": taint,
        "label": label is not None and label == (value or label),
        "applied": read_applied(node) is not None,
        "codes": CODES in node.annotations,
        CONDITION: node.condition in (None, "True"),
    }
    return tuple(name for name in ALL_MARKS if not there[name])


def restore_at(marks: MarksStatus, rules: RestoreRules) -> float | None:
    """When the missing marks are set again (wall clock seconds), or None if they are not.

    A restore is counted before it is made: one that was counted and not made is due at once.
    """
    restored = _restored(marks)
    if not marks.missing or restored >= rules.restore_times:
        return None
    made = restored - (restored > 0 and marks.restored_at >= marks.since)
    return marks.since + rules.restore_after * _GROWTH**made


def describe_missing(missing: tuple[str, ...], applied: AppliedChanges | None) -> str:
    """The marks by name, for people. ``applied``: our changes, which have the taint; None: lost."""
    taint = f"taint {applied_taint(applied).key}" if applied is not None else "taint"
    names = {**_NAMES, "taint": taint}
    return ", ".join(names.get(name, name) for name in missing)


def describe_lost(marks: MarksStatus, rules: RestoreRules, applied: AppliedChanges | None) -> str:
    """The missing marks and the response to that, for people; ``applied`` as for their names."""
    at, restored = restore_at(marks, rules), _restored(marks)
    lost = f"removed or changed in an open quarantine: {describe_missing(marks.missing, applied)}"
    if at is None:
        return f"{lost}; not set again any more, after {restored} times"
    due = (
        f"set again after {span(round(at - marks.since))} ({restored + 1} of {rules.restore_times})"
    )
    return f"{lost}; {due}, unless sickbay is stopped"


def counted(marks: MarksStatus, now: float) -> MarksStatus:
    """After one more restore, at ``now``."""
    return MarksStatus(restored=_restored(marks) + 1, restored_at=now)


def _restored(marks: MarksStatus) -> int:
    if marks.since - marks.restored_at >= _FORGOTTEN_AFTER and marks.since:
        return 0
    return marks.restored
