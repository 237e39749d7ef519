"""Rules: the action that a node's evidence calls for. Pure.

Structure that no rule can change: only FAILED level evidence, DEGRADED where a rule names it, and
latched faults of the present boot can call for an action; unknown statuses, unknown codes, silence
and historical faults never do.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from aggregator.health.model import ClearedBy, Component, Fault, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.catalogue import UNKNOWN, Catalogue
from aggregator.policy.windows import (
    FAILURES,
    TOGETHER,
    Timeline,
    failing,
    flapping,
    jobs,
    lasting,
    latest_occurrence,
    may_have_been_seen,
    repeated,
    timeline,
    was_seen,
)

if TYPE_CHECKING:  # pydantic, which it needs, is not there for a command that only reads
    from aggregator.policy.label_selector import LabelSelector

ACTIONS = ("observe", "cordon", "drain")
KINDS = ("gpu", "disk", "network", "node")
#: The characters that make a text a pattern of `fnmatch`.
_WILDCARDS = frozenset("*?[")
#: The reason of evidence that is a flapping component's: "nic-link:flaps". No check has it.
FLAPS = "flaps"
#: The check of node conditions that other programs write; its components are their types.
CONDITION_CHECK = "node-condition"
#: The statuses of a condition that a rule may call unhealthy.
CONDITION_STATUSES = ("True", "False")
#: How a node is released: automatically once it has recovered, or only by a person.
RELEASES = ("recovered", "manual")
#: Which pods of the node a drain evicts: all, or those that use the faulty GPUs.
SCOPES = ("node", "gpu")
#: The mildest status of a check that a rule is about.
STATUSES = ("failed", "degraded")
_DEGRADED_OR_FAILED = frozenset({Status.DEGRADED, Status.FAILED})
#: A rule with a shorter ``for`` (seconds) acts on one run of its check. Any other waits for so many
#: intervals, of which the agent varies each by a tenth, and a run takes some seconds.
ONE_RUN, SECOND_RUN = 30.0, 1.25
#: The same fault again so soon after a release needs a person (seconds).
REPEAT_WITHIN = 7 * 86400.0
#: No rule may look back further: a node remembers its releases for this long (seconds).
LONGEST_REPEAT = 28 * 86400.0
#: Without ``healthyFor``, and for evidence whose rule the policy no longer has (seconds).
HEALTHY_FOR = 600.0


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of policy. ``hold`` ("for" in the file) and ``healthy_for`` are seconds.

    A rule is for faults (``faults`` are patterns of codes, ``classes`` of the catalogue), for a
    node condition (``condition`` is its type, ``unhealthy`` one of `CONDITION_STATUSES`; ``check``
    is `CONDITION_CHECK` then), or for other level evidence (``check``, and ``reasons`` where not
    every one counts; ``status`` "degraded" for degraded or failed components, one of `STATUSES`).
    ``release`` is one of `RELEASES`; ``repeat_within`` (seconds): the same fault of the same
    component so soon after a release needs a person; 0: it does not.

    ``with_faults`` and ``without_faults`` are codes or classes of other faults of the component:
    one of these must have come, or none may have come, within `TOGETHER` of this evidence.

    ``min_count``: the fault must have occurred this often ``within`` seconds; lines that come close
    together are one occurrence. ``lasts``: lines must have come for this long (seconds) without a
    pause of a minute. ``min_jobs``: the fault must have come this often ``within`` seconds, each
    ``apart`` seconds or more after the one before, and on no other component then. ``flaps``: the
    component must have changed this often from healthy to failed ``within`` seconds, with any
    present status.

    ``nodes`` selects the nodes on which the rule has its action; on others it has the action
    ``elsewhere``, or does not apply (empty). None: on every node.

    ``repair`` are the repairs of the node, of `REPAIRS` and in its order; none: a person repairs
    it. ``scope`` is one of `SCOPES`.
    """

    name: str
    kind: str
    action: str
    why: str
    faults: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    details: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    min_count: int = 1
    lasts: float = 0.0
    min_jobs: int = 0
    apart: float = 600.0
    within: float = 86_400.0
    confirmed_by: str = ""
    with_faults: tuple[str, ...] = ()
    without_faults: tuple[str, ...] = ()
    condition: str = ""
    unhealthy: str = "True"
    check: str = ""
    status: str = "failed"
    reasons: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    flaps: int = 0
    hold: float = 0.0
    healthy_for: float = HEALTHY_FOR
    release: str = "recovered"
    repeat_within: float = REPEAT_WITHIN
    nodes: "LabelSelector | None" = None
    elsewhere: str = ""
    repair: tuple[str, ...] = ()
    scope: str = "node"

    @property
    def acts(self) -> bool:
        """Whether its action is more than observe, on any node."""
        return self.action != "observe" or self.elsewhere not in ("", "observe")

    @property
    def bad(self) -> frozenset[Status]:
        """The statuses of a component that the rule is about."""
        return _DEGRADED_OR_FAILED if self.status == "degraded" else FAILURES


