"""The conditions that a site has chosen for other tools, and the content of each. Pure.

A tool that reads one may replace or repair the node by it, outside of sickbay's limits. So by
default a condition is based on a quarantine, which has passed the limits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from aggregator.cluster.node_names import CONDITION, TEST_CONDITION
from aggregator.cluster.port import EvidenceItem, NodeCondition, Phase, Quarantine
from aggregator.configfile.section import SectionDataclass, Strings
from aggregator.configfile.values import refuse, shaped
from aggregator.policy.evaluate import Evidence, Incident

#: The kubelet, the cloud's controller and sickbay itself write these.
_TAKEN = frozenset(
    {
        "Ready",
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "NetworkUnavailable",
        CONDITION,
        TEST_CONDITION,
    }
)
_IN_FORCE = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
_MOST_MESSAGE = 1024
_MOST_REASON = 128


def _free_type(value: str) -> str:
    if value in _TAKEN:
        raise refuse(f'"{value}" is written by another', "a type that is not in use")
    return value


ConditionType = Annotated[
    str,
    AfterValidator(_free_type),
    shaped(
        r"(?=.{1,316}\Z)([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?",
        'the type of a condition, such as "AcceleratedHardwareReady"',
    ),
]
ConditionReason = Annotated[
    str,
    shaped(
        r"([A-Za-z]([A-Za-z0-9_,:]{0,126}[A-Za-z0-9_])?)?",
        'one word in camel case, such as "BadHardware", or "" for the code of the evidence',
    ),
]


@dataclass(frozen=True, slots=True)
class NodeConditionRule(SectionDataclass):
    """One entry of the section ``conditions``.

    ``rules``: names of rules, or patterns; a pattern takes no rule that only observes.
    ``unhealthy``: the status that means unhealthy; the other one means healthy.
    ``basis``: "quarantine": unhealthy while a quarantine is in force for evidence of these rules.
    "evidence": while an incident with such evidence is open, whatever the mode and the limits are.
    ``reason``: a fixed reason; empty: the code of the evidence.
    """

    type: ConditionType
    """A node condition for other tools (docs/coexistence.md#node-conditions-for-other-tools), such
    as ``AcceleratedHardwareReady``. One entry for each type.
    """
    rules: Annotated[Strings, Field(min_length=1)]
    """Names of rules, or patterns with ``*`` and ``?``, whose evidence makes it unhealthy. A rule
    that only observes counts where it is named in full.
    """
    unhealthy: Literal["True", "False"]
    """The status that means unhealthy: ``"True"`` or ``"False"``; the other one means healthy."""
    basis: Literal["quarantine", "evidence"] = "quarantine"
    """``quarantine``: unhealthy while a quarantine exists for such evidence. ``evidence``: while an
    incident with such evidence is open, in each mode, ``observe`` too, and past all limits.
    """
    reason: ConditionReason = ""
    """A fixed reason of the unhealthy condition. Empty: the code of the evidence, such as
    ``Xid79``.
    """

    @property
    def healthy(self) -> str:
        """The status that means healthy."""
        return "False" if self.unhealthy == "True" else "True"

    def concerns(self, rule: str, *, acts: bool) -> bool:
        """Whether evidence of the rule counts; ``acts``: the rule's action is more than observe."""
        if rule in self.rules:
            return True
        return acts and any(fnmatchcase(rule, pattern) for pattern in self.rules)

    def unmatched(self, known: Iterable[str]) -> tuple[str, ...]:
        """Those of its rules and patterns that fit no known rule."""
        names = tuple(known)
        return tuple(one for one in self.rules if not any(fnmatchcase(name, one) for name in names))


#: A piece of evidence that counts.
_Item = EvidenceItem | Evidence


def condition_of(
    rule: NodeConditionRule,
    *,
    quarantine: Quarantine | None,
    incidents: Mapping[str, Incident],
    settled: bool,
    reported: bool,
) -> NodeCondition | None:
    """The condition's state now, or None while that is not known: it then stays as it is.

    ``settled``: no quarantine, and no mark of one, is on its way or left behind. ``reported``: the
    agent is attached, and has sent all its evidence.
    """
    if rule.basis == "quarantine":
        in_force = quarantine is not None and quarantine.status.phase in _IN_FORCE
        known = settled or (in_force and quarantine is not None and not quarantine.foreign)
        evidence = quarantine.spec.evidence if in_force and quarantine is not None else ()
        ours = quarantine is not None and not quarantine.foreign
        items: list[_Item] = [
            one for one in evidence if ours and rule.concerns(one.rule, acts=True)
        ]
    else:
        found = (item for incident in incidents.values() for item in incident.evidence)
        items = [one for one in found if rule.concerns(one.rule, acts=one.action != "observe")]
        known = reported
    if items:
        return _unhealthy(rule, items)
    if not known:
        return None
    message = f"no evidence against it by the rules {', '.join(rule.rules)}"
    return NodeCondition(rule.healthy, "Recovered", message[:_MOST_MESSAGE], unhealthy=False)


def _unhealthy(rule: NodeConditionRule, items: list[_Item]) -> NodeCondition:
    first, more = items[0], len(items) - 1
    where = f" on {first.component}" if first.component else ""
    text = f"{first.code}{where}: {first.message}".rstrip(": ")
    message = f"{text} (and {more} more)" if more else text
    reason = rule.reason or _camel(first.code)
    return NodeCondition(rule.unhealthy, reason, message[:_MOST_MESSAGE], unhealthy=True)


def _camel(code: str) -> str:
    """Xid79 of xid:79, DiskSpaceFull of disk-space:full."""
    words = "".join(one if one.isascii() and one.isalnum() else " " for one in code).split()
    text = "".join(word[0].upper() + word[1:] for word in words)
    return (text if text[:1].isalpha() else f"Code{text}")[:_MOST_REASON]
