"""Label selectors of nodes, with the meaning that Kubernetes gives them. Pure.

All requirements of a selector must hold. A node without the key meets `NotIn` and `DoesNotExist`;
a selector without requirements selects every node.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import LabelKey, refuse, shaped

#: Requirements of one selector, and values of one requirement, at most.
MOST_REQUIREMENTS, MOST_VALUES = 32, 256


def _label_name(value: str) -> str:
    if not value:
        raise refuse('""', 'the key of a label, such as "topology.kubernetes.io/rack"')
    return value


LabelName = Annotated[LabelKey, AfterValidator(_label_name)]
LabelValue = Annotated[
    str,
    shaped(
        r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?",
        "the value of a label: 63 letters, digits, '-', '_', '.' at most",
    ),
]


@dataclass(frozen=True, slots=True)
class LabelRequirement(SectionDataclass):
    """One entry of ``matchExpressions``. ``values``: only of `In` and `NotIn`, at least one."""

    key: LabelName
    """The key of a label, in a list of further requirements; all must hold."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """``In``, ``NotIn``, ``Exists``, ``DoesNotExist``. A node without the key meets ``NotIn``."""
    values: Annotated[tuple[LabelValue, ...], Field(strict=False, max_length=MOST_VALUES)] = ()
    """With ``In`` and ``NotIn``: the values."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets it."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


def _fits_operator(one: LabelRequirement) -> LabelRequirement:
    if one.operator in ("In", "NotIn") and not one.values:
        raise refuse(f"operator {one.operator} without values", "values with at least one text")
    if one.operator in ("Exists", "DoesNotExist") and one.values:
        raise refuse(f"operator {one.operator} with values", "no values for this operator")
    return one


Requirement = Annotated[LabelRequirement, AfterValidator(_fits_operator)]


@dataclass(frozen=True, slots=True)
class LabelSelector(SectionDataclass):
    """``matchLabels`` and ``matchExpressions``, by their names in Kubernetes; all must hold.

    A key whose lines are commented out is refused: without them it would select every node.
    """

    __never_empty__ = frozenset({"matchLabels", "matchExpressions"})

    matchLabels: Annotated[  # noqa: N815 - as Kubernetes spells it
        Mapping[LabelName, LabelValue], Field(max_length=MOST_REQUIREMENTS)
    ] = field(default_factory=dict)
    """Labels with these values. ``selector`` is a label selector as Kubernetes has it, and
    required; ``{}`` selects every node.
    """
    matchExpressions: Annotated[  # noqa: N815
        tuple[Requirement, ...], Field(strict=False, max_length=MOST_REQUIREMENTS)
    ] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a node with these labels."""
        return all(labels.get(key) == value for key, value in self.matchLabels.items()) and all(
            one.matches(labels) for one in self.matchExpressions
        )

    def requirements(self) -> Iterator[LabelRequirement]:
        """All of its requirements, those of ``matchLabels`` as `In` with one value."""
        for key, value in self.matchLabels.items():
            yield LabelRequirement(key, "In", (value,))
        yield from self.matchExpressions

    def __str__(self) -> str:
        """As `kubectl -l` takes it; "every node" for a selector without requirements."""
        return ",".join(map(_as_option, self.requirements())) or "every node"


def _as_option(one: LabelRequirement) -> str:
    match one.operator:
        case "In" if len(one.values) == 1:
            return f"{one.key}={one.values[0]}"
        case "NotIn" if len(one.values) == 1:
            return f"{one.key}!={one.values[0]}"
        case "In" | "NotIn":
            return f"{one.key} {one.operator.lower()} ({','.join(one.values)})"
        case "Exists":
            return one.key
        case "DoesNotExist":
            return f"!{one.key}"


@dataclass(slots=True)
class _KeyBound:
    """All that a selector requires of one key. ``allowed``: with None any value."""

    present: bool = False
    absent: bool = False
    allowed: frozenset[str] | None = None
    forbidden: frozenset[str] = frozenset()

    @property
    def possible(self) -> frozenset[str] | None:
        """The values that it may have, where they can be listed."""
        return None if self.allowed is None else self.allowed - self.forbidden


def contradiction(selector: LabelSelector) -> str:
    """Why it can select no node whatever its labels are; empty: it can select one."""
    for key, bound in _bounds(selector).items():
        if bound.present and bound.absent:
            return f"selects no node: {key} must be there and must not"
        if bound.possible is not None and not bound.possible:
            return f"selects no node: no value of {key} meets all requirements"
    return ""


def covers(wide: LabelSelector, narrow: LabelSelector) -> bool:
    """Whether ``wide`` selects every node that ``narrow`` selects, whatever its labels are."""
    bounds = _bounds(narrow)
    return all(_guarantees(bounds.get(one.key, _KeyBound()), one) for one in wide.requirements())


def _bounds(selector: LabelSelector) -> dict[str, _KeyBound]:
    found: dict[str, _KeyBound] = {}
    for one in selector.requirements():
        bound = found.setdefault(one.key, _KeyBound())
        values = frozenset(one.values)
        match one.operator:
            case "In":
                bound.present = True
                bound.allowed = values if bound.allowed is None else bound.allowed & values
            case "NotIn":
                bound.forbidden |= values
            case "Exists":
                bound.present = True
            case "DoesNotExist":
                bound.absent = True
    return found


def _guarantees(bound: _KeyBound, one: LabelRequirement) -> bool:
    """Whether each node within the bound meets the requirement."""
    values = frozenset(one.values)
    match one.operator:
        case "In":
            return bound.possible is not None and bound.possible <= values
        case "NotIn":
            listed = bound.possible is not None and not bound.possible & values
            return bound.absent or listed or values <= bound.forbidden
        case "Exists":
            return bound.present
        case "DoesNotExist":
            return bound.absent