def bad_statuses(rule: Rule | None) -> frozenset[Status]:
    """`Rule.bad`; for evidence whose rule the policy no longer has, failed alone."""
    return FAILURES if rule is None else rule.bad


def level_code(component: Component) -> str:
    """The code of level evidence: "CHECK:REASON", or the status where there is no reason."""
    return f"{component.check}:{component.reason or component.status.name.lower()}"


@dataclass(frozen=True, slots=True)
class _Places:
    """Where in the policy's order the rules are that could match some evidence.

    There are dozens of rules, and one fault could match a few: no other rule is visited for it.
    """

    flapping: tuple[int, ...]
    by_check: Mapping[str, tuple[int, ...]]
    on_degraded: Mapping[str, tuple[int, ...]]
    by_code: Mapping[str, tuple[int, ...]]
    by_class: Mapping[str, tuple[int, ...]]
    by_pattern: tuple[int, ...]
    waiting: frozenset[int]

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> "_Places":
        flapping, by_pattern, waiting = list[int](), list[int](), set[int]()
        by_check, on_degraded = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        by_code, by_class = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        for place, rule in enumerate(rules):
            if rule.flaps:
                flapping.append(place)
            elif rule.check:
                by_check[rule.check].append(place)
                if rule.status == "degraded":
                    on_degraded[rule.check].append(place)
            else:
                if rule.acts and rule.hold:
                    waiting.add(place)
                codes = _codes_of(rule.faults)
                if codes is None:
                    by_pattern.append(place)
                for code in codes or ():
                    by_code[code].append(place)
                for its_class in () if rule.faults else rule.classes:
                    by_class[its_class].append(place)
        return cls(
            tuple(flapping),
            _tuples(by_check),
            _tuples(on_degraded),
            _tuples(by_code),
            _tuples(by_class),
            tuple(by_pattern),
            frozenset(waiting),
        )

    def of_checks(self, failed: Iterable[str], degraded: Iterable[str]) -> set[int]:
        """Of the checks that have a failed component, and of those that have a degraded one."""
        found = set(self.flapping)
        for check in failed:
            found.update(self.by_check.get(check, ()))
        for check in degraded:
            found.update(self.on_degraded.get(check, ()))
        return found

    def of_faults(self, faults: Iterable[tuple[Fault, str]]) -> set[int]:
        """Of these faults, each with its class."""
        found = set[int]()
        for fault, its_class in faults:
            found.update(self.by_code.get(fault.code, ()), self.by_class.get(its_class, ()))
            found.update(self.by_pattern)
        return found


