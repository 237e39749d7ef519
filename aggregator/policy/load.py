"""Reading policy: the shipped rules, and a site's file on top. Pure: texts go in."""

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from attrs import define
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, create_model

from aggregator.configfile.section import Strings
from aggregator.configfile.values import Duration, refuse, show
from aggregator.configfile.yaml_source import (
    ConfigError,
    ConfigProblem,
    Document,
    Key,
    parse,
    read_section,
)
from aggregator.policy.catalogue import UNKNOWN, Catalogue, parse_catalogue
from aggregator.policy.label_selector import LabelSelector
from aggregator.policy.node_condition import OWN_TYPES
from aggregator.policy.precursors.counters import CHECK as PRECURSOR
from aggregator.policy.repairs import REPAIRS, TEST, disorder
from aggregator.policy.rules import (
    ACTIONS,
    CONDITION_CHECK,
    CONDITION_STATUSES,
    KINDS,
    LONGEST_REPEAT,
    RELEASES,
    SCOPES,
    STATUSES,
    Policy,
    Rule,
)
from aggregator.policy.shipped_yaml import LOADER, read_shipped
from aggregator.policy.windows import (
    LEAST_APART,
    LEAST_FLAPS,
    LONGEST,
    LONGEST_LASTING,
    MOST_FLAPS,
    MOST_JOBS,
)


def _rung(value: object) -> object:
    if value == TEST:
        expected = "repair.verify of the aggregator's configuration, or no test"
        raise refuse(f"{value!r} repairs nothing and is no rung", expected)
    return value


def _listed(value: object) -> object:
    if not isinstance(value, list):
        raise refuse(show(value), f"a list, some of {', '.join(REPAIRS)}")
    return value


def _whole(least: int, most: int) -> BeforeValidator:
    def check(value: object) -> object:
        if type(value) is not int or not least <= value <= most:
            raise refuse(show(value), f"a whole number from {least} to {most}")
        return value

    return BeforeValidator(check)


def _ladder(repairs: tuple[str, ...]) -> tuple[str, ...]:
    """The repairs of a rule, mildest first. An empty list leaves them to a person."""
    wrong = disorder(repairs)
    if wrong:
        raise refuse(*wrong.split("; expected "))
    return repairs


def _detail(value: object) -> object:
    """YAML reads an unquoted 7 as a number."""
    return str(value) if type(value) is int else value


def _unquoted(value: object) -> object:
    """YAML reads an unquoted True as a boolean."""
    return str(value) if isinstance(value, bool) else value


_Action: Any = Literal[ACTIONS]
#: What the agents remember.
_Window = Annotated[Duration, Field(ge=LEAST_APART, le=LONGEST)]
_Values = Annotated[
    tuple[Annotated[str, BeforeValidator(_detail)], ...], Field(strict=False, min_length=1)
]
_Rung: Any = Annotated[Literal[REPAIRS], BeforeValidator(_rung)]
#: A rule's keys as a file has them: the field of each, and its values.
_FORM: dict[str, tuple[str, Any]] = {
    "name": ("name", str),
    "kind": ("kind", Literal[KINDS]),
    "action": ("action", _Action),
    "why": ("why", str),
    "faults": ("faults", Strings),
    "classes": ("classes", Strings),
    "details": ("details", Mapping[str, _Values]),
    "minCount": ("min_count", Annotated[int, _whole(1, MOST_JOBS)]),
    "lasts": ("lasts", Annotated[Duration, Field(ge=LEAST_APART, le=LONGEST_LASTING)]),
    "minJobs": ("min_jobs", Annotated[int, _whole(2, MOST_JOBS)]),
    "apart": ("apart", _Window),
    "within": ("within", _Window),
    "confirmedBy": ("confirmed_by", str),
    "with": ("with_faults", Strings),
    "without": ("without_faults", Strings),
    "condition": ("condition", str),
    "unhealthy": (
        "unhealthy",
        Annotated[Literal[CONDITION_STATUSES], BeforeValidator(_unquoted)],
    ),
    "check": ("check", str),
    "status": ("status", Literal[STATUSES]),
    "reasons": ("reasons", Strings),
    "components": ("components", Strings),
    "flaps": ("flaps", Annotated[int, _whole(LEAST_FLAPS, MOST_FLAPS)]),
    "for": ("hold", Duration),
    "healthyFor": ("healthy_for", Duration),
    "release": ("release", Literal[RELEASES]),
    "repeatWithin": ("repeat_within", Annotated[Duration, Field(le=LONGEST_REPEAT)]),
    "nodes": ("nodes", LabelSelector),
    "elsewhere": ("elsewhere", _Action),
    "repair": (
        "repair",
        Annotated[
            tuple[_Rung, ...],
            Field(strict=False),
            BeforeValidator(_listed),
            AfterValidator(_ladder),
        ],
    ),
    "scope": ("scope", Literal[SCOPES]),
}
KEYS = {key: field for key, (field, _) in _FORM.items()}
_FIELDS: dict[str, Any] = {key: (values, None) for key, (_, values) in _FORM.items()}
#: A key without a value is refused: the shipped rule's value would stay.
_Entry: Any = create_model("Rule", __config__=ConfigDict(extra="forbid", strict=True), **_FIELDS)
#: Classes of which one fault is no evidence, however often one job logs it.
_ALONE = frozenset({"application", "ignore", "follow-on", "no-action"})
#: Keys that a rule does not have together with a node condition.
_NOT_OF_CONDITIONS = (
    *("check", "components", "faults", "classes", "status", "flaps", "with", "without"),
)
#: As Kubernetes' own, with the domain of another program or without.
_CONDITION_TYPE = re.compile(
    r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?"
)
_LONGEST_TYPE = 316
#: Of an Xid or an SXid.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


