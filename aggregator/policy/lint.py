"""Finds parts of a site's rules that are allowed and most likely a mistake. Pure: texts and rules
go in.

`load` refuses what no policy may contain; this warns of rules that can have no effect, or another
one than meant, as far as this version knows. These are no errors, because a newer version may know
more: another shipped rule, or another check, must not keep an aggregator from starting with a file
that it ran with before.
"""

import difflib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from aggregator.configfile.yaml_source import ConfigProblem, Document, Key, parse
from aggregator.policy.catalogue import UNKNOWN
from aggregator.policy.check_traits import EDGES
from aggregator.policy.label_selector import contradiction
from aggregator.policy.load import hint_of
from aggregator.policy.rules import ACTIONS, Policy, Rule
from aggregator.policy.shipped_yaml import read_shipped


@dataclass(frozen=True, slots=True)
class Reasons:
    """The reasons with which a check reports failed, and degraded, or None for any.

    ``silent``: those that come only while the agent is silent.
    """

    failed: Sequence[str] | None
    degraded: Sequence[str] | None = ()
    silent: Sequence[str] | None = ()

    def of(self, status: str) -> Sequence[str] | None:
        """Those of a rule about ``status``, which degraded and failed components may both have."""
        if status == "failed" or self.failed is None or self.degraded is None:
            return self.failed if status == "failed" else None
        return (*self.failed, *self.degraded)


#: Of a check in checks.yaml.
_KEYS = ("reasons", "degraded", "silent")
#: The agent's checks by name.
Checks = Mapping[str, Reasons]


#: The details that show how bad a fault is. There are others; a name that is nearly one of these is
#: most likely a slip, with which a rule that drains for the driver's own verdict never does.
REGISTERS = ("intr_info", "error_status")
GRAVE = ("verdict", "severity", "unit", "link", *REGISTERS, "injected")
#: The agent's readings of Xid 154's text.
VERDICTS = (
    *("none", "drain-p2p", "drain-and-reset", "gpu-reset", "node-reboot"),
    *("recover-imex", "unknown"),
)


def parse_checks(text: str) -> Checks:
    """Read checks.yaml."""
    found = {
        name: of if isinstance(of, dict) else {"reasons": of}
        for name, of in read_shipped(text).items()
    }
    return {
        name: Reasons(*(None if of.get(key) == "any" else tuple(of.get(key, ())) for key in _KEYS))
        for name, of in found.items()
    }


def warnings(policy: Policy, site: str, site_name: str, checks: Checks) -> list[ConfigProblem]:
    """The oddities of the rules in the site's file, each with its line. ``policy`` has the
    rules.
    """
    document = parse(site, site_name)
    found: list[ConfigProblem] = []
    places: dict[str, Key] = {}
    for index, entry in enumerate(document.data.get("rules", ())):
        places[entry["name"]] = ("rules", index)
    for rule in policy.rules:
        if rule.name in places:
            found += _about(rule, places[rule.name], document, policy, checks)
    for one, other in _shadows(policy, places):
        found += _shadowed(one, other, places, document)
    return sorted(found)


def _about(
    rule: Rule, key: Key, document: Document, policy: Policy, checks: Checks
) -> Iterator[ConfigProblem]:
    for name, words in (("check", rule.check), ("confirmedBy", rule.confirmed_by)):
        if words and words not in checks:
            yield document.problem((*key, name), _unknown_check(words, checks))
    confirming = checks.get(rule.confirmed_by)
    if confirming is not None and confirming.failed == ():
        text = (
            f"check {rule.confirmed_by} never reports failed, at most degraded; it confirms nothing"
        )
        yield document.problem((*key, "confirmedBy"), text)
    yield from _slips(rule, key, document)
    of_check = checks.get(rule.check, Reasons(None))
    reasons = of_check.of(rule.status)
    if reasons is not None:
        for reason in rule.reasons:
            if reason not in reasons:
                text = _unknown_reason(rule.check, reason, reasons, rule.status)
                yield document.problem((*key, "reasons"), text)
        if not reasons and not rule.reasons:
            text = f"check {rule.check} never reports failed, at most degraded"
            hint = (
                "no rule can match it" if of_check.degraded == () else "expected status: degraded"
            )
            yield document.problem((*key, "check"), f"{text}; {hint}")
    yield from _never_acting(rule, key, document, of_check)
    if rule.check in EDGES and rule.acts:
        text = (
            f"acts on every node that can't reach a peer: one dead node means a {rule.action} of "
            "all that probe it, and no common cause holds them; expected check: triangulation"
        )
        yield document.problem((*key, "action"), text)
    yield from _hasty(rule, key, document)
    yield from _about_nodes(rule, key, document)
    for code in rule.faults:
        if not _is_pattern(code) and policy.catalogue.classify(code) == UNKNOWN:
            text = f"{code!r} is in no catalogue; right if something of the site's own sends it"
            yield document.problem((*key, "faults"), text)