def _tuples(found: Mapping[str, list[int]]) -> Mapping[str, tuple[int, ...]]:
    return {key: tuple(places) for key, places in found.items()}


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules in order, the catalogue they rest on, and the hash that names them both.

    ``acting_on_degraded``: the checks on whose degraded results a rule acts. ``selecting``: the
    rules that are about some nodes only; ``variants`` remembers the policies of nodes
    (`node_rules`). ``by_name`` has each rule as the file has it. ``places`` finds the rules
    that could match some evidence.
    """

    rules: tuple[Rule, ...]
    catalogue: Catalogue
    hash: str
    by_name: Mapping[str, Rule] = field(init=False, repr=False, compare=False)
    acting_on_degraded: frozenset[str] = field(init=False, repr=False, compare=False)
    selecting: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    variants: dict[int, "Policy"] = field(init=False, repr=False, compare=False)
    places: _Places = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {rule.name: rule for rule in self.rules})
        acting = (one for one in self.rules if one.status == "degraded" and one.acts)
        object.__setattr__(self, "acting_on_degraded", frozenset(one.check for one in acting))
        selecting = tuple(rule for rule in self.rules if rule.nodes is not None)
        object.__setattr__(self, "selecting", selecting)
        object.__setattr__(self, "variants", {})
        object.__setattr__(self, "places", _Places.of(self.rules))

    def with_rules(self, rules: Sequence[Rule]) -> "Policy":
        """The same policy with these rules on one node; what is known of all rules stays."""
        found = replace(self, rules=tuple(rules))
        for name in ("by_name", "acting_on_degraded", "selecting"):
            object.__setattr__(found, name, getattr(self, name))
        return found


@dataclass(frozen=True, slots=True)
class Match:
    """One rule matches one piece of evidence. ``due`` is when its ``for`` is over (monotonic)."""

    rule: Rule
    code: str
    component: str
    boot_id: str
    message: str
    cleared_by: ClearedBy | None
    since: float
    due: float
    lost: bool = False


class _Found:
    """The evidence of one node that rules may match, in the order of their search.

    A node may hold thousands of entries, and there are dozens of rules: each rule looks only at
    those entries that it could match.
    """

    def __init__(self, policy: Policy, health: NodeHealth) -> None:
        self._health = health
        self._timelines: dict[str, Timeline] = {}
        self._codes: dict[str, list[Fault]] | None = None
        self._of_code: dict[str, list[tuple[Fault, str]]] | None = None
        self._of_component: dict[str, list[tuple[Fault, str]]] | None = None
        self.failed = _by_check(health.failed())
        #: The fault's class is the same for every rule, and costs a decoding of the line's
        #: registers.
        self.faults: list[tuple[Fault, str]] = []
        self.of_class: dict[str, list[tuple[Fault, str]]] = {}
        for fault in health.faults.values():
            if not fault.historical:
                its_class = policy.catalogue.class_of(fault, health.traits)
                self.faults.append((fault, its_class))
                self.of_class.setdefault(its_class, []).append((fault, its_class))

    @cached_property
    def degraded(self) -> Mapping[str, list[Component]]:
        """The degraded components by their check."""
        return _by_check(self._health.components.that_are(Status.DEGRADED))

    def with_code(self, codes: frozenset[str]) -> Sequence[tuple[Fault, str]]:
        """The faults that have one of these codes."""
        if len(codes) > 1:
            return [one for one in self.faults if one[0].code in codes]
        if self._of_code is None:
            self._of_code = {}
            for one in self.faults:
                self._of_code.setdefault(one[0].code, []).append(one)
        return self._of_code.get(next(iter(codes)), ())

    def with_class(self, classes: tuple[str, ...]) -> Sequence[tuple[Fault, str]]:
        """The faults that are of one of these classes."""
        present = [one for one in classes if one in self.of_class]
        if len(present) > 1:
            return [one for one in self.faults if one[1] in present]
        return self.of_class[present[0]] if present else ()

    def meeting(self, rule: Rule) -> Sequence[Component]:
        """The components of the rule's check whose status it is about."""
        failed = self.failed.get(rule.check, ())
        if rule.status != "degraded":
            return failed
        return (*failed, *self.degraded.get(rule.check, ()))

    def suits(self, rule: Rule, code: str, component: str, first: float, last: float) -> bool:
        """Whether the faults that came with this evidence are as the rule requires.

        The evidence came from ``first`` to ``last`` (monotonic seconds).
        """
        if not (rule.with_faults or rule.without_faults):
            return True
        if self._of_component is None:
            self._of_component = {}
            for fault, its_class in self.faults:
                self._of_component.setdefault(fault.component, []).append((fault, its_class))
        after, before = first - TOGETHER, last + TOGETHER
        others = [
            (fault, its_class)
            for fault, its_class in self._of_component.get(component, ())
            if fault.code != code
        ]
        # A full ring must not make a fault look alone, which calls for the stronger action.
        possible = [
            (fault.code, its_class)
            for fault, its_class in others
            if may_have_been_seen(fault, after, before)
        ]
        if _is_named(possible, rule.without_faults):
            return False
        certain = [
            (fault.code, its_class) for fault, its_class in others if was_seen(fault, after, before)
        ]
        return not rule.with_faults or _is_named(certain, rule.with_faults)

    def confirms(self, check: str, component: str) -> bool:
        """Whether the check has failed: for the component where it knows that, else for any."""
        failed = {one.component for one in self.failed.get(check, ())}
        is_known = self._health.level((check, component)) is not None
        return component in failed if is_known else bool(failed)

    def hold(self, rule: Rule) -> float:
        """The rule's ``for``, at least until a second run of the check on this node has ended.

        A site may lengthen the interval, and the failure of one run must not act alone. A rule with
        a shorter ``for`` than `ONE_RUN` acts on one run on purpose.
        """
        if rule.hold < ONE_RUN:
            return rule.hold
        own = (one.interval for one in self._health.checks if one.name == rule.check)
        return max(rule.hold, SECOND_RUN * max(own, default=0.0))

    def timeline(self, code: str) -> Timeline:
        """The occurrences of one code on all components."""
        if self._codes is None:
            self._codes = {}
            for fault in self._health.faults.values():
                self._codes.setdefault(fault.code, []).append(fault)
        found = self._timelines.get(code)
        if found is None:
            found = self._timelines[code] = timeline(self._codes[code])
        return found


