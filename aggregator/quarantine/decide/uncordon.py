"""The response to the uncordon of a quarantined node: a release, or a cordon again. Pure.

The API server does not keep who uncordoned a node: `unschedulable: false` is not stored, so no
manager owns the field in managedFields (docs/decisions/0012-uncordon.md has the measurement). Two
things can show it: the annotation `UNCORDONED_BY`, which the optional admission policy of
deploy/examples/uncordoned-by.yaml writes, and the marks of known tools. Where neither does, the
author of the uncordon is unknown.
"""

import enum
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from aggregator.cluster.port import STILL_SCHEDULABLE, Node, Quarantine, QuarantineStatus
from aggregator.cluster.words import ClusterWords
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import Duration
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.maintenance import Forbids, MaintenanceRules, claims_on
from aggregator.quarantine.decide.node_marks import known_applied
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.rfc3339 import write_time

#: Written by the admission policy: the user whose request uncordoned a node that carries our label.
UNCORDONED_BY = "sickbay.dev/uncordoned-by"

#: A node is cordoned again this number of times within `QUIET`; then the uncordons are only
#: reported.
MOST_RECORDONS = 5
CORDONED_BY_OTHERS = "it was opened to new work, and closed again by somebody else"
#: After this long without an uncordon the count begins anew (seconds).
QUIET = 86400.0
#: The wait before the second of them, and the factor to each further one (seconds).
_FIRST_WAIT, _FACTOR = 10.0, 4.0

_TOOLS = {
    "weave.works/kured-reboot-in-progress": "kured",
    "kured.dev/kured-reboot-in-progress": "kured",
    "weave.works/kured-most-recent-reboot-needed": "kured",
    "kured.dev/kured-most-recent-reboot-needed": "kured",
    "machineconfiguration.openshift.io/lastAppliedDrain": "the OpenShift machine-config operator",
    "flatcar-linux-update.v1.flatcar-linux.net/reboot-in-progress": "the Flatcar update operator",
}
_MOST_NAME = 100
#: Users that are no people: service accounts and components, and the clouds' own upgrades.
_AUTOMATION = ("system:", "eks:", "aksService")


class OnUncordon(enum.StrEnum):
    """The meaning of an uncordon of a node that sickbay cordoned."""

    RELEASE = "release"
    RECORDON = "recordon"
    CONFIRM = "confirm"


@dataclass(frozen=True, slots=True)
class UncordonRules(SectionDataclass):
    """The section ``release``: the meaning of an uncordon where sickbay set the cordon.

    With `CONFIRM`, evictions wait ``hold_evictions`` (seconds) after an uncordon that does not
    release the node. ``trust_uncordoned_by``: the admission policy of
    deploy/examples/uncordoned-by.yaml is applied, and it alone writes `UNCORDONED_BY`.
    """

    on_uncordon: Annotated[OnUncordon, Field(strict=False)] = OnUncordon.CONFIRM
    """The meaning of an uncordon of a cordon that sickbay set: ``confirm``, ``recordon`` or
    ``release``. See uncordon (docs/release.md#uncordon).
    """
    hold_evictions: Annotated[Duration, Field(ge=0)] = 3600.0
    """With ``confirm``: after an uncordon that is no release, its evictions wait this long."""
    trust_uncordoned_by: bool = False
    """``deploy/examples/uncordoned-by.yaml`` is applied, so that ``sickbay.dev/uncordoned-by``
    names who uncordoned a node.
    """


class Uncordoned(enum.Enum):
    """A node that should be cordoned is not; the value is the author, as far as known."""

    NO = "no"
    FOREIGN = "foreign"  # another had cordoned it before we did
    PERSON = "person"
    AUTOMATION = "automation"  # a service account, or a cloud's own user
    NODE = "node"  # a kubelet's credentials
    UNKNOWN = "unknown"


def whose_uncordon(node: Node, quarantine: Quarantine) -> Uncordoned:
    """The author of a marked node's uncordon. `UNCORDONED_BY` counts only where rules trust it."""
    if node.unschedulable:
        return Uncordoned.NO
    applied = known_applied(node, quarantine)
    if applied is not None and not applied.cordoned:
        return Uncordoned.FOREIGN
    user = node.annotations.get(UNCORDONED_BY, "")
    if not user:
        return Uncordoned.UNKNOWN
    if user.startswith("system:node:"):
        return Uncordoned.NODE
    return Uncordoned.AUTOMATION if user.startswith(_AUTOMATION) else Uncordoned.PERSON