def _never_acting(
    rule: Rule, key: Key, document: Document, of_check: Reasons
) -> Iterator[ConfigProblem]:
    """An action on evidence that may match, and on which no rule acts."""
    if not rule.acts:
        return
    for reason in rule.reasons:
        if reason in (of_check.silent or ()):
            text = f"{reason!r} comes while the agent is silent, and no rule acts on silence"
            yield document.problem((*key, "reasons"), f"{text}; expected action: observe")
    if rule.with_faults:
        mine = set(rule.faults) if len(rule.faults) == 1 else set()
        if set(rule.with_faults) <= mine.union(rule.without_faults):
            text = "can't match: the other faults are this one, or those of without"
            yield document.problem((*key, "with"), f"{text}; expected others")


def _about_nodes(rule: Rule, key: Key, document: Document) -> Iterator[ConfigProblem]:
    """A selector that selects no node, or makes no difference."""
    why = contradiction(rule.nodes) if rule.nodes is not None else ""
    if why:
        yield document.problem((*key, "nodes"), f"{why}; the rule has its action nowhere")
    if rule.nodes is not None and rule.elsewhere == rule.action:
        text = "the same as action: the rule has one action on every node"
        yield document.problem((*key, "elsewhere"), text)


def _hasty(rule: Rule, key: Key, document: Document) -> Iterator[ConfigProblem]:
    """A release at the first healthy report, where the site configures it: a lemon may have
    none.
    """
    is_set = "healthyFor" in document.data["rules"][key[-1]]
    if is_set and not rule.healthy_for and rule.action != "observe" and rule.release == "recovered":
        text = (
            "the node is released at the first good report, and a check that comes and goes is "
            'well for a moment, too; expected a time such as "10m"'
        )
        yield document.problem((*key, "healthyFor"), text)


def _slips(rule: Rule, key: Key, document: Document) -> Iterator[ConfigProblem]:
    """Texts that no agent sends, and lists that exclude no case."""
    for name, values in rule.details.items():
        near = difflib.get_close_matches(name.lower().replace("-", "_"), GRAVE, 1, 0.75)
        if name not in GRAVE and near:
            text = f"no fault of ours has a detail {name!r} (did you mean {near[0]!r}?)"
            yield document.problem((*key, "details", name), text)
        for value in values:
            if name == "verdict" and value not in VERDICTS:
                hint = hint_of(value, VERDICTS)
                text = f"no verdict is {value!r}{hint}; expected some of {', '.join(VERDICTS)}"
                yield document.problem((*key, "details", name), text)
            if name in REGISTERS and not value.startswith("0x"):
                text = f"no register is {value!r}; expected one in quotes, such as '0x00000004'"
                yield document.problem((*key, "details", name), text)
    entry: Any = document.data["rules"][key[-1]]
    for name, what in (("components", "component"), ("reasons", "reason")):
        if entry.get(name) == []:
            text = f"an empty list leaves nothing out: any {what} counts; expected the {name} meant"
            yield document.problem((*key, name), text)


def unfamiliar(
    policy: Policy, check: str, reason: str, checks: Checks, *, degraded: bool = False
) -> str:
    """The oddity of a question for this check and reason; empty where there is none.

    A check that a rule names is known, from any source.
    """
    if check not in checks:
        named = {rule.check for rule in policy.rules if rule.check}
        return "" if check in named else _unknown_check(check, {*checks, *named})
    status = "degraded" if degraded else "failed"
    reasons = checks[check].of(status)
    if not reason or reasons is None or reason in reasons:
        return ""
    return _unknown_reason(check, reason, reasons, status)


def _unknown_reason(check: str, reason: str, reasons: Sequence[str], status: str) -> str:
    does = "fails" if status == "failed" else "fails or is degraded"
    known = f"expected some of {', '.join(reasons)}" if reasons else "it never fails"
    hint = hint_of(reason, reasons)
    return f"check {check} never {does} with reason {reason!r}{hint}; {known}"


def _unknown_check(name: str, checks: Iterable[str]) -> str:
    hint = hint_of(name, checks)
    if hint:
        return f"no check of ours is {name!r}{hint}; with that slip it never matches"
    return f"no check of ours is {name!r}; right if it is a check of the site's own"


def _shadowed(
    one: Rule, other: Rule, places: Mapping[str, Key], document: Document
) -> Iterator[ConfigProblem]:
    more = "is stronger" if _strength(other) > _strength(one) else "comes before it"
    if one.name in places:
        alone = other.hold - one.hold
        when = "never decides" if alone <= 0 else f"decides for {alone:g} s alone"
        text = f"{when}: {other.name!r} meets all that it meets, and {more}"
        if _strength(other) > _strength(one):
            text += f"; to lower its action, change {other.name!r} itself"
        elif alone <= 0:
            text += f"; for it to decide, narrow {other.name!r} itself"
        yield document.problem(places[one.name], text)
    elif other.name in places:
        text = f"shadows the shipped rule {one.name!r}: it meets all that the shipped rule meets"
        yield document.problem(places[other.name], text)