def _by_check(components: Iterable[Component]) -> Mapping[str, list[Component]]:
    found: dict[str, list[Component]] = {}
    for one in components:
        found.setdefault(one.check, []).append(one)
    return found


def matches(policy: Policy, health: NodeHealth, now: float) -> Iterator[Match]:
    """Every rule that matches some evidence of the node, in the order of the rules."""
    found, places = _Found(policy, health), policy.places
    degraded = found.degraded if places.on_degraded else ()
    possible = places.of_checks(found.failed, degraded) | places.of_faults(found.faults)
    for place in sorted(possible):
        rule = policy.rules[place]
        if rule.flaps:
            yield from _flapping(rule, health, now)
        elif rule.check:
            yield from _failing(rule, found, health.boot_id)
        else:
            yield from _of_faults(rule, policy, found)


def waiting_faults(policy: Policy, health: NodeHealth) -> Iterator[Match]:
    """Every rule that acts after a time (`for`) and matches a latched fault, due or not."""
    if not health.faults or not policy.places.waiting:
        return
    found = _Found(policy, health)
    for place in sorted(policy.places.of_faults(found.faults) & policy.places.waiting):
        yield from _of_faults(policy.rules[place], policy, found)


def _of_faults(rule: Rule, policy: Policy, found: _Found) -> Iterator[Match]:
    for fault, its_class in _candidates(rule, found):
        match = _latched(rule, fault, its_class, policy.catalogue, found)
        if match is not None:
            yield match


def _candidates(rule: Rule, found: _Found) -> Iterable[tuple[Fault, str]]:
    if rule.faults:
        codes = _codes_of(rule.faults)
        return found.faults if codes is None else found.with_code(codes)
    return found.with_class(rule.classes)