def load_policy(
    catalogue: str, shipped: str, site: str | None = None, site_name: str = ""
) -> Policy:
    """The shipped rules, with the site's replacing those of the same name and adding the rest.

    With None there is no site's file. An empty one is refused: a full disk or a failed template
    must not cause drains by the shipped rules that the site's rules had prevented. Raises
    `ConfigError` with every problem of the site's file.
    """
    facts, own = _shipped(catalogue, shipped)
    rules = {rule.name: rule for rule in own}
    if site is not None:
        for rule in _rules(parse(site, site_name or "policy"), facts, rules):
            rules[rule.name] = rule
    ordered = tuple(rules.values())
    text = json.dumps([_plain(rule) for rule in ordered], sort_keys=True)
    digest = hashlib.blake2b((catalogue + text).encode(), digest_size=6).hexdigest()
    return Policy(ordered, facts, digest)


@functools.lru_cache(maxsize=1)
def _shipped(catalogue: str, rules: str) -> tuple[Catalogue, tuple[Rule, ...]]:
    """The content of both texts. They stay the same while a site edits its own: to read them takes
    most of the time of a reload.
    """
    facts = parse_catalogue(read_shipped(catalogue))
    return facts, tuple(_rules(parse(rules, "rules.yaml", LOADER), facts, {}))


def _plain(rule: Rule) -> dict[str, Any]:
    plain = {
        field.name: dict(value) if isinstance(value, Mapping) else value
        for field in fields(rule)
        for value in (getattr(rule, field.name),)
        # Replicas whose ladders or scopes differ agree on evidence.
        if field.name not in ("nodes", "repair", "scope")
    }
    if rule.nodes is None:
        del plain["elsewhere"]  # the hash of rules without a selector stays as it was
        return plain
    return plain | {"nodes": [asdict(one) for one in rule.nodes.requirements()]}


def _rules(document: Document, catalogue: Catalogue, known: Mapping[str, Rule]) -> list[Rule]:
    name = document.name
    problems = list(document.problems)
    entries = document.data.get("rules")
    if not isinstance(entries, list):
        problems.append(document.problem((), "no list of rules; expected 'rules:' and a list"))
        raise ConfigError(name, problems)
    problems += [
        document.problem((key,), f"unknown key{hint_of(key, ['rules'])}; expected only 'rules'")
        for key in document.data
        if key != "rules"
    ]
    rules: dict[str, Rule] = {}
    places: dict[str, int] = {}
    for index, entry in enumerate(entries):
        rule = _Reader(document, ("rules", index), entry, catalogue, known, problems).rule()
        if rule is None:
            continue
        if rule.name in rules:
            text = f"rule {rule.name!r} is here twice; expected each name once"
            problems.append(document.problem(("rules", index, "name"), text))
        rules[rule.name], places[rule.name] = rule, index
    problems += _two_meanings(document, {**known, **rules}.values(), places)
    if problems:
        raise ConfigError(name, problems)
    return list(rules.values())