def is_release(whose: Uncordoned, quarantine: Quarantine, rules: UncordonRules) -> bool:
    """Whether the uncordon ends the quarantine.

    It never does where a person made the quarantine, or where the cordon was not ours.
    """
    if whose in (Uncordoned.NO, Uncordoned.FOREIGN) or quarantine.spec.requester != OURS:
        return False
    if whose is Uncordoned.NODE and rules.trust_uncordoned_by:
        return False
    if rules.on_uncordon is OnUncordon.RELEASE:
        return True
    trusted = whose is Uncordoned.PERSON and rules.trust_uncordoned_by
    return trusted and rules.on_uncordon is OnUncordon.CONFIRM


def recordon_due(status: QuarantineStatus, wall: float) -> float:
    """When the node is cordoned again: wall clock seconds, ``wall`` or earlier for now."""
    since = wall - status.uncordoned_at
    if not status.recordons or not 0 <= since < QUIET:
        return wall
    if status.recordons > MOST_RECORDONS:
        return status.uncordoned_at + QUIET
    return status.uncordoned_at + _FIRST_WAIT * _FACTOR ** (status.recordons - 1)


def has_given_up(status: QuarantineStatus) -> bool:
    """Whether the node is left schedulable for now, with our taint on it."""
    return status.recordons > MOST_RECORDONS


def describe_left(quarantine: Quarantine, why: str) -> str:
    """For people: the node is schedulable, ``why`` it is not cordoned again, and what to do."""
    name = quarantine.node
    return (
        f"{STILL_SCHEDULABLE}it was opened to new work, and {why}. "
        f"To release it: sickbay release {name}"
    )


def is_left_schedulable(status: QuarantineStatus) -> bool:
    """Whether the status states that the node is schedulable, and is not cordoned again for now."""
    return status.uncordoned.startswith(STILL_SCHEDULABLE)


def after_uncordon(
    quarantine: Quarantine,
    node: Node,
    whose: Uncordoned,
    rules: UncordonRules,
    wall: float,
    words: ClusterWords,
) -> QuarantineStatus:
    """The status that reports the uncordon; written before the node is cordoned again."""
    status = quarantine.status
    quiet = not 0 <= wall - status.uncordoned_at < QUIET
    count = 1 if quiet else min(status.recordons, MOST_RECORDONS) + 1
    automated = rules.trust_uncordoned_by and whose in (Uncordoned.AUTOMATION, Uncordoned.NODE)
    waits = (
        rules.on_uncordon is OnUncordon.CONFIRM
        and not (automated or whose is Uncordoned.FOREIGN)
        and count <= MOST_RECORDONS
    )
    held_until = wall + rules.hold_evictions if waits else status.evictions_held_until
    applied = known_applied(node, quarantine)
    if applied is not None and count <= MOST_RECORDONS:
        applied = replace(applied, cordoned=True)  # the next cordon is ours, whoever set the first
    changed = replace(
        status,
        recordons=count,
        uncordoned_at=wall,
        evictions_held_until=held_until,
        applied=applied or status.applied,
    )
    return replace(changed, uncordoned=_describe(quarantine, node, whose, changed, rules, words))


def _describe(
    quarantine: Quarantine,
    node: Node,
    whose: Uncordoned,
    changed: QuarantineStatus,
    rules: UncordonRules,
    words: ClusterWords,
) -> str:
    """For people: the author, the response, and the next step."""
    name, wall = quarantine.node, changed.uncordoned_at
    text = f"{words.taken_out.format(at=write_time(wall))} {_author(node, whose, rules)}"
    if changed.recordons > MOST_RECORDONS:
        return (
            f"{text}, {changed.recordons} times within a day. It is not {words.recordoned} before "
            f"{write_time(wall + QUIET)}; {words.kept_away}. Find the tool or person that does it"
        )
    text += f", and {words.recordoned} ({changed.recordons} of {MOST_RECORDONS} within a day)"
    if whose is Uncordoned.FOREIGN:
        return f"{text}, by sickbay: it was somebody else's before"
    if quarantine.spec.requester == FORCED:
        return (
            f"{text}: sickbay.dev/force is set on the node. To release it: sickbay release {name}"
        )
    text += f". To release it: {words.release.format(node=name)}"
    if changed.evictions_held_until > wall:
        text += f". The drain waits until {write_time(changed.evictions_held_until)}"
    return text


def _author(node: Node, whose: Uncordoned, rules: UncordonRules) -> str:
    named = (Uncordoned.PERSON, Uncordoned.AUTOMATION, Uncordoned.NODE)
    if rules.trust_uncordoned_by and whose in named:
        return f"by {' '.join(node.annotations[UNCORDONED_BY].split())[:_MOST_NAME]}"
    tool = next((name for key, name in _TOOLS.items() if key in node.annotations), "")
    if tool:
        return f"(the cluster does not report by whom; {tool} has left its marks on the node)"
    for mark, value in claims_on(node, MaintenanceRules().all_marks()):
        if mark.forbids is Forbids.ALL:
            return f"(the cluster does not report by whom; {mark.describe(value)})"
    return "(the cluster does not report by whom)"