@lru_cache(maxsize=1024)
def _codes_of(patterns: tuple[str, ...]) -> frozenset[str] | None:
    """The codes that these patterns name, or None where one of them has a wildcard."""
    if any(set(pattern) & _WILDCARDS for pattern in patterns):
        return None
    return frozenset(patterns)


def _is_named(faults: Iterable[tuple[str, str]], words: tuple[str, ...]) -> bool:
    """Whether one of the faults (code, class) has its code or its class among the words."""
    return any(
        its_class == word or fnmatchcase(code, word) for code, its_class in faults for word in words
    )


def _failing(rule: Rule, found: _Found, boot_id: str) -> Iterator[Match]:
    for component in found.meeting(rule):
        if not _meets_name(rule, component.component):
            continue
        if rule.reasons and component.reason not in rule.reasons:
            continue
        since, counted = failing(component, rule.bad)
        code = level_code(component)
        if not found.suits(rule, code, component.component, since, since):
            continue
        yield Match(
            rule=rule,
            code=code,
            component=component.component,
            boot_id=boot_id,
            message=component.message,
            cleared_by=None,
            since=since,
            due=counted + found.hold(rule),
        )


def _flapping(rule: Rule, health: NodeHealth, now: float) -> Iterator[Match]:
    for component in health.components.of(rule.check):
        if not _meets_name(rule, component.component):
            continue
        found = flapping(component, rule.flaps, rule.within)
        if found is None or found.until <= now:
            continue
        yield Match(
            rule=rule,
            code=f"{component.check}:{FLAPS}",
            component=component.component,
            boot_id=health.boot_id,
            message=component.message,
            cleared_by=None,
            since=found.since,
            due=found.since,
        )


def _latched(
    rule: Rule,
    fault: Fault,
    its_class: str,
    catalogue: Catalogue,
    found: _Found,
) -> Match | None:
    if not _meets_fault(rule, fault, its_class, catalogue, found):
        return None
    due = fault.first_at + rule.hold
    if rule.with_faults or rule.without_faults:
        first, last = latest_occurrence(fault)
        if not found.suits(rule, fault.code, fault.component, first, last):
            return None
        due = first + rule.hold  # each time, others may come a moment later
    if rule.min_count > 1:
        again = repeated(fault, least=rule.min_count, within=rule.within)
        if again is None:
            return None
        due = max(due, again)
    if rule.lasts:
        so_long = lasting(fault, least=rule.lasts)
        if so_long is None:
            return None
        due = max(due, so_long)
    if rule.min_jobs:
        everywhere = found.timeline(fault.code)
        confirmed = jobs(
            fault, everywhere, least=rule.min_jobs, apart=rule.apart, within=rule.within
        )
        if confirmed is None:
            return None
        due = max(due, confirmed)
    return Match(
        rule=rule,
        code=fault.code,
        component=fault.component,
        boot_id=fault.boot_id,
        message=fault.message,
        cleared_by=catalogue.clears_class(its_class, fault),
        since=fault.first_at,
        due=due,
        lost=fault.missing,
    )


def _meets_fault(
    rule: Rule, fault: Fault, its_class: str, catalogue: Catalogue, found: _Found
) -> bool:
    if fault.historical:
        return False
    if not _meets_name(rule, fault.component):
        return False
    if rule.faults:
        if not any(fnmatchcase(fault.code, pattern) for pattern in rule.faults):
            return False
    elif its_class not in rule.classes:
        return False
    if rule.action != "observe" and catalogue.classify(fault.code) == UNKNOWN:
        return False
    if any(fault.details.get(name, "") not in values for name, values in rule.details.items()):
        return False
    return not rule.confirmed_by or found.confirms(rule.confirmed_by, fault.component)


def _meets_name(rule: Rule, component: str) -> bool:
    return not rule.components or any(fnmatchcase(component, glob) for glob in rule.components)