def _two_meanings(
    document: Document, rules: Iterable[Rule], places: Mapping[str, int]
) -> Iterator[ConfigProblem]:
    """Conditions of which two rules call different statuses unhealthy: one of them is wrong.
    ``places``: of the file's own rules, of which each such pair has one.
    """
    first: dict[str, Rule] = {}
    for rule in rules:
        other = first.setdefault(rule.condition, rule) if rule.condition else rule
        if other.unhealthy != rule.unhealthy:
            own, its = (rule, other) if rule.name in places else (other, rule)
            text = (
                f'"{own.unhealthy}", and rule {its.name!r} has "{its.unhealthy}" of the '
                f"condition {own.condition}; expected one meaning of it"
            )
            yield document.problem(("rules", places[own.name], "unhealthy"), text)


def hint_of(word: str, known: Iterable[str]) -> str:
    guess = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {guess[0]!r}?)" if guess else ""


def impossible(code: str, catalogue: Catalogue) -> str:
    """Why no fault can have a code that matches this pattern; empty: one can, as far as is
    known.
    """
    kind, colon, rest = code.partition(":")
    if any(sign in kind for sign in "*?["):
        return ""
    kinds = {known.partition(":")[0] for known in catalogue.codes}
    if kind not in kinds:
        return f"can't match: no code is of the kind {kind!r}{hint_of(kind, kinds)}"
    if kind in ("xid", "sxid") and colon:
        number, _, word = rest.partition(":")
        if not any(sign in rest for sign in "*?[") and not (
            _NUMBER.fullmatch(number)
            and (word in ("fatal", "non-fatal", "unstated") if kind == "sxid" else ":" not in rest)
        ):
            form = "xid:79" if kind == "xid" else "sxid:12028:fatal"
            return f"can't match: {code!r} is no code; expected one such as {form}"
        return ""
    if not any(fnmatchcase(known, code) for known in catalogue.codes):
        return f"can't match: no code is {code!r}{hint_of(code, catalogue.codes)}"
    return ""