def _shadows(policy: Policy, site: Collection[str]) -> Iterator[tuple[Rule, Rule]]:
    """(rule, the one that always decides in its place), one for each rule that is shadowed.

    A site's rule that observes is meant to keep another from acting. It can't, and it only looks as
    if it did until the other rule is due.
    """
    met = [_codes(rule, policy) for rule in policy.rules]
    wider = _Wider(policy.rules, met)
    for place, one in enumerate(policy.rules):
        for other_place in wider.than(place):
            other = policy.rules[other_place]
            if other_place == place or _strength(other) < _strength(one):
                continue
            if _strength(other) == _strength(one) and other_place > place:
                continue
            spares = one.name in site and one.action == "observe" != other.action
            if other.hold > one.hold and not spares:
                continue
            if _meets_all(met[other_place], other, met[place]) and _covers(other, one):
                yield one, other
                break


class _Wider:
    """The rules that may match all that another one matches. Comparing all pairs would be minutes
    for 20,000 rules.

    They match the rarest of its subjects, of its first component or of any, for its first reason or
    for any; or they are patterns, which may match anything.
    """

    def __init__(self, rules: Sequence[Rule], met: Sequence[frozenset[str]]) -> None:
        self._rules, self._met = rules, met
        self._by: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
        self._count: Counter[str] = Counter()
        self._patterns: list[int] = []
        for place, rule in enumerate(rules):
            self._count.update(met[place])
            of, why = set(rule.components) or {""}, set(rule.reasons) or {""}
            for key in product(met[place], of, why):
                self._by[key].append(place)
            if any(map(_is_pattern, rule.faults)):
                self._patterns.append(place)

    def than(self, place: int) -> list[int]:
        """Their places, in order; the rule's own may be among them."""
        rule = self._rules[place]
        rarest = min(self._met[place], key=lambda what: (self._count[what], what))
        keys = product([rarest], {"", *rule.components[:1]}, {"", *rule.reasons[:1]})
        found = {one for key in keys for one in self._by.get(key, ())}
        return sorted(found.union(self._patterns))


def _codes(rule: Rule, policy: Policy) -> frozenset[str]:
    """The subjects of the rule: its check, or classes, known codes, and patterns as written.

    A pattern also covers codes that no catalogue has.
    """
    if rule.check:
        return frozenset((f"check {rule.check}{' flaps' * bool(rule.flaps)}",))
    catalogue = policy.catalogue
    if not rule.faults:
        of_classes = {code for code, name in catalogue.codes.items() if name in rule.classes}
        return frozenset(of_classes | {f"class {name}" for name in rule.classes})
    known = {
        code
        for code in catalogue.codes
        if any(fnmatchcase(code, pattern) for pattern in rule.faults)
    }
    return frozenset(known.union(rule.faults))


def _is_pattern(code: str) -> bool:
    return any(sign in code for sign in "*?[")


def _meets_all(wide: frozenset[str], rule: Rule, narrow: frozenset[str]) -> bool:
    """Whether ``rule``, which is about ``wide``, matches all of ``narrow``."""
    patterns = [code for code in rule.faults if _is_pattern(code)]
    return all(any(fnmatchcase(code, one) for one in patterns) for code in narrow - wide)


def _covers(wide: Rule, narrow: Rule) -> bool:
    """Whether every condition of ``wide``, except its time, holds wherever ``narrow`` matches."""
    return (
        (wide.nodes is None or (wide.nodes, wide.elsewhere) == (narrow.nodes, narrow.elsewhere))
        and wide.min_count <= max(narrow.min_count, narrow.min_jobs)
        and (wide.min_count == 1 or wide.within >= narrow.within)
        and wide.lasts <= narrow.lasts
        and wide.confirmed_by in ("", narrow.confirmed_by)
        and wide.status in ("degraded", narrow.status)
        and _no_narrower(wide.with_faults, narrow.with_faults)
        and set(wide.without_faults) <= set(narrow.without_faults)
        and _no_narrower(wide.reasons, narrow.reasons)
        and _no_narrower(wide.components, narrow.components)
        and all(
            name in narrow.details and set(narrow.details[name]) <= set(values)
            for name, values in wide.details.items()
        )
        and (wide.min_jobs == 0 or _has_same_window(wide, narrow, "min_jobs"))
        and (wide.flaps == 0 or _has_same_window(wide, narrow, "flaps"))
    )


def _has_same_window(wide: Rule, narrow: Rule, count: str) -> bool:
    return (
        getattr(wide, count) <= getattr(narrow, count)
        and wide.within >= narrow.within
        and (count == "flaps" or wide.apart == narrow.apart)
    )


def _no_narrower(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    return not wide or (bool(narrow) and set(narrow) <= set(wide))


def _strength(rule: Rule) -> int:
    """Of a rule with two actions the stronger one: a rule that covers it has that one anywhere."""
    return max(ACTIONS.index(rule.action), ACTIONS.index(rule.elsewhere or rule.action))