@define(eq=False, repr=False, slots=False)
class _Reader:
    """Reads one rule, collecting problems instead of stopping at the first."""

    _document: Document
    _path: Key
    _entry: Any
    _catalogue: Catalogue
    _known: Mapping[str, Rule]
    _problems: list[ConfigProblem]

    def rule(self) -> Rule | None:
        entry = self._entry
        if not isinstance(entry, dict) or "name" not in entry:
            self._problem((), "not a rule; expected a mapping with a name")
            return None
        name = entry["name"]
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            self._problem(
                ("name",), f"{name!r}; expected a text of one line (in quotes, if it is one)"
            )
            return None
        before = len(self._problems)
        found, problems = read_section(entry, _Entry, self._document, self._path)
        self._problems += problems
        values = {KEYS[key]: getattr(found, key) for key in found.model_fields_set} if found else {}
        base = self._known.get(entry["name"])
        self._check_condition(entry, base)
        if len(self._problems) > before:
            return None
        if "condition" in values:
            values |= {"check": CONDITION_CHECK, "components": (values["condition"],)}
        if base is None:
            for key in ("kind", "action"):
                if key not in values:
                    self._problem(
                        (),
                        f"rule {entry['name']!r}{hint_of(entry['name'], self._known)} has no "
                        f"{key}; expected one of "
                        f"{', '.join(KINDS if key == 'kind' else ACTIONS)}",
                    )
            if len(self._problems) > before:
                return None
            values.setdefault("why", "the site's policy")
            rule = Rule(**values)
        else:
            rule = replace(base, **values)
        self._check_repair(entry, rule)
        self._check(rule)
        return rule if len(self._problems) == before else None

    def _check_condition(self, entry: Mapping[str, Any], base: Rule | None) -> None:
        """The keys of a rule about a node condition, as the file has them."""
        kind = entry.get("condition", base.condition if base is not None else "")
        if not kind and "condition" not in entry:
            if "unhealthy" in entry:
                self._problem(("unhealthy",), "is about a condition; expected condition: TYPE")
            if entry.get("check") == CONDITION_CHECK:
                text = f'"{CONDITION_CHECK}" has the conditions of all types'
                self._problem(("check",), f"{text}; expected condition: TYPE instead")
            return
        if not isinstance(kind, str):
            return  # reported as no text
        if len(kind) > _LONGEST_TYPE or not _CONDITION_TYPE.fullmatch(kind):
            text = f"{kind!r}; expected the type of a condition, such as KernelDeadlock"
            self._problem(("condition",), text)
        elif kind in OWN_TYPES:
            text = f"{kind!r} is sickbay's own: it would be evidence of itself"
            self._problem(("condition",), f"{text}; expected another program's")
        for key in _NOT_OF_CONDITIONS:
            if key in entry:
                self._problem((key,), "does not go with a condition; expected only one of the two")

    def _check(self, rule: Rule) -> None:
        """Conditions that no policy may have, and those that could never match."""
        if rule.elsewhere and rule.nodes is None:
            text = "is the action on other nodes; expected nodes too, which selects some"
            self._problem(("elsewhere",), text)
        by_fault = bool(rule.faults or rule.classes)
        if by_fault == bool(rule.check):
            self._problem(
                (), "can't match: expected either faults or classes, or a check, or a condition"
            )
            return
        for name in rule.classes:
            if name != UNKNOWN and name not in self._catalogue.classes:
                known = (*self._catalogue.classes, UNKNOWN)
                self._problem(
                    ("classes",),
                    f"no class {name!r}{hint_of(name, known)}; expected some of {', '.join(known)}",
                )
        self._check_past(rule)
        self._check_company(rule)
        self._check_scope(rule)
        for code in rule.faults:
            problem = impossible(code, self._catalogue)
            if problem:
                self._problem(("faults",), problem)
        if not rule.acts:
            return
        if rule.check == PRECURSOR and rule.action == "drain":
            text = "would end work that runs well; expected cordon or observe for a precursor"
            self._problem(("action",), text)
        if UNKNOWN in rule.classes:
            self._problem(("classes",), "would act on unknown codes; expected action: observe")
        for code in rule.faults:
            wild = any(sign in code for sign in "*?[")
            if wild or self._catalogue.classify(code) == UNKNOWN:
                self._problem(
                    ("faults",),
                    f"{code!r} would act on a code that the catalogue doesn't "
                    "know; expected known codes, or action: observe",
                )
        named = {self._catalogue.classify(code) for code in rule.faults} | set(rule.classes)
        if named & _ALONE and not rule.min_jobs:
            self._problem(
                (),
                f"would act on one job's faults of class {', '.join(sorted(named & _ALONE))}, "
                "which an application can cause; expected minJobs of 2 or more (the same code on "
                "the same GPU over several jobs), or action: observe",
            )

    def _check_repair(self, entry: Mapping[str, Any], rule: Rule) -> None:
        """A ladder in the file itself needs nodes in quarantine to be climbed on."""
        if entry.get("repair") and not rule.acts:
            text = f"no effect under action: {rule.action}; expected action: cordon or drain"
            self._problem(("repair",), text)

    def _check_scope(self, rule: Rule) -> None:
        if rule.scope == "gpu" and (
            rule.kind != "gpu" or "drain" not in (rule.action, rule.elsewhere)
        ):
            self._problem(("scope",), '"gpu"; expected kind: gpu and action: drain with it')

    def _check_past(self, rule: Rule) -> None:
        """Conditions about the past must be about evidence that has one."""
        by_fault = bool(rule.faults or rule.classes)
        if rule.flaps and by_fault:
            self._problem(("flaps",), "is about a check; expected minJobs for faults")
        if rule.flaps and (rule.hold or rule.reasons):
            text = (
                "can't match: a flapping check fails for short times, with any reason; "
                "expected neither"
            )
            self._problem(("flaps",), f"{text} for nor reasons with it")
        if rule.min_jobs and not by_fault:
            self._problem(("minJobs",), "is about faults; expected flaps for a check")
        if rule.min_jobs and rule.apart * (rule.min_jobs - 1) >= rule.within:
            self._problem(
                ("minJobs",),
                f"can't match: {rule.min_jobs} jobs, {rule.apart:g}s apart, don't fit within "
                f"{rule.within:g}s; expected a longer within",
            )
        for key in ("minCount", "lasts", "details", "confirmedBy"):
            if not by_fault and getattr(rule, KEYS[key]) not in (1, 0.0, {}, ""):
                self._problem((key,), "is about faults, and this rule is about a check")
        if by_fault and rule.reasons:
            self._problem(("reasons",), "is about a check, and this rule is about faults")
        if by_fault and rule.status != "failed":
            self._problem(("status",), "is about a check, and this rule is about faults")
        if rule.flaps and rule.status != "failed":
            self._problem(("status",), "can't match: flaps counts failures; expected no status")

    def _check_company(self, rule: Rule) -> None:
        """Conditions about the faults that came with the evidence."""
        for key in ("with", "without"):
            for word in getattr(rule, KEYS[key]):
                problem = impossible(word, self._catalogue)
                if problem and word not in self._catalogue.classes:
                    self._problem((key,), f"{problem}; expected codes, or classes")
            if rule.flaps and getattr(rule, KEYS[key]):
                self._problem((key,), "is about faults that came with a failure; not for flaps")

    def _problem(self, below: Key, text: str) -> None:
        self._problems.append(self._document.problem((*self._path, *below), text))
